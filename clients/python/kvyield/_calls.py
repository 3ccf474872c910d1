"""The API as plain descriptions of calls: what to send and how to read the answer. Knows no HTTP library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Generic, TypeVar
from urllib.parse import quote
from uuid import UUID

import msgspec

from kvyield import _wire
from kvyield._errors import ConfigError, UnexpectedAnswerError

T = TypeVar("T")
BATCH_ITEMS = 500
BATCH_BYTES = 2 * 2**20
EXPORTS = ("ndjson", "csv", "parquet")
MCP_VERSION = "2025-11-25"


@dataclass(frozen=True)
class Answer:
    """What came back: the status and the whole body, within the limit."""

    status: int
    body: bytes


@dataclass(frozen=True)
class Call(Generic[T]):
    """One call. ``idempotent`` says that sending it twice does what sending it once does."""

    method: str
    path: str
    read: Callable[[Answer], T]
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    idempotent: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)


def encode(value: object) -> bytes:
    """JSON of a struct. Raises `ConfigError` on NaN and infinities, which JSON cannot say."""
    plain = msgspec.to_builtins(_given(value))
    if not _is_finite(plain):
        raise ConfigError("a number is NaN or infinite; the API takes finite numbers only")
    return msgspec.json.encode(plain)


def _given(value: object) -> object:
    """Return a struct without the fields that say nothing: an older service refuses names that it does not know."""
    if isinstance(value, msgspec.Struct):
        fields = zip(value.__struct_encode_fields__, msgspec.structs.astuple(value), strict=True)
        return {name: _given(each) for name, each in fields if each is not None}
    if isinstance(value, list):
        return [_given(each) for each in value]
    return value


def post_observation(observation: _wire.Observation) -> Call[_wire.Receipt]:
    return Call("POST", "/observations", _read_receipt, body=encode(observation))


def post_batches(observations: Sequence[_wire.Observation]) -> Iterator[tuple[int, Call[list[_wire.BatchItem]]]]:
    """The index of each batch's first observation and its call, each within the service's limits."""
    batch: list[bytes] = []
    size = first = 0
    for index, observation in enumerate(observations):
        item = encode(observation)
        if batch and (len(batch) == BATCH_ITEMS or size + len(item) > BATCH_BYTES):
            yield first, _post_batch(batch)
            batch, size, first = [], 0, index
        batch.append(item)
        size += len(item)
    if batch:
        yield first, _post_batch(batch)


def _post_batch(items: list[bytes]) -> Call[list[_wire.BatchItem]]:
    body = b'{"observations":[' + b",".join(items) + b"]}"
    return Call("POST", "/observations/batch", lambda answer: _decode(answer, _wire.BatchAnswer).items, body=body)


def observations_page(filters: Mapping[str, object]) -> Call[_wire.ObservationPage]:
    return Call("GET", "/observations", _reader(_wire.ObservationPage), params=params(filters))


def observation(observation_id: UUID | str) -> Call[_wire.StoredObservation]:
    return Call("GET", f"/observations/{_segment(observation_id)}", _reader(_wire.StoredObservation))


def add_verification(observation_id: UUID | str, verification: _wire.Verification) -> Call[_wire.StoredObservation]:
    path = f"/observations/{_segment(observation_id)}/verifications"
    reader = _reader(_wire.StoredObservation)
    return Call("POST", path, reader, body=encode(verification))


def retract(observation_id: UUID | str, reason: str) -> Call[_wire.StoredObservation]:
    path = f"/observations/{_segment(observation_id)}/retraction"
    reader = _reader(_wire.StoredObservation)
    return Call("POST", path, reader, body=encode({"reason": reason}), idempotent=False)


def correct(observation_id: UUID | str, correction: Mapping[str, Any]) -> Call[_wire.StoredObservation]:
    path = f"/observations/{_segment(observation_id)}/corrections"
    return Call("POST", path, _reader(_wire.StoredObservation), body=encode(dict(correction)), idempotent=False)


def pairs_page(filters: Mapping[str, object]) -> Call[_wire.PairPage]:
    return Call("GET", "/pairs", _reader(_wire.PairPage), params=params(filters))


def pair(pair_id: UUID | str) -> Call[_wire.Pair]:
    return Call("GET", f"/pairs/{_segment(pair_id)}", _reader(_wire.Pair))


def fits(pair_id: UUID | str) -> Call[list[_wire.Fit]]:
    return Call("GET", f"/pairs/{_segment(pair_id)}/fits", lambda answer: _decode(answer, _wire.FitList).items)


def curve(pair_id: UUID | str, query: Mapping[str, object]) -> Call[_wire.Curve]:
    return Call("GET", f"/pairs/{_segment(pair_id)}/curve", _reader(_wire.Curve), params=params(query))


def predict(selector: _wire.Selector, flags: Sequence[Mapping[str, _wire.Scalar]]) -> Call[list[_wire.Prediction]]:
    body = encode({"selector": selector, "flags": [dict(one) for one in flags]})
    return Call("POST", "/predictions", lambda answer: _decode(answer, _wire.PredictionList).items, body=body)


def recommend(question: _wire.Question) -> Call[_wire.Recommendation]:
    return Call("GET", "/recommend", _reader(_wire.Recommendation), params=params(msgspec.structs.asdict(question)))


def recommend_text(question: _wire.Question, text_format: str) -> Call[str]:
    query = params(msgspec.structs.asdict(question) | {"format": None if text_format == "json" else text_format})
    return Call("GET", "/recommend", _read_text, params=query)


def store_recommendation(question: _wire.Question) -> Call[_wire.StoredRecommendation]:
    return Call(
        "POST", "/recommendations", _reader(_wire.StoredRecommendation), body=encode(question), idempotent=False
    )


def recommendation(recommendation_id: UUID | str) -> Call[_wire.StoredRecommendation]:
    path = f"/recommendations/{_segment(recommendation_id)}"
    return Call("GET", path, _reader(_wire.StoredRecommendation))


def settle(recommendation_id: UUID | str, observation_id: UUID | str) -> Call[_wire.StoredRecommendation]:
    path = f"/recommendations/{_segment(recommendation_id)}/settlement"
    body = encode({"observation_id": str(observation_id)})
    return Call("POST", path, _reader(_wire.StoredRecommendation), body=body)


def recommendation_text(recommendation_id: UUID | str, text_format: str) -> Call[str]:
    query = params({"format": None if text_format == "json" else text_format})
    return Call("GET", f"/recommendations/{_segment(recommendation_id)}", _read_text, params=query)


def calibration() -> Call[dict[str, Any]]:
    return Call("GET", "/calibration", _reader(dict[str, Any]))


def ready() -> Call[_wire.Health]:
    return Call("GET", "/health/ready", _reader(_wire.Health), idempotent=False)


def mcp(method: str, params: Mapping[str, Any]) -> Call[_wire.Message]:
    body = encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params)})
    headers = {"mcp-protocol-version": MCP_VERSION}
    return Call("POST", "/mcp", _read_message, body=body, idempotent=False, headers=headers)


def probes() -> Mapping[str, Call[None]]:
    """For each role of a token a call that only such a token is let through to, and that does nothing.

    Its body or its parameters are wrong: who is let through is told so, who is not is refused before.
    """
    nothing = UUID(int=0)
    return {
        "ingest": Call("POST", "/observations", _read_nothing, body=b"{}", idempotent=False),
        "read": Call("GET", "/recommend", _read_nothing, params={"target_tokens": "0"}, idempotent=False),
        "admin": Call("POST", f"/observations/{nothing}/retraction", _read_nothing, body=b"{}", idempotent=False),
    }


def probe_verification(observation_id: UUID | str) -> Call[None]:
    """Asks whether a verification would be let through: an empty one is refused as wrong, and stores nothing."""
    path = f"/observations/{_segment(observation_id)}/verifications"
    return Call("POST", path, _read_nothing, body=b"{}", idempotent=False)


def export_path(file_format: str) -> str:
    if file_format not in EXPORTS:
        raise ConfigError(f"an export is one of {', '.join(EXPORTS)}, not {file_format!r}")
    return f"/export/observations.{file_format}"


def params(values: Mapping[str, object]) -> dict[str, str]:
    """Query parameters as text; None and UNSET are left out."""
    return {name: _text(value) for name, value in values.items() if value is not None and value is not msgspec.UNSET}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    return str(value)


def _segment(value: UUID | str) -> str:
    return quote(str(value), safe="")


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list) else True


def _reader(kind: type[T]) -> Callable[[Answer], T]:
    return lambda answer: _decode(answer, kind)


def _decode(answer: Answer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UnexpectedAnswerError(f"the answer is not what kvyield's API gives: {error}") from error


def _read_receipt(answer: Answer) -> _wire.Receipt:
    receipt = _decode(answer, _wire.Receipt)
    receipt.created = answer.status == 201
    return receipt


def _read_message(answer: Answer) -> _wire.Message:
    message = _decode(answer, _wire.Message)
    if message.result is None and message.error is None:
        raise UnexpectedAnswerError("the answer is not a message of the Model Context Protocol")
    return message


def _read_nothing(_answer: Answer) -> None:
    return None


def _read_text(answer: Answer) -> str:
    try:
        return answer.body.decode()
    except UnicodeDecodeError as error:
        raise UnexpectedAnswerError("the answer is not text in UTF-8") from error
