"""What the client sends is what the service takes, and what the service answers is what the client reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from litestar.testing import TestClient

from _storages import fresh_storage
from api.samples import NAMES, VERIFICATION, start
from kvyield import _calls, _wire, agents
from kvyield_server.api import mcp
from kvyield_server.app import create_app
from kvyield_server.schemas import observations, predictions, recommendations, selectors
from kvyield_server.settings import Settings

PAIRS = [
    (_wire.Hardware, observations.HardwareIn),
    (_wire.Model, observations.ModelIn),
    (_wire.Engine, observations.EngineIn),
    (_wire.Measurements, observations.MeasurementsIn),
    (_wire.Failure, observations.FailureIn),
    (_wire.Verification, observations.VerificationIn),
    (_wire.Observation, observations.ObservationIn),
]


def names(struct: type[msgspec.Struct]) -> set[str]:
    """Return the names of a struct's fields on the wire."""
    return {field.encode_name for field in msgspec.structs.fields(struct)}


@pytest.mark.parametrize(("sent", "taken"), PAIRS, ids=lambda struct: struct.__name__)
def test_sent_fields_are_the_taken_fields(sent: type[msgspec.Struct], taken: type[msgspec.Struct]) -> None:
    """Client and service have the same fields, and what the service needs the client needs."""
    assert names(sent) == names(taken)
    needed = {field.encode_name for field in msgspec.structs.fields(taken) if field.required}
    assert needed <= {field.encode_name for field in msgspec.structs.fields(sent) if field.required}


@pytest.mark.parametrize(
    ("sent", "taken"),
    [(_wire.Selector, selectors.SelectorIn), (_wire.Question, recommendations.RecommendationIn)],
    ids=lambda struct: struct.__name__,
)
def test_the_client_asks_nothing_unknown(sent: type[msgspec.Struct], taken: type[msgspec.Struct]) -> None:
    """Every field of a client's question is one that the service takes."""
    assert names(sent) <= names(taken)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_observation_survives_the_way(number: int) -> None:
    """What the client's struct encodes, the service's decodes to the same content."""
    sent = msgspec.json.encode(msgspec.convert(start(number), _wire.Observation))
    taken = msgspec.json.decode(sent, type=observations.ObservationIn)
    assert observations.observation_faults(taken) == []
    plain = msgspec.json.decode(msgspec.json.encode(start(number)), type=observations.ObservationIn)
    assert observations.content_digest(taken) == observations.content_digest(plain)


def test_predictions_are_asked_as_they_are_taken() -> None:
    """A client's selector fits into a predictions body."""
    selector = msgspec.to_builtins(msgspec.convert(NAMES, _wire.Selector))
    body = msgspec.json.encode({"selector": selector, "flags": [{"mem_fraction_static": 0.9}]})
    taken = msgspec.json.decode(body, type=predictions.PredictionsIn)
    assert predictions.predictions_faults(taken) == []


ASKED = {**NAMES, "target_tokens": 200000}
ANSWERS: dict[str, Callable[[Any, str], Any]] = {
    "StoredObservation": lambda client, _: client.get(f"/observations/{start(3)['id']}"),
    "ObservationPage": lambda client, _: client.get("/observations"),
    "Recommendation": lambda client, _: client.get("/recommend", params=ASKED),
    "StoredRecommendation": lambda client, _: client.post("/recommendations", json=ASKED),
    "PredictionList": lambda client, _: client.post("/predictions", json={"selector": NAMES, "flags": [{}]}),
    "PairPage": lambda client, _: client.get("/pairs"),
    "Pair": lambda client, pair: client.get(f"/pairs/{pair}"),
    "FitList": lambda client, pair: client.get(f"/pairs/{pair}/fits"),
    "Curve": lambda client, pair: client.get(f"/pairs/{pair}/curve"),
    "Problem": lambda client, _: client.post("/observations", json={}),
    "Health": lambda client, _: client.get("/health/ready"),
    "BatchAnswer": lambda client, _: client.post("/observations/batch", json={"observations": [start(), 5]}),
}


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[TestClient[Any], str]]:
    """A service that knows the worked case, and the id of its pair."""
    with TestClient(create_app(Settings(), fresh_storage())) as client:
        for number in (1, 2, 3):
            client.post("/observations", json=start(number))
        answer = client.post(f"/observations/{start(3)['id']}/verifications", json=VERIFICATION)
        yield client, answer.json()["pair_id"]


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_read_by_the_client(service: tuple[TestClient[Any], str], name: str) -> None:
    """Each answer decodes into the client's struct for it, and no field of that struct is one that never comes."""
    struct: Any = getattr(_wire, name)
    answer = ANSWERS[name](*service)
    assert msgspec.json.decode(answer.content, type=struct) is not None
    needed = {field.encode_name for field in msgspec.structs.fields(struct) if field.required}
    assert needed <= set(answer.json())


def test_problems_that_list_are_read_by_the_client(service: tuple[TestClient[Any], str]) -> None:
    """The nearest names of a 404 and the matches of a 409 arrive."""
    client, _ = service
    none = client.get("/recommend", params={**ASKED, "gpu": "RTX"})
    assert msgspec.json.decode(none.content, type=_wire.Problem).nearest
    client.post("/observations", json=start(id=None, observed_at="2026-06-01T00:00:00Z", model={"name": "kimi k2.6"}))
    several = client.get("/recommend", params={**ASKED, "model": "KIMI-K2.6"})
    assert len(msgspec.json.decode(several.content, type=_wire.Problem).matches) == 2


RELEASED = {  # what 0.1.0 takes
    "hardware": {"gpu", "gpu_count", "memory_gib", "unified_memory"},
    "engine": {"name", "version", "variant"},
    "model": {"name", "revision", "facts"},
    "measurements": {
        *("pool_tokens", "free_at_ready_gib", "free_at_pool_end_gib", "free_before_load_gib", "free_after_load_gib"),
        *("kv_cache_gib", "draft_kv_cache_gib", "weights_gib", "graph_gib", "device_memory_gib", "startup_seconds"),
    },
    "failure": {"phase", "message", "minimum_fraction", "prompt_tokens", "available_kv_cache_gib"},
}
RELEASED_VERIFICATION = {
    *("prompt_tokens", "passed", "completion_tokens", "cached_tokens", "elapsed_seconds"),
    *("time_to_first_token_seconds", "answer_expected", "answer_received", "lowest_free_gib", "free_before_gib"),
    *("concurrent", "memory_samples", "error"),
}


def test_a_service_of_the_last_release_takes_what_this_client_sends() -> None:
    """Fields that the last release refuses are not sent unless they say something."""
    sent = msgspec.convert(start(2, outcome="oom_runtime", failure={"phase": "serving"}), _wire.Observation)
    sent.hardware.driver_memory_gib = None
    sent.verifications = [msgspec.convert(VERIFICATION, _wire.Verification)]
    call = _calls.post_observation(sent)
    assert call.body is not None
    body = msgspec.json.decode(call.body)
    for name, known in RELEASED.items():
        assert set(body[name]) <= known
    assert set(body["verifications"][0]) <= RELEASED_VERIFICATION
    question = _calls.recommend(_wire.Question(target_tokens=1))
    assert question.params == {"target_tokens": "1"}


def test_agents_are_told_the_same_by_both() -> None:
    """``kvyield mcp`` introduces the tools as the service does."""
    assert agents.INSTRUCTIONS == mcp.INSTRUCTIONS
