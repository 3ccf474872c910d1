"""Verification prompts: length, the hidden fact, and that no two share a beginning."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvyield.verify._prompt import Rate, build_prompt, fit_prompt, is_answered, is_close
from kvyield.verify._words import VOCABULARY

SEEDS = st.integers(0, 2**62)


def by_letters(letters: int, opening: int) -> Callable[[str], int]:
    pattern = re.compile(rf" ?[A-Za-z]{{1,{letters}}}|[^A-Za-z]")
    return lambda text: opening + len(pattern.findall(text))


@settings(deadline=None)
@given(tokens=st.integers(2500, 30_000), seed=SEEDS, letters=st.integers(1, 9), opening=st.integers(0, 40))
def test_the_asked_number_of_tokens_is_reached_and_never_exceeded(
    tokens: int, seed: int, letters: int, opening: int
) -> None:
    """Whatever the tokenizer makes of a word, the prompt has at most what was asked, and over 99.5 % of it."""
    count = by_letters(letters, opening)
    prompt, counted = fit_prompt(tokens, seed, count)
    assert counted == count(prompt.text)
    assert 0.995 * tokens <= counted <= tokens


@settings(deadline=None)
@given(words=st.integers(0, 3000), seed=SEEDS)
def test_the_fact_is_there_once_and_holds_the_only_number(words: int, seed: int) -> None:
    """Nothing else in the text can be taken for the answer, and the answer is nowhere but in the fact."""
    prompt = build_prompt(words, seed)
    assert prompt.text.count(prompt.fact) == 1
    assert re.findall(r"\d+", prompt.text) == [prompt.expected]


@settings(deadline=None)
@given(words=st.integers(600, 3000), seed=SEEDS)
def test_the_fact_lies_at_its_depth(words: int, seed: int) -> None:
    """The depth is a share of the filler, from the first sentence to the last."""
    prompt = build_prompt(words, seed)
    before = len(prompt.text[: prompt.text.index(prompt.fact)].split()) - 30
    assert before / words == pytest.approx(prompt.depth, abs=0.05)


@settings(deadline=None)
@given(first=SEEDS, second=SEEDS)
def test_two_seeds_share_no_beginning(first: int, second: int) -> None:
    """A prefix cache finds at most a few words of one prompt in another."""
    words = zip(build_prompt(50, first).text.split(), build_prompt(50, second).text.split(), strict=False)
    shared = list(takewhile(lambda pair: pair[0] == pair[1], words))
    assert first == second or len(shared) <= 4


@settings(deadline=None)
@given(words=st.integers(0, 500), more=st.integers(0, 500), seed=SEEDS)
def test_a_seed_gives_one_text_and_a_longer_one_adds_to_it(words: int, more: int, seed: int) -> None:
    """The same seed and length give the same text; a longer one has all the words of the shorter."""
    short, long = build_prompt(words, seed), build_prompt(words + more, seed)
    assert short == build_prompt(words, seed)
    assert long.expected == short.expected
    assert set(re.findall(r"\w+", short.text)) <= set(re.findall(r"\w+", long.text))


def test_depths_cover_the_whole_text() -> None:
    """Over many seeds the fact is found in every tenth of the text."""
    assert {int(build_prompt(0, seed).depth * 10) for seed in range(300)} == set(range(10))


@pytest.mark.parametrize(
    ("received", "answered"),
    [(" {n}.", True), ("**{n}**", True), ("it is {n}, I think", True), ("1{n}", False), ("{n}0", False), ("", False)],
)
def test_an_answer_holds_the_number_as_a_number_of_its_own(received: str, answered: bool) -> None:
    """Words around the number do not matter; a longer number that holds it is wrong."""
    prompt = build_prompt(100, 7)
    assert is_answered(prompt, received.format(n=prompt.expected)) is answered


def test_too_few_tokens_for_the_frame_are_refused() -> None:
    """A prompt shorter than its own question cannot be made."""
    with pytest.raises(ValueError, match="too few"):
        fit_prompt(20, 1, lambda text: len(text.split()))


def test_few_counts_are_asked_for() -> None:
    """A count of a long prompt costs the server time: a handful does, however the first guess was."""
    asked: list[int] = []

    def count(text: str) -> int:
        asked.append(len(text))
        return len(re.findall(r" ?[A-Za-z]{1,4}|[^A-Za-z]", text))

    first, _ = fit_prompt(50_000, 1, count)
    assert len(asked) <= 6
    asked.clear()
    fit_prompt(50_000, 2, count, first.words)
    assert len(asked) <= 5


def test_a_line_through_one_prompt_predicts_another() -> None:
    """The vocabulary is dealt out evenly, so tokens are a straight line in words to 0.5 %."""
    count = by_letters(5, 3)
    frame = Rate(frame_tokens=count(build_prompt(0, 1).text))
    rate = frame.through(1500, count(build_prompt(1500, 2).text))
    made = count(build_prompt(rate.words(120_000), 3).text)
    assert is_close(made, 120_000)


def test_the_vocabulary_is_plain() -> None:
    """Words are different, lower case, and have no digits."""
    assert len(set(VOCABULARY)) == len(VOCABULARY) > 250
    assert all(re.fullmatch(r"[a-z]{2,10}", word) for word in VOCABULARY)
