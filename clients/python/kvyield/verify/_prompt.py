"""Verification prompts: plain words to an asked number of tokens, with one fact hidden at a random depth."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

from kvyield.verify._words import VOCABULARY

PREFIX_WORDS = 12
SENTENCE_WORDS = 12
PARAGRAPH_SENTENCES = 10
TOLERANCE = 0.005
MAX_COUNTS = 8
MAX_PADDING = 16

_PLACES = (
    "stone mill",
    "old harbour",
    "north gate",
    "glass house",
    "river camp",
    "copper mine",
    "grey tower",
    "salt barn",
)

Count = Callable[[str], int]
"""How many tokens the engine makes of a text."""


@dataclass(frozen=True)
class Prompt:
    """A text and what a model that read all of it answers. ``depth`` is where the fact is: 0 the start, 1 the end."""

    text: str
    fact: str
    expected: str
    depth: float
    words: int


def build_prompt(words: int, seed: int, *, padding: int = 0) -> Prompt:
    """A prompt with ``words`` words of filler, and ``padding`` short words after them.

    The same seed gives the same text; a longer one only adds words. It begins with words drawn from the seed, so that
    two seeds share no prefix, and holds one number, in one fact.
    """
    rng = Random(seed)  # noqa: S311 - a text that can be made again, not a secret
    prefix = " ".join(rng.choice(VOCABULARY) for _ in range(PREFIX_WORDS)).capitalize()
    place, expected, depth = rng.choice(_PLACES), str(rng.randrange(1000, 10_000)), rng.random()
    fact = f"The pass number of the {place} is {expected}."
    sentences = list(_sentences(words, rng))
    sentences.insert(int(depth * (len(sentences) + 1)), fact)
    body = _paragraphs(sentences) + " so" * padding
    text = (
        f"{prefix}.\n\nRead these notes with care. One of them gives a pass number, and you will be asked for it.\n\n"
        f"{body}\n\nQuestion: What is the pass number of the {place}? Reply with the number alone.\n"
        f"Answer: The pass number of the {place} is"
    )
    return Prompt(text, fact, expected, depth, words)


def is_answered(prompt: Prompt, received: str) -> bool:
    """Whether the answer holds the hidden number, as a number of its own."""
    return re.search(rf"(?<!\d){prompt.expected}(?!\d)", received) is not None


def fit_prompt(tokens: int, seed: int, count: Count, words: int | None = None) -> tuple[Prompt, int]:
    """A prompt of ``tokens`` tokens, or of a few less where that cannot be hit, and its count by the engine.

    ``words`` is a first guess, from another seed say; at most 9 counts are asked for. Raises ValueError when not even
    the frame fits.
    """
    guess = Rate().words(tokens) if words is None else words
    best: tuple[Prompt, int] | None = None
    tried: set[int] = set()
    while guess not in tried and len(tried) < MAX_COUNTS:
        prompt = build_prompt(guess, seed)
        counted = count(prompt.text)
        tried.add(guess)
        if counted <= tokens and (best is None or counted > best[1]):
            best = (prompt, counted)
        guess = min(2 * tokens, _next_guess(guess, counted, tokens))
    if best is None:
        raise ValueError(f"{tokens} tokens are too few for a verification prompt")
    return _padded(best, tokens, seed, count)


def _padded(best: tuple[Prompt, int], tokens: int, seed: int, count: Count) -> tuple[Prompt, int]:
    """Fills up the last few tokens with a word that is one token almost everywhere."""
    missing = tokens - best[1]
    if not 0 < missing <= MAX_PADDING:
        return best
    padded = build_prompt(best[0].words, seed, padding=missing)
    counted = count(padded.text)
    return (padded, counted) if best[1] < counted <= tokens else best


@dataclass(frozen=True)
class Rate:
    """Tokens of a prompt as a line in its words of filler: ``frame_tokens`` without any, chat template included."""

    tokens_per_word: float = 1.3
    frame_tokens: float = 90.0

    def words(self, tokens: int) -> int:
        """Words of filler that make about ``tokens`` tokens; two a token at most, whatever a server has counted."""
        return min(2 * tokens, max(0, int((tokens - self.frame_tokens) / self.tokens_per_word)))

    def through(self, words: int, tokens: int) -> Rate:
        """The line with the same frame through a prompt of ``words`` that the engine counted as ``tokens``."""
        return Rate(max(0.1, (tokens - self.frame_tokens) / max(words, 1)), self.frame_tokens)


def is_close(counted: int, tokens: int) -> bool:
    """Whether a count is within 0.5 % of what was asked."""
    return abs(counted - tokens) <= TOLERANCE * tokens


def _next_guess(words: int, counted: int, tokens: int) -> int:
    """Moves by what is missing at the rate so far, by one word at least, and never below no filler."""
    missing = tokens - counted
    step = int(missing / Rate().through(words, counted).tokens_per_word)
    return max(0, words + (step or (1 if missing > 0 else -1)))


def _sentences(words: int, rng: Random) -> Iterator[str]:
    """Sentences of twelve words; every word comes once before any comes again, so the tokens a word hardly vary."""
    stream = _shuffled_for_ever(rng)
    for start in range(0, words, SENTENCE_WORDS):
        yield " ".join(islice(stream, min(SENTENCE_WORDS, words - start))).capitalize() + "."


def _shuffled_for_ever(rng: Random) -> Iterator[str]:
    deck = list(VOCABULARY)
    while True:
        rng.shuffle(deck)
        yield from deck


def _paragraphs(sentences: list[str]) -> str:
    steps = range(0, len(sentences), PARAGRAPH_SENTENCES)
    return "\n".join(" ".join(sentences[start : start + PARAGRAPH_SENTENCES]) for start in steps)
