"""Strict decoding: what is right passes unchanged, what is wrong is told by pointer."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from kvyield_server.schemas import batch, observations, predictions, recommendations
from kvyield_server.schemas.observations import ObservationIn
from kvyield_server.schemas.paging import ObservationsQuery
from kvyield_server.schemas.strict import (
    Fault,
    FaultyBodyError,
    MalformedJsonError,
    decode,
    faults_of,
    keys_are_unique,
    pointer_to,
    shown,
)


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    """A nested object."""

    count: Annotated[int, Meta(ge=1)]


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    """An object with one of each."""

    name: Annotated[str, Meta(max_length=3)]
    inner: Inner | None = None
    items: list[Inner] = []
    flags: dict[str, int | None] = {}


def faults(body: bytes) -> list[Fault]:
    """Return what is wrong with a body."""
    with pytest.raises(FaultyBodyError) as caught:
        decode(body, Outer)
    return caught.value.faults


def test_a_good_body_is_decoded() -> None:
    """A body that is right is the struct that it says."""
    assert decode(b'{"name": "a", "inner": {"count": 2}}', Outer) == Outer("a", Inner(2))


def test_faults_of_all_levels_are_collected() -> None:
    """Faults in nested objects, lists and maps come together, each with its own pointer."""
    body = b'{"name": "abcd", "inner": {}, "items": [{"count": 1}, {"count": 0}, 5], "flags": {"a/b": "x"}, "z": 1}'
    assert [fault.pointer for fault in faults(body)] == [
        "/z",
        "/name",
        "/inner/count",
        "/items/1/count",
        "/items/2",
        "/flags/a~1b",
    ]


def test_no_more_faults_than_a_person_reads() -> None:
    """A body with a thousand faults is answered with fifty."""
    assert len(faults(b'{"name": "a", "items": [' + b"5," * 999 + b"5]}")) == 50


def test_duplicates_are_faults_beside_others() -> None:
    """A duplicate key is told also when something else is wrong."""
    assert [fault.pointer for fault in faults(b'{"name": 1, "name": 2}')] == ["/name", "/name"]


def _bracketed(signs: str, items: list[tuple[str, bool]]) -> tuple[str, bool]:
    return f"{signs[0]} {' , '.join(text for text, _ in items)} {signs[1]}", any(twice for _, twice in items)


def _object_of(pairs: list[tuple[str, tuple[str, bool]]]) -> tuple[str, bool]:
    keys = [key for key, _ in pairs]
    text, is_twice = _bracketed(
        "{}", [(f"{msgspec.json.encode(key).decode()} : {value}", twice) for key, (value, twice) in pairs]
    )
    return text, is_twice or len(set(keys)) < len(keys)


_texts = st.text(st.sampled_from('ab:"\\/\n{}, '), max_size=4)
_written = st.recursive(
    st.one_of(st.integers(), st.none(), _texts).map(lambda value: (msgspec.json.encode(value).decode(), False)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: _bracketed("[]", items)),
        st.lists(st.tuples(_texts, inner), max_size=3).map(_object_of),
    ),
    max_leaves=12,
)


@given(_written)
def test_keys_given_twice_are_seen_at_any_depth(written: tuple[str, bool]) -> None:
    """Whatever the texts and blanks around them: JSON with a key given twice is never called unique, other JSON is."""
    text, has_twice = written
    assert keys_are_unique(text.encode()) is not has_twice


@pytest.mark.parametrize("body", [b"5", b"[]", b"null", b'"x"'])
def test_the_body_must_be_an_object(body: bytes) -> None:
    """Anything else is a fault of the body as a whole."""
    (fault,) = faults(body)
    assert fault.pointer == ""
    assert fault.detail.startswith("The body is")


def test_long_values_are_shown_short() -> None:
    """A value in a sentence has at most 60 characters, and none when its name is a secret's."""
    assert len(shown("x" * 1000)) == 60
    assert shown("hunter2", "db_password") == "hidden"


def test_pointers_escape() -> None:
    """Slashes and tildes in keys are escaped as RFC 6901 says."""
    assert pointer_to("a/b", 0, "c~d") == "/a~1b/0/c~0d"


def decoded_or_refused(struct: type[msgspec.Struct], body: bytes) -> object:
    """Return the struct, the faults or the sentence of a body that is not JSON; texts must be encodable."""
    decoder: Any = getattr(struct, "decode_body", lambda content: decode(content, struct))
    try:
        return decoder(body)
    except FaultyBodyError as error:
        return [fault.detail.encode() for fault in error.faults]
    except MalformedJsonError as error:
        return str(error).encode().decode()


STRUCTS = [
    observations.ObservationIn,
    observations.VerificationIn,
    observations.RetractionIn,
    predictions.PredictionsIn,
    recommendations.RecommendationIn,
    batch.BatchIn,
]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELD_NAMES = sorted({name for struct in STRUCTS for name in struct.__struct_fields__})


@given(
    body=st.binary(max_size=40)
    | st.dictionaries(st.sampled_from(FIELD_NAMES), JSON_VALUES, max_size=6).map(msgspec.json.encode)
)
@pytest.mark.parametrize("struct", STRUCTS)
def test_any_bytes_are_decoded_or_refused(struct: type[msgspec.Struct], body: bytes) -> None:
    """Whatever comes, the answer is a struct or one of the two refusals, and every fault can be encoded."""
    outcome = decoded_or_refused(struct, body)
    assert isinstance(outcome, struct | list | str)
    assert outcome != []


def test_every_request_struct_is_strict() -> None:
    """Every struct that a body is made of forbids unknown fields, and every float and int in it has both bounds."""
    _, components = msgspec.json.schema_components(STRUCTS)
    for name, schema in components.items():
        if schema.get("type") != "object":
            continue
        assert schema["additionalProperties"] is False, name
        for field, inner in schema["properties"].items():
            for option in inner.get("anyOf", [inner]):
                if option.get("type") in ("number", "integer"):
                    assert {"minimum", "exclusiveMinimum"} & set(option), f"{name}.{field}"
                    assert {"maximum", "exclusiveMaximum"} & set(option), f"{name}.{field}"
                if option.get("type") == "string" and "format" not in option and "enum" not in option:
                    assert "maxLength" in option, f"{name}.{field}"


def test_a_decoded_observation_is_what_was_posted() -> None:
    """Decoding and encoding again gives the same content."""
    body = {
        "hardware": {"gpu": "H200", "gpu_count": 1},
        "model": {"name": "m"},
        "engine": {"name": "vllm"},
        "outcome": "failed",
    }
    again = msgspec.to_builtins(decode(msgspec.json.encode(body), ObservationIn))
    assert {name: again[name] for name in ("outcome",)} == {"outcome": "failed"}
    assert again["hardware"]["gpu"] == "H200"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"since": "yesterday"}, 'since is "yesterday": expected a time with its zone, such as 2026-05-30T22:00:00Z.'),
        ({"since": "2026-05-30T22:00:00"}, "expected a time with its zone, such as 2026-05-30T22:00:00Z."),
        ({"pair_id": "x"}, 'pair_id is "x": expected a UUID.'),
    ],
)
def test_a_wrong_time_or_id_says_what_would_be_right(body: dict[str, str], wanted: str) -> None:
    """In words that a caller understands, not the decoder's."""
    (fault,) = faults_of(body, ObservationsQuery, strict=False)
    assert fault.detail.endswith(wanted)
