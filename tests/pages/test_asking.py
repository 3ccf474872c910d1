"""The advice form: lenient about how numbers are typed, strict about what they mean."""

from __future__ import annotations

from uuid import UUID

import pytest

from kvyield_server.pages.asking import Asked, asked, default_target, is_asked

PAIR = UUID(int=9)


def ask(**given: str) -> Asked:
    return asked(given, pair_id=PAIR, like=None, default_target=32_768)


@pytest.mark.parametrize("typed", ["200000", "200,000", "200 000", "200_000", " 200'000 ", "200\u202f000"])
def test_thousands_may_be_set_apart(typed: str) -> None:
    """All common ways to set thousands apart mean the same number."""
    question = ask(target_tokens=typed).question
    assert question is not None
    assert question.target_tokens == 200_000


def test_empty_fields_are_not_said() -> None:
    """An empty form asks for the default target at 95 % and holds no flag."""
    question = ask(target_tokens="", max_running_requests=" ", kv_cache_dtype="").question
    assert question is not None
    assert (question.target_tokens, question.confidence, question.max_running_requests) == (32_768, 0.95, None)
    assert question.kv_cache_dtype is None


@pytest.mark.parametrize(
    ("field", "typed"),
    [
        ("target_tokens", "many"),
        ("target_tokens", "0"),
        ("target_tokens", "1e400"),
        ("confidence", "1"),
        ("confidence", "nan"),
        ("concurrent", "-3"),
        ("prompt_need_gib", "inf"),
        ("kv_cache_dtype", "fp8; rm -rf /"),
    ],
)
def test_a_fault_is_said_beside_its_field(field: str, typed: str) -> None:
    """An impossible value gives a sentence for that field, keeps what was typed, and asks nothing."""
    form = ask(**{field: typed})
    assert form.question is None
    assert list(form.faults) == [field]
    assert form.values[field] == typed


def test_fields_that_are_not_in_the_form_are_ignored() -> None:
    """The page's other parameters, such as filters of the history, never reach the question."""
    assert ask(outcome="ready", pair_id="x").question is not None


def test_a_question_is_asked_by_a_field_of_the_form() -> None:
    """A deployment, a filter or an empty field asks nothing; any field that is said does."""
    assert not is_asked({"deployment": "x", "outcome": "ready", "target_tokens": " "})
    assert is_asked({"target_tokens": "150000"})
    assert is_asked({"concurrent": "2"})


def test_the_target_begins_with_what_runs_now() -> None:
    """The running context length is the first target; 7 tokens that SGLang keeps do not make it longer each time."""
    assert default_target({"context_length": 200_007}, 1) == 200_000
    assert default_target({"max_model_len": 40_960}, 1) == 40_960
    assert default_target({"context_length": True}, 101_134) == 101_134
    assert default_target({}, None) == 32_768
