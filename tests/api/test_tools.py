"""What agents are told: never more than a model should read, always JSON, whatever the answer is."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvyield_server.api.tools import MOST_CHARACTERS, TOOLS, Shape, problem_told, shortened, told
from kvyield_server.schemas.tools import input_schema

TEXT = st.text(max_size=40) | st.integers(0, 6_000).map(lambda size: "x" * size) | st.just('\\"\n\u2028' * 700)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(TEXT, inner, max_size=8),
    max_leaves=25,
)
OBJECTS = st.dictionaries(st.text(max_size=30), JSON, max_size=12)


@settings(deadline=None, max_examples=50)
@given(value=OBJECTS, first=TEXT, rest=st.none() | TEXT, cheap=st.lists(st.text(max_size=30), max_size=4))
def test_answers_are_short_and_whole_json(value: Any, first: str, rest: str | None, cheap: list[str]) -> None:
    """At most 4,000 characters, of which the JSON can be read; what fits is told whole, without a note."""
    text = told(Shape(value, first, cheap), rest)
    assert len(text) <= MOST_CHARACTERS
    body = text[min(len(first), 1_500) :].lstrip() if first else text
    read, _ = json.JSONDecoder().raw_decode(body)
    is_whole = read == json.loads(json.dumps(value))
    assert is_whole or "Left out for its length" in text


@settings(deadline=None, max_examples=40)
@given(value=JSON, most=st.integers(10, 3_000))
def test_what_is_shortened_fits(value: Any, most: int) -> None:
    """Halving ends, with a value that fits or that is empty."""
    short = shortened(value, most)
    assert not short or len(json.dumps(short, ensure_ascii=False, separators=(",", ":"))) <= most + 40


def test_a_problem_of_any_size_is_told() -> None:
    """The kind and the sentence are kept where fifty faults with long pointers are not."""
    faults = [{"pointer": f"/flags/{'p' * 200}{number}", "detail": "d" * 400} for number in range(50)]
    problem = {"type": "/problems/invalid", "title": "Invalid", "status": 422, "detail": "e" * 3_000, "errors": faults}
    answer = problem_told(problem)
    assert answer.is_error
    assert len(answer.text) <= MOST_CHARACTERS
    body = json.JSONDecoder().raw_decode(answer.text.split("\n\n", 1)[1])[0]
    assert body["type"] == "/problems/invalid"
    assert body["errors"][0]["pointer"].startswith("/flags/ppp")


def test_every_argument_is_described() -> None:
    """Each field of each tool, nested ones too, has a sentence, and no schema refers to another."""

    def undescribed(schema: Any, way: str) -> list[str]:
        if isinstance(schema, list):
            return [each for item in schema for each in undescribed(item, way)]
        if not isinstance(schema, dict):
            return []
        own = [f"{way}/{name}" for name, it in schema.get("properties", {}).items() if not it.get("description")]
        return own + [each for name, item in schema.items() for each in undescribed(item, f"{way}/{name}")]

    for tool in TOOLS:
        schema = input_schema(tool.arguments)
        assert schema["additionalProperties"] is False
        assert undescribed(schema, tool.name) == []
        assert "$ref" not in json.dumps(schema)
