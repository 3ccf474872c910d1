"""The pages of all pairs over HTTP: right after every change, in every order, and without a fit for what is kept."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient

from _storages import fresh_storage
from kvyield_server.app import create_app
from kvyield_server.settings import Settings
from kvyield_server.storage.uow import Storage
from pages import samples

Client = TestClient[Any]


@pytest.fixture
def storage() -> Storage:
    return fresh_storage()


@pytest.fixture
def client(storage: Storage) -> Iterator[Client]:
    with TestClient(create_app(Settings(), storage)) as client:
        yield client


def post(client: Client, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
    return [client.post("/observations", json=body).raise_for_status().json() for body in bodies]


def shown(client: Client, address: str = "/ui/fleet") -> str:
    """Return a page once what it shows is up to date."""
    for _ in range(200):
        text = client.get(address).raise_for_status().text
        if "brought up to date" not in text:
            return text
        time.sleep(0.05)
    pytest.fail("the page is never up to date")


def models(text: str) -> list[str]:
    return re.findall(r'class="name"><a href="[^"]*"><bdi>([^<]*)</bdi>', text)


def cells(text: str, label: str) -> list[str]:
    """Return the text of a column."""
    found = re.findall(rf'data-label="{label}"[^>]*>(.*?)</td>', text, re.S)
    return [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in found]


def kept(client: Client, pair_id: str, target_tokens: int, **more: Any) -> dict[str, Any]:
    body = {"pair_id": pair_id, "target_tokens": target_tokens, **more}
    answer: dict[str, Any] = client.post("/recommendations", json=body).raise_for_status().json()
    return answer


def test_the_fleet_follows_what_happens(client: Client) -> None:
    """Nothing yet, a first start, a verification, a question, a longer one, a retraction: each is seen at once."""
    assert "No start is recorded yet" in shown(client)
    first, second, third = post(client, *samples.worked_case())
    text = shown(client)
    (runs,) = cells(text, "What runs")
    assert runs.startswith("SGLang 0.5.12 mem_fraction_static 0.94")
    assert (cells(text, "Pool, tokens"), cells(text, "Free at ready, GiB")) == (["218,484"], ["4.2"])
    assert cells(text, "Last verification") == ["60,010 tokens passed"]
    assert cells(text, "Answers its last question") == ["nothing asked"]
    proof = {"prompt_tokens": 100_000, "passed": True, "lowest_free_gib": 2.25, "answer": "wrong"}
    client.post(f"/observations/{third['id']}/verifications", json=proof).raise_for_status()
    text = shown(client)
    assert cells(text, "Last verification") == ["100,000 tokens passed, answer wrong"]
    assert cells(text, "Headroom, GiB") == ["2.3 measured, 100,000 tokens"]
    kept(client, third["pair_id"], 100_000)
    assert cells(shown(client), "Answers its last question") == ["yes 100,000 tokens"]
    answer = kept(client, third["pair_id"], 200_000)
    (said,) = cells(shown(client), "Answers its last question")
    assert said.startswith("no 200,000 tokens")
    assert answer["headline"]["text"] in said
    for each in (first, second, third):
        client.post(f"/observations/{each['id']}/retraction", json={"reason": "test"}).raise_for_status()
    text = shown(client)
    assert cells(text, "What runs") == ["no start came up"]
    assert cells(text, "Answers its last question") == ["nothing runs 200,000 tokens"]


def test_figures_are_those_of_the_pair(client: Client) -> None:
    """The headroom of the fleet is that of the pair's page, and the question leads to the same headline there."""
    pair = post(client, *samples.worked_case())[0]["pair_id"]
    kept(client, pair, 150_000, concurrent=2, confidence=0.9, max_running_requests=4)
    text = shown(client)
    opened = client.get(f"/ui/pairs/{pair}").text
    (headroom,) = cells(text, "Headroom, GiB")
    gib, _, note = headroom.partition(" ")
    assert note == "predicted, 60,010 tokens"
    assert f'<dd class="value">{gib}\u00a0GiB</dd>' in opened
    (address,) = re.findall(r'<a href="([^"]*)">150,000 tokens × 2</a>', text)
    answered = client.get(address.replace("&amp;", "&")).text
    (headline,) = re.findall(r'<p class="headline">(.*?)</p>', answered)
    assert f"<bdi>{headline}</bdi>" in text


def fleet(client: Client, count: int) -> None:
    """Record that many pairs, each with one start."""
    bodies = []
    for number in range(count):
        model = {"name": f"org/model-{number * 37 % count:03}", "facts": samples.FACTS}
        pool, free = 100_000 + number * 101 % 977, round(3 + number * 7 % 13 / 4, 2)
        bodies.append(samples.start(0.9, 8, pool, free, model=model, observed_at=samples.hour(number * 5 % 11)))
    assert client.post("/observations/batch", json={"observations": bodies}).status_code == 200


def test_pages_of_a_large_fleet_hold_every_pair_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page after page in any order every pair is there once, and once rows are kept no page makes a fit."""
    fleet(client, 120)
    shown(client)
    monkeypatch.setattr("kvyield_server.domain.model.fit.fit_pair", None)
    for sort in ("attention", "model", "-model", "gpu", "-started", "pool", "-free", "headroom", "-verified"):
        pages = [client.get("/ui/fleet", params={"sort": sort, "page": number}).text for number in (1, 2, 3)]
        found = [model for page in pages for model in models(page)]
        assert [len(models(page)) for page in pages] == [50, 50, 20]
        assert len(set(found)) == 120
        assert (sort != "model") or found == sorted(found)
    assert "There is no such page" in client.get("/ui/fleet?page=4").text
    assert "51 to 100 of 120 pairs" in pages[1]
    assert 'rel="prev"' in pages[1]
    assert 'rel="next"' not in pages[2]
    assert len(models(client.get("/ui/fleet?search=MODEL-00").text)) == 10
    assert client.get("/ui/drift").status_code == 200


def test_a_column_says_how_it_is_sorted_and_turns_round(client: Client) -> None:
    """The sorted column has aria-sort; its link sorts the other way and keeps search and filter."""
    fleet(client, 3)
    shown(client)
    text = client.get("/ui/fleet?sort=headroom&search=org&show=unverified").text
    assert text.count("aria-sort") == 1
    assert 'aria-sort="ascending"><a href="/ui/fleet?search=org&amp;show=unverified&amp;sort=-headroom">' in text


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("/ui/fleet?sort=price", "&#39;price&#39;"),
        ("/ui/fleet?sort=--pool", "sort"),
        ("/ui/fleet?page=0", "page"),
        ("/ui/fleet?page=many", "page"),
        ("/ui/fleet?page=99999999999999999999999", "page"),
        ("/ui/fleet?show=all", "show"),
        ("/ui/fleet?colour=red", "colour"),
        ("/ui/fleet?page=1&page=2", "page is given more than once"),
        ("/ui/drift?sort=pool&sort=-pool", "sort is given more than once"),
        ("/ui?search=a&search=b", "search is given more than once"),
        ("/ui/advice?page_token=a&page_token=b", "page_token is given more than once"),
        ("/ui/drift?versions=vllm", "vllm"),
        ("/ui/drift?sort=gpu", "&#39;gpu&#39;"),
    ],
)
def test_what_a_page_does_not_know_is_named(client: Client, address: str, named: str) -> None:
    """A parameter that is unknown, or has a value that it cannot have, is a 422 that names it."""
    answer = client.get(address)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "text/html; charset=utf-8")
    assert named in answer.text


def test_text_that_means_something_to_a_database_is_only_text(client: Client) -> None:
    """Signs of patterns, quotes and NUL in a search find nothing and break nothing."""
    fleet(client, 2)
    for text in ("%", "_", "' OR 1=1 --", "\\", "a\0b", "\u202e"):
        answer = client.get("/ui/fleet", params={"search": text})
        assert answer.status_code in (200, 422)
        assert not models(answer.text)


def test_a_pair_that_cannot_be_fitted_takes_no_other_along(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed with what is wrong, the others with what runs, and it is looked at again when it changes."""
    fleet(client, 3)
    from kvyield_server.domain.model import fit

    made = fit.fit_pair

    def fit_pair(evidence: fit.PairEvidence) -> fit.PairFit:
        if evidence.observations[0].model.name.endswith("001"):
            raise ZeroDivisionError
        return made(evidence)

    monkeypatch.setattr(fit, "fit_pair", fit_pair)
    assert sorted(each.split()[0] for each in cells(shown(client), "What runs")) == ["SGLang", "SGLang", "could"]
    monkeypatch.setattr(fit, "fit_pair", made)
    post(client, samples.start(0.91, 8, 110_000, 3.0, model={"name": "org/model-001"}, observed_at=samples.hour(30)))
    assert [each.split()[0] for each in cells(shown(client), "What runs")] == ["SGLang"] * 3


def test_a_start_of_no_use_breaks_no_page(client: Client) -> None:
    """A pair whose only start failed before its flags were known is listed as running nothing."""
    gpu = {"gpu": "NVIDIA L4", "gpu_count": 1}
    post(client, {"hardware": gpu, "model": {"name": "m"}, "engine": {"name": "vllm"}, "outcome": "failed"})
    assert cells(shown(client), "What runs") == ["no start came up"]


def test_stopping_does_not_wait_for_the_whole_fleet(storage: Storage) -> None:
    """A service that is stopped while rows are brought up to date ends, and the next one goes on."""
    with TestClient(create_app(Settings(), storage)) as client:
        fleet(client, 200)
        assert "brought up to date" in client.get("/ui/fleet").text
        began = time.monotonic()
    assert time.monotonic() - began < 20


def test_drift_tells_what_an_upgrade_changed(client: Client) -> None:
    """Two versions of an engine are compared at the same flags, with how many starts stand behind each."""
    assert "No pair has starts of two versions" in shown(client, "/ui/drift")
    post(client, *samples.vllm_starts(), *samples.upgrade(), *samples.worked_case())
    text = shown(client, "/ui/drift")
    assert ">vLLM 0.11.0 to 0.12.0 (1 pair)</option>" in text
    assert models(text) == ["Qwen/Qwen3-8B"]
    assert cells(text, "Starts") == ["2 → 2"]
    assert cells(text, "Pool tokens per 0.01")[0].startswith("10,2")
    (change,) = cells(text, "Pool at the same flags, tokens")
    assert change.startswith("−9,0")
    assert 'class="differs"' in text
    assert "1 of 1 changed" in text
    (address,) = set(re.findall(r'<option value="([^"]*)" selected>vLLM', text))
    chosen = address.replace("&#34;", '"')
    assert models(client.get("/ui/drift", params={"versions": chosen, "sort": "-free"}).text) == ["Qwen/Qwen3-8B"]


def test_a_start_that_died_is_seen_beside_what_runs(client: Client) -> None:
    """What runs says when it ended, and the newest start of all has a column of its own."""
    *_, third = post(client, *samples.worked_case())
    assert cells(shown(client), "Newest start") == ["ready"]
    body = samples.worked_case()[0]
    refused = {**body, "id": None, "observed_at": "2026-08-01T10:00:00Z", "outcome": "refused", "measurements": {}}
    post(client, refused)
    text = shown(client)
    (runs,), (newest,) = cells(text, "What runs"), cells(text, "Newest start")
    assert runs.startswith("SGLang 0.5.12 mem_fraction_static 0.94")
    assert "ended" not in runs
    assert newest.startswith("refused 2026-08-01")
    died = {**body, "id": None, "observed_at": "2026-08-02T10:00:00Z", "outcome": "oom_runtime"}
    post(client, {**died, "failure": {"phase": "serving", "prompt_tokens": 60_010}})
    text = shown(client)
    (runs,), (newest,) = cells(text, "What runs"), cells(text, "Newest start")
    assert runs.endswith("ended: OOM at run time")
    assert newest == "OOM at run time"
    assert models(shown(client, "/ui/fleet?show=died")) == models(text)
    assert models(shown(client, "/ui/fleet?sort=newest&show=died")) == models(text)
    client.post(f"/observations/{third['id']}/retraction", json={"reason": "typing error"}).raise_for_status()
    assert cells(shown(client), "Newest start") == ["OOM at run time"]
