"""Words of a shell's line with their places, and a text in which some words are replaced and the rest is as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvyield._errors import TuneError

BLANKS = " \t\r\n"


@dataclass(frozen=True)
class Span:
    """A word: what it says, and where it stands in the text."""

    text: str
    begin: int
    end: int


def shell_words(text: str, begin: int = 0, end: int | None = None) -> list[Span]:
    """The words of a part of a text as a POSIX shell splits them; comments are none.

    What a shell or docker compose would replace (``$X``, ``${X:-a b}``, ``$(x y)``) stays as written, in one word.

    Raises:
        TuneError: a quote does not end.
    """
    found: list[Span] = []
    at, stop = begin, len(text) if end is None else end
    while at < stop:
        if text[at] in BLANKS:
            at += 1
        elif text.startswith(("\\\n", "\\\r\n"), at):
            at = text.index("\n", at) + 1
        elif text[at] == "#":
            after = text.find("\n", at, stop)
            at = stop if after < 0 else after
        else:
            word, after = _shell_word(text, at, stop)
            found.append(Span(word, at, after))
            at = after
    return found


def _shell_word(text: str, at: int, stop: int) -> tuple[str, int]:
    word, quote = "", ""
    while at < stop and (quote or text[at] not in BLANKS):
        sign, following = text[at], text[at + 1 : min(at + 2, stop)]
        if sign == "\\" and quote != "'" and following:
            if not quote and following == "\n":
                if not text[at + 2 : at + 3].strip(BLANKS):
                    break
                at += 2
                continue
            word += following if not quote or following in '"\\$`' else sign + following
            at += 2
            continue
        if sign == "$" and quote != "'" and following in ("{", "("):
            after = _replaced_end(text, at + 1, stop)
            word += text[at:after]
            at = after
            continue
        if sign == quote:
            quote = ""
        elif not quote and sign in "\"'":
            quote = sign
        else:
            word += sign
        at += 1
    if quote:
        raise TuneError(f"a quote {quote} does not end: {text[max(0, stop - 60) : stop]!r}")
    return word, at


def _replaced_end(text: str, at: int, stop: int) -> int:
    """Where a ``${...}`` or ``$(...)`` ends whose bracket is at ``at``; after the bracket when it does not end."""
    opening, closing = text[at], {"{": "}", "(": ")"}[text[at]]
    depth = 0
    for index in range(at, stop):
        depth += (text[index] == opening) - (text[index] == closing)
        if not depth:
            return index + 1
    return at + 1


@dataclass(frozen=True)
class Change:
    """Between two words that stay: those that go (indexes ``begin`` to ``end``) and those that come."""

    begin: int
    end: int
    words: tuple[str, ...]


def changes(number: int, argv: Sequence[str], origins: Sequence[int | None]) -> list[Change]:
    """What an edit does to ``number`` words; ``origins`` has for each of ``argv`` the one that it is, unchanged."""
    found: list[Change] = []
    new: list[str] = []
    before = 0
    for word, origin in [*zip(argv, origins, strict=True), ("", number)]:
        if origin is None:
            new.append(word)
            continue
        if new or origin > before:
            found.append(Change(before, origin, tuple(new)))
        new, before = [], origin + 1
    return found


def spliced(
    text: str, spans: Sequence[Span], argv: Sequence[str], origins: Sequence[int | None], quote: Callable[[str], str]
) -> str:
    """The text with other words; what stays, blanks and comments with it, stays byte for byte."""
    for change in reversed(changes(len(spans), argv, origins)):
        gone, words = spans[change.begin : change.end], [quote(word) for word in change.words]
        if len(gone) == len(words):
            for span, word in reversed([*zip(gone, words, strict=True)]):
                text = text[: span.begin] + word + text[span.end :]
        elif gone and words:
            text = text[: gone[0].begin] + " ".join(words) + text[gone[-1].end :]
        elif words and not spans:
            text = text + ("" if not text or text.endswith("\n") else "\n") + " ".join(words)
        elif words and change.begin:
            after = spans[change.begin - 1].end
            text = f"{text[:after]} {' '.join(words)}{text[after:]}"
        elif words:
            text = f"{text[: spans[0].begin]}{' '.join(words)} {text[spans[0].begin :]}"
        else:
            begin = spans[change.begin - 1].end if change.begin else gone[0].begin
            text = text[:begin] + text[gone[-1].end :]
    return text
