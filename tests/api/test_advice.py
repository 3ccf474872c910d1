"""The worked case over HTTP: predictions and advice from starts that were posted."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest

from api.conftest import Client
from api.samples import FACTS, GPU, MODEL, NAMES, VERIFICATION, start
from kvyield_server.storage.uow import Storage

QUESTION = {**NAMES, "target_tokens": 200000}


def recommend(client: Client, **changes: Any) -> Any:
    """Ask GET /recommend the worked case's question with parameters changed; None takes one away."""
    asked = {name: value for name, value in {**QUESTION, **changes}.items() if value is not None}
    return client.get(f"/recommend?{urlencode(asked)}")


@pytest.fixture
def pair_id(client: Client) -> str:
    """The pair after all three starts and the verification of the third."""
    for number in (1, 2, 3):
        client.post("/observations", json=start(number))
    answer = client.post(f"/observations/{start(3)['id']}/verifications", json=VERIFICATION)
    return str(answer.json()["pair_id"])


def test_two_starts_predict_the_third_to_the_token(client: Client) -> None:
    """From starts 1 and 2 the pool at 0.94 is 218,484 within 2 tokens, free memory 4.2 GiB within 0.6."""
    for number in (1, 2):
        client.post("/observations", json=start(number))
    body = {"selector": NAMES, "flags": [{"mem_fraction_static": 0.94}, {"mem_fraction_static": 0.9}]}
    first, second = client.post("/predictions", json=body).json()["items"]
    assert abs(first["pool_tokens"]["median"] - 218484) <= 2
    assert first["pool_tokens"]["low"] <= 218484 <= first["pool_tokens"]["high"]
    assert abs(first["free_at_ready_gib"]["median"] - 4.2) <= 0.6
    assert first["basis"]["kind"] == "several_starts"
    assert second["flags"]["mem_fraction_static"] == 0.9
    assert second["pool_tokens"]["median"] < first["pool_tokens"]["median"]


def test_the_worked_case_is_answered(client: Client, pair_id: str) -> None:
    """0.926 holds the target, at risk because nothing was verified at that length, and says so."""
    advice = recommend(client).json()
    assert advice["status"] == "at_risk"
    assert advice["flags"] == {"mem_fraction_static": 0.926, "context_length": 200007, "max_running_requests": 8}
    assert advice["command_line"] == ("--mem-fraction-static 0.926 --context-length 200007 --max-running-requests 8")
    assert abs(advice["prediction"]["pool_tokens"]["median"] - 200225) <= 10
    assert abs(advice["prediction"]["free_at_ready_gib"]["median"] - 5.5) <= 0.3
    assert abs(advice["probability"]["memory"] - 0.84) <= 0.05
    assert abs(advice["verification_seconds"] - 153) <= 3
    assert advice["restarts"]["minutes_each"] == 6.0
    assert advice["basis"]["verified_prompt_tokens"] == 60010
    assert {change["flag"]: (change["from"], change["to"]) for change in advice["changes"]} == {
        "mem_fraction_static": (0.94, 0.926),
        "context_length": (200000, 200007),
    }
    codes = {warning["code"] for warning in advice["warnings"]}
    assert {"context_length_does_not_grow_pool", "nothing_verified_at_this_length"} <= codes
    assert advice["pair_id"] == pair_id


def test_names_may_be_loose(client: Client, pair_id: str) -> None:
    """Case, spaces, punctuation and vendor do not matter; a substring is not a name."""
    loose = recommend(client, model="kimi k2.6", gpu="rtx-pro-6000 BLACKWELL workstation edition")
    assert (loose.status_code, loose.json()["pair_id"]) == (200, pair_id)
    short = recommend(client, gpu="RTX PRO 6000")
    assert (short.status_code, short.json()["type"]) == (404, "/problems/not_found")
    assert short.json()["nearest"] == [f"8 x {GPU}, {MODEL}"]


def test_several_matches_are_listed(client: Client, pair_id: str) -> None:
    """Two spellings that are loosely equal to the question answer 409 with both; an exact one wins."""
    client.post("/observations", json=start(id=None, model={"name": "Kimi K2.6"}))
    answer = recommend(client, model="kimi-k2.6")
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/ambiguous")
    assert {match["model"] for match in answer.json()["matches"]} == {MODEL, "Kimi K2.6"}
    assert pair_id in [match["pair_id"] for match in answer.json()["matches"]]
    assert recommend(client, model="Kimi K2.6").status_code == 200
    assert recommend(client).json()["pair_id"] == pair_id


def test_a_pair_id_selects_too(client: Client, pair_id: str) -> None:
    """pair_id stands for all names, and the engine may be left out."""
    none = dict.fromkeys(NAMES)
    assert recommend(client, **none, pair_id=pair_id).json()["flags"]["mem_fraction_static"] == 0.926


def test_like_chooses_a_deployment_of_the_pair(client: Client, pair_id: str) -> None:
    """like names an observation of the pair; one of another pair, or of none, is refused."""
    assert recommend(client, like=start(2)["id"]).status_code == 200
    assert recommend(client, like="0197b0a0-0000-7000-8000-0000000000aa").status_code == 404
    other = client.post("/observations", json=start(id=None, model={"name": "other"})).json()["id"]
    answer = recommend(client, like=other)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/like")


@pytest.mark.parametrize("form", ["args", "systemd", "docker", "compose", "kubernetes"])
def test_the_answer_can_be_rendered(client: Client, pair_id: str, form: str) -> None:
    """Each format is text for the engine asked and holds the fraction."""
    answer = recommend(client, format=form)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "0.926" in answer.text


def test_an_unknown_fraction_is_not_enough_evidence(client: Client) -> None:
    """A pair without a usable start answers 200 with what to post next."""
    client.post("/observations", json=start(outcome="failed", flags={}, measurements=None, model={"name": "m"}))
    answer = recommend(client, model="m")
    assert (answer.status_code, answer.json()["status"]) == (200, "not_enough_evidence")
    assert answer.json()["prediction"] == {"pool_tokens": None, "free_at_ready_gib": None, "headroom_gib": None}


def test_facts_start_cold(client: Client) -> None:
    """A pair that was never recorded is answered from the model's facts; without facts it is not found."""
    selector = {**NAMES, "gpu": "NVIDIA H200", "model": "never/seen"}
    body = {"selector": selector, "flags": [{"mem_fraction_static": 0.9}]}
    assert client.post("/predictions", json=body).status_code == 404
    cold = client.post("/predictions", json={**body, "selector": {**selector, "facts": FACTS}})
    assert (cold.status_code, cold.json()["items"][0]["basis"]["kind"]) == (200, "config_only")
    advice = client.post("/recommendations", json={**selector, "facts": FACTS, "target_tokens": 1000})
    assert (advice.status_code, advice.json()["pair_id"]) == (201, None)


def test_new_evidence_changes_the_answer_at_once(client: Client) -> None:
    """An answer is never older than the evidence: a post, a verification and a retraction show in the next one."""
    for number in (1, 2):
        client.post("/observations", json=start(number))
    seen = [recommend(client).json()]
    client.post("/observations", json=start(3))
    seen.append(recommend(client).json())
    client.post(f"/observations/{start(3)['id']}/verifications", json=VERIFICATION)
    seen.append(recommend(client).json())
    client.post(f"/observations/{start(3)['id']}/retraction", json={"reason": "test"})
    seen.append(recommend(client).json())
    assert [len(advice["basis"]["observation_ids"]) for advice in seen] == [2, 3, 3, 2]
    assert [advice["basis"]["verified_prompt_tokens"] for advice in seen] == [None, None, 60010, None]


def test_a_recommendation_is_stored_and_settled(client: Client, pair_id: str) -> None:
    """The stored answer is the one that GET /recommend gives; it is compared with the first start that names it."""
    posted = client.post("/recommendations", json=QUESTION)
    assert posted.status_code == 201
    way = posted.headers["location"]
    fresh = recommend(client).json()
    assert {name: posted.json()[name] for name in fresh} == fresh
    assert client.get(way).json() == posted.json()
    assert "0.926" in client.get(f"{way}?format=args").text
    for host in ("a", "b"):
        follower = start(3, id=None, host=host, recommendation_id=posted.json()["id"])
        assert client.post("/observations", json=follower).status_code == 201
    settled = client.get(way).json()
    first = client.get(f"/observations/{settled['observation_id']}").json()
    assert first["host"] == "a"
    assert settled["settled_at"] is not None


def test_a_start_that_named_nothing_is_tied_to_advice_by_its_id(client: Client, pair_id: str) -> None:
    """A watched start is tied to advice by its id, the first stays; again changes nothing; the audit has it."""
    ways = [client.post("/recommendations", json=QUESTION).headers["location"] for _ in range(2)]
    watched, later = (client.post("/observations", json=start(3, id=None, host=host)).json()["id"] for host in "ab")
    said = [client.post(f"{ways[0]}/settlement", json={"observation_id": watched}) for _ in range(2)]
    assert [answer.status_code for answer in said] == [200, 200]
    assert said[0].json() == said[1].json() == client.get(ways[0]).json()
    assert said[0].json()["observation_id"] == watched
    assert client.get("/calibration").json()["settled"] == 1
    other = client.post(f"{ways[0]}/settlement", json={"observation_id": later})
    assert (other.status_code, other.json()["type"]) == (409, "/problems/conflict")
    assert client.get(ways[1]).json()["observation_id"] is None
    notes = [note for note in client.get("/audit").json()["items"] if note["action"] == "settle"]
    assert [(note["subject"], note["details"]) for note in notes] == [
        (ways[0].rpartition("/")[2], {"observation_id": watched})
    ]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("unknown", "no such start"),
        ("retracted", "retracted"),
        ("stranger", "another GPU"),
        ("engine", "another GPU, count of GPUs, model or engine"),
        ("evidence", "before the recommendation"),
        ("taken", "followed"),
        ("used", "followed"),
    ],
)
def test_a_start_that_cannot_have_followed_is_not_tied(client: Client, pair_id: str, kind: str, reason: str) -> None:
    """Unknown, retracted, of another pair or engine, older, or after other advice: 422 there, and nothing changed."""
    way, other = (client.post("/recommendations", json=QUESTION).headers["location"] for _ in range(2))
    follower = start(3, id=None, host="a", recommendation_id=other.rpartition("/")[2] if kind == "taken" else None)
    if kind == "stranger":
        follower["hardware"] = {"gpu": "H200", "gpu_count": 8}
    if kind == "engine":
        follower |= {"engine": {"name": "vllm"}, "flags": {"gpu_memory_utilization": 0.9}}
    posted = client.post("/observations", json=follower).json()["id"]
    if kind == "retracted":
        client.post(f"/observations/{posted}/retraction", json={"reason": "wrong log"})
    if kind == "used":
        assert client.post(f"{other}/settlement", json={"observation_id": posted}).status_code == 200
    unusual = {"unknown": "0197b0a0-0000-7000-8000-00000000ffff", "evidence": start(3)["id"]}
    settled_by = unusual.get(kind, posted)
    answer = client.post(f"{way}/settlement", json={"observation_id": settled_by})
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert fault["pointer"] == "/observation_id"
    assert reason in fault["detail"]
    assert client.get(way).json()["observation_id"] is None


def test_calibration_counts_settled_recommendations(client: Client, pair_id: str) -> None:
    """A recommendation that a start settled is counted, one that none followed is not."""
    ids = [client.post("/recommendations", json=QUESTION).json()["id"] for _ in range(2)]
    follower = start(id=None, recommendation_id=ids[0])
    follower["flags"]["mem_fraction_static"] = 0.926
    follower["measurements"]["pool_tokens"] = 200225
    client.post("/observations", json=follower)
    answer = client.get("/calibration")
    assert answer.status_code == 200
    assert answer.json()["settled"] == 1


def test_calibration_counts_by_the_quantiles_stored(client: Client, storage: Storage, pair_id: str) -> None:
    """Each stored answer has quantiles of its prediction, and coverage at every level is counted by them."""
    stored = client.post("/recommendations", json={**NAMES, "target_tokens": 200_000}).json()
    with storage.read() as unit:
        kept = unit.recommendations.get(UUID(stored["id"]))
    assert kept is not None
    rows = dict(kept.advice.prediction.quantiles["free_at_ready_gib"])
    assert list(rows) == sorted(rows)
    assert list(rows.values()) == sorted(rows.values())
    free = round((rows[0.75] + rows[0.9]) / 2, 3)
    settling = start(
        2,
        id=None,
        observed_at="2026-06-02T10:00:00Z",
        flags={**start(2)["flags"], **stored["flags"]},
        measurements={"pool_tokens": round(stored["prediction"]["pool_tokens"]["median"]), "free_at_ready_gib": free},
        recommendation_id=stored["id"],
    )
    assert client.post("/observations", json=settling).status_code == 201
    told = client.get("/calibration").json()["free_at_ready"]
    assert {each["level"]: each["held"] for each in told} == {0.5: 0, 0.8: 1, 0.9: 1, 0.95: 1}


def test_a_curve_rises_with_the_fraction(client: Client, pair_id: str) -> None:
    """The curve has the points asked for, in order, bands around medians, and the starts beside it."""
    curve = client.get(f"/pairs/{pair_id}/curve?from=0.8&to=0.95&points=4").json()
    assert [point["fraction"] for point in curve["points"]] == [0.8, 0.85, 0.9, 0.95]
    medians = [point["pool_tokens"]["median"] for point in curve["points"]]
    assert medians == sorted(medians)
    assert abs(medians[1] - 101134) <= 100
    assert len(curve["starts"]) == 3
    assert curve["fraction_flag"] == "mem_fraction_static"
    (fit,) = client.get(f"/pairs/{pair_id}/fits").json()["items"]
    named = client.get(f"/pairs/{pair_id}/curve?deployment={fit['deployment_id']}")
    assert named.json()["deployment"] == fit["deployment"]


@pytest.mark.parametrize(
    ("query", "status"),
    [("deployment=none", 404), ("from=0.9&to=0.8", 422), ("points=1", 422), ("points=501", 422), ("from=nan", 422)],
)
def test_a_bad_curve_is_refused(client: Client, pair_id: str, query: str, status: int) -> None:
    """An unknown deployment is not found; a range that is none is refused."""
    assert client.get(f"/pairs/{pair_id}/curve?{query}").status_code == status


def test_fits_say_what_they_are_based_on(client: Client, pair_id: str) -> None:
    """A fit has parameters with uncertainty, and evidence with its use and a reason."""
    answer = client.get(f"/pairs/{pair_id}/fits").json()
    (fit,) = answer["items"]
    assert answer["pair_id"] == pair_id
    slope = fit["parameters"]["slope_tokens_per_fraction"]
    assert slope["low"] < slope["median"] < slope["high"]
    assert len(fit["evidence"]) == 3
    assert all(item["use"] and item["reason"] for item in fit["evidence"])


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"flags": []}, "/flags"),
        ({"flags": [{}] * 201}, "/flags"),
        ({"flags": [{"mem_fraction_static": 2}]}, "/flags/0/mem_fraction_static"),
        ({"flags": [{}, {"hf_token": "x"}]}, "/flags/1/hf_token"),
        ({"selector": {}}, "/selector/gpu"),
        ({"selector": {**NAMES, "surprise": 1}}, "/selector/surprise"),
        ({"surprise": 1}, "/surprise"),
        ({"flags": [{}, {"tp_size": 10**9}]}, "/flags/1/tp_size"),
        ({"flags": [{"tensor_parallel_size": 65_537}]}, "/flags/0/tensor_parallel_size"),
        ({"flags": [{"tp_size": True}]}, "/flags/0/tp_size"),
        ({"flags": [{"tp_size": 8.5}]}, "/flags/0/tp_size"),
        ({"flags": [{"max_num_seqs": 10**7}]}, "/flags/0/max_num_seqs"),
        ({"flags": [{"kv_cache_memory_bytes": "10G"}]}, "/flags/0/kv_cache_memory_bytes"),
        ({"flags": [{"kv_cache_memory": "max"}]}, "/flags/0/kv_cache_memory"),
        ({"flags": [{"max_tokens": "50k"}]}, "/flags/0/max_tokens"),
        ({"flags": [{"max_running_requests": -1}]}, "/flags/0/max_running_requests"),
        ({"flags": [{"kv_cache_dtype": "garbage"}]}, "/flags/0/kv_cache_dtype"),
        ({"flags": [{"kv_cache_dtype": "fp8_ds_mla"}]}, "/flags/0/kv_cache_dtype"),
        ({"flags": [{"kv_cache_dtype": 8}]}, "/flags/0/kv_cache_dtype"),
    ],
)
def test_a_bad_prediction_is_refused(client: Client, change: dict[str, Any], pointer: str) -> None:
    """Selectors and flags of predictions are as strict as those of observations."""
    answer = client.post("/predictions", json={"selector": NAMES, "flags": [{}], **change})
    assert answer.status_code == 422
    assert pointer in [fault["pointer"] for fault in answer.json()["errors"]]


@pytest.mark.parametrize("name", ["num_gpu_blocks_override", "max_total_tokens", "kv_cache_memory_bytes"])
def test_the_bounds_of_a_flag_are_said(client: Client, name: str) -> None:
    """Who gives too large a number learns how large it may be."""
    answer = client.post("/predictions", json={"selector": NAMES, "flags": [{name: 10**18}]})
    assert re.search(r"it must be a whole number from 1 to \d{1,3}(,\d{3})+", answer.json()["errors"][0]["detail"])


@pytest.mark.parametrize(
    "flags", [{"tp_size": 8}, {"tp_size": None}, {"kv_cache_dtype": "fp8_e4m3"}, {"anything": "x"}]
)
def test_flags_of_a_prediction_that_are_right(client: Client, pair_id: str, flags: dict[str, Any]) -> None:
    """Known flags within bounds, known to be off, and flags that nobody knows are taken."""
    answer = client.post("/predictions", json={"selector": {"pair_id": pair_id}, "flags": [flags]})
    (item,) = answer.json()["items"]
    assert flags.items() <= item["flags"].items()


@pytest.mark.parametrize(("flags", "takes"), [({"tp_size": 16}, 16), ({"pp_size": 2}, 16), ({"dp_size": 8}, 64)])
def test_a_layout_that_the_hardware_has_no_gpus_for_is_said(
    client: Client, pair_id: str, flags: dict[str, Any], takes: int
) -> None:
    """The pair has 8 GPUs; a prediction for more is made and warned of, one for 8 is not."""
    body = {"selector": {"pair_id": pair_id}, "flags": [flags, {"tp_size": 8}]}
    more, same = client.post("/predictions", json=body).json()["items"]
    (warning,) = [it["detail"] for it in more["warnings"] if it["code"] == "layout_exceeds_hardware"]
    assert f"takes {takes} GPUs and the hardware has 8" in warning
    assert "layout_exceeds_hardware" not in [it["code"] for it in same["warnings"]]


@pytest.mark.parametrize(
    ("flags", "pointer"),
    [
        ({"tensor_parallel_size": 16}, "/flags/0/tensor_parallel_size"),
        ({"tp": 4}, "/flags/0/tp"),
        ({"pp_size": 2, "pp": 4}, "/flags/0/pp"),
        ({"kv_cache_dtype": "fp8_ds_mla"}, "/flags/0/kv_cache_dtype"),
    ],
)
def test_flags_of_another_name_or_engine_are_refused(
    client: Client, pair_id: str, flags: dict[str, Any], pointer: str
) -> None:
    """The engine is known from the pair: another name of a size that is set would not count, nor another's type."""
    answer = client.post("/predictions", json={"selector": {"pair_id": pair_id}, "flags": [flags]})
    assert answer.status_code == 422
    assert pointer in [fault["pointer"] for fault in answer.json()["errors"]]


def test_a_question_by_pair_has_its_engine(client: Client, pair_id: str) -> None:
    """A type of the KV cache that the pair's engine does not take is refused without naming the engine."""
    answer = client.get(f"/recommend?pair_id={pair_id}&target_tokens=50000&kv_cache_dtype=nvfp4")
    assert answer.status_code == 422
    assert "sglang takes" in answer.json()["detail"]


def test_a_start_may_have_any_value_of_a_known_flag(client: Client) -> None:
    """What an engine accepted is kept as it was, also where a prediction for it would be refused."""
    flags = {**start(1)["flags"], "kv_cache_dtype": "a_later_type", "tp_size": 70_000}
    answer = client.post("/observations", json=start(1, flags=flags))
    assert answer.status_code == 201
    assert answer.json()["flags"]["kv_cache_dtype"] == "a_later_type"


def test_an_engine_never_seen_on_the_pair_starts_cold(client: Client, pair_id: str) -> None:
    """Another engine on a known pair is answered from the GPU and the model alone, and says so."""
    advice = recommend(client, engine="vllm", target_tokens=50000).json()
    assert (advice["engine"], advice["pair_id"]) == ("vllm", pair_id)
    assert advice["basis"]["kind"] in ("config_only", "transfer")


def test_another_engine_version_is_said(client: Client, pair_id: str) -> None:
    """Advice for a version that was never started is based on the one that was, and warns."""
    advice = recommend(client, engine_version="0.6.0").json()
    assert advice["basis"]["observation_ids"]
    assert any("version" in warning["code"] for warning in advice["warnings"])


def test_facts_told_with_a_question_help_a_known_pair(client: Client) -> None:
    """One start without facts predicts no other fraction; with facts and memory in the selector it does."""
    body = start(id=None, model={"name": "bare"}, hardware={"gpu": "NVIDIA H200", "gpu_count": 8})
    body["measurements"]["kv_cache_gib"] = 13.9
    client.post("/observations", json=body)
    selector = {**NAMES, "gpu": "NVIDIA H200", "model": "bare"}
    asked = {"selector": selector, "flags": [{"mem_fraction_static": 0.95}]}
    widths = []
    for told in ({}, {"facts": FACTS, "memory_gib": 139.8}, {}):
        answer = client.post("/predictions", json={**asked, "selector": {**selector, **told}}).json()["items"][0]
        pool = answer["pool_tokens"]
        widths.append(pool and pool["high"] - pool["low"])
    assert widths[0] == widths[2]
    assert widths[1] is not None
    assert widths[0] is None or widths[1] < widths[0]


@pytest.mark.parametrize("is_cold", [False, True], ids=["recorded", "cold"])
def test_a_start_of_another_pair_is_not_tied(client: Client, is_cold: bool) -> None:
    """A recommendation is settled by a start of its own pair, or of the names that a cold one was asked for."""
    if not is_cold:
        client.post("/observations", json=start(2))
    asked = {**NAMES, "target_tokens": 200_000, "facts": FACTS if is_cold else None}
    answer = client.post("/recommendations", json=asked).json()
    strange: list[dict[str, Any]] = [
        {"hardware": {"gpu": "H200", "gpu_count": 8}},
        {"engine": {"name": "vllm"}, "flags": {"gpu_memory_utilization": 0.9}},
    ]
    for changes in strange:
        refused = client.post("/observations", json=start(3, id=None, recommendation_id=answer["id"], **changes))
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/recommendation_id")
    assert client.get(f"/recommendations/{answer['id']}").json()["observation_id"] is None
    assert client.post("/observations", json=start(3, recommendation_id=answer["id"])).status_code == 201
    assert client.get(f"/recommendations/{answer['id']}").json()["observation_id"] == start(3)["id"]


@pytest.mark.parametrize("way", ["named in the post", "settled later"])
def test_a_start_with_other_flags_than_advised_is_said_not_to_count(client: Client, way: str) -> None:
    """A start at 0.918 after advice for another fraction is tied to it, and the answer says that it is not counted."""
    client.post("/observations", json=start(1))
    client.post("/observations", json=start(2))
    kept = client.post("/recommendations", json={**NAMES, "target_tokens": 200_000}).json()
    advised = kept["flags"]["mem_fraction_static"]
    flags = {**start(3)["flags"], "mem_fraction_static": 0.918}
    named = kept["id"] if way == "named in the post" else None
    posted = client.post("/observations", json=start(3, flags=flags, recommendation_id=named)).json()
    own = f"/recommendations/{kept['id']}"
    if named is None:
        told = client.post(f"{own}/settlement", json={"observation_id": posted["id"]}).json()["settlement"]
        assert told is not None
        assert told.startswith("started with other flags: not counted")
    settlement = client.get(own).json()["settlement"]
    assert settlement.startswith("started with other flags: not counted (")
    assert f"mem_fraction_static 0.918 instead of {advised}" in settlement
