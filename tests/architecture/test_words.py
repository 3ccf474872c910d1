"""Texts are written in plain technical English: phrases that were replaced once do not come back."""

from __future__ import annotations

import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".md", ".html", ".toml", ".yaml", ".json", ".css", ".js", ".j2", ""}
NOT_OURS = re.compile(r"(^|/)(data|vendor|fixtures)/|^docs/examples/.*\.log$|^LICENSE")

# phrase, what to write instead, a sentence that holds it
BANNED = [
    (r"\b[Ff]ates?\b", "result, outcome", "the fate of each start"),
    (r"(?<!/)\b[Ss]tands? on\b", "is based on", "An answer stands on three starts."),
    (r"\b[Ss]ettles\b|\bsettle (it|them|a|the)\b", "is compared with, is tied to", "the start settles the advice"),
    (r"\b[Mm]end(s|ed|ing)?\b", "correct, fix, repair", "Mend the request."),
    (r"\bcannot be meant\b", "is impossible, is invalid", "What cannot be meant is refused."),
    (
        r"(?<![Tt]here )(?<![Tt]here)\b(is|are) no (number|version|value|file|folder|engine|port|link|text|answer)\b",
        "is not a ...",
        "'x' is no number of tokens",
    ),
    (r"\bany more\b(?! \w+ than)", "no longer", "the token opens nothing any more"),
    (r"\bfor ever\b", "without end, without expiry, always", "valid for ever"),
    (r"Look at: nothing", "nothing to check", "Look at: nothing"),
    (r"\d ?(s|ms|us|µs|seconds|GiB|MiB|kB|bytes) an? [a-z]", "per", "66 us a line"),
    (r"\d (lines|starts|posts|answers|requests|tokens) a (second|minute|day)", "per", "200 lines a second"),
    (r"\b(lines|starts|posts|requests|tokens|answers) a second\b", "per second", "150 requests a second"),
    (r"\bin small letters\b", "in lower case", "written in small letters"),
    (r"\bbeyond any sense\b", "implausible", "a figure beyond any sense"),
    (r"\bnever verified -", "never verified: no figure", "never verified -"),
    (r"\bone start \(\d+\)", "give the number once", "one start (4)"),
    (
        r"\b([Tt]he|[Ee]ach|[Ee]very|[Oo]ne|[Nn]o|an?|of|this|these|\d+|eight|[Aa]ll|AMD|NVIDIA) cards?\b(?![`(]| =)",
        "GPU",
        "eight cards, and no card is free",
    ),
    (r"\b[Tt]ells? of\b", "shows, says about", "a log tells of two starts"),
    (r"\b[Ss]peaks? (against|for)\b", "contradicts, supports", "nothing speaks against it"),
    (r"\bheld against\b", "compared with", "The rate is held against its bar."),
    (
        r"\b(engine|server|pod|container) (dies|died)\b",
        "crashes, runs out of memory",
        "the engine died",
    ),
    (r"\b([Aa]|[Ii]ts|no|another|the|two) neighbours?\b", "another process", "with a neighbour on the GPU"),
    (r"\bcannot be had\b", "cannot be reached", "the service cannot be had"),
    (r"\b(is|are) meant by\b", "matches", "Several models are meant by qwen."),
    (r"\bwhyever\b", "for whatever reason", "a file that fails, whyever, is named"),
    (r"\b[Pp]uts? wrong \w+ right\b|\b[Pp]ut wrong .{1,30} right\b", "correct", "Put wrong facts of a start right."),
]
CARDS = re.compile(r"^(_?cards?|CARDS?|Card|\w+_cards?|card_\w+|\w+Card)$")
MODEL_CARDS = ("clients/python/kvyield/engines/endpoints.py", "tests/standin/answers.py")
"""The engines' /v1/models answers with model cards."""


def texts() -> list[Path]:
    """Return the files of the repository that hold our own words."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in listed.splitlines() if not NOT_OURS.search(name)]
    return [path for path in paths if path.suffix in SUFFIXES and path.is_file() and path != Path(__file__).resolve()]


def found(text: str) -> list[str]:
    """Return each banned phrase in a text with its line and what to write instead."""
    flat = re.sub(r"[ \t]*\n[ \t]*(#[ \t]*)?", " ", text)
    flat = re.sub(r"def test_\w+", lambda name: name.group(0).replace("_", " "), flat)
    return [f"{hit.group(0)!r}: write {instead!r}" for it, instead, _ in BANNED for hit in re.finditer(it, flat)]


def test_no_text_has_a_banned_phrase() -> None:
    """Each file is free of them, also where a phrase runs over the end of a line."""
    faults = {str(path.relative_to(ROOT)): found(path.read_text(encoding="utf-8")) for path in texts()}
    assert {name: said for name, said in faults.items() if said} == {}


def test_the_texts_that_people_read_are_among_the_files() -> None:
    """A filter that left them out would make the check pass on nothing."""
    names = {str(path.relative_to(ROOT)) for path in texts()}
    assert names >= {
        "README.md",
        "CHANGELOG.md",
        "docs/problems.md",
        "clients/python/README.md",
        "clients/python/kvyield/cli/_options.py",
        "service/kvyield_server/domain/advice/words.py",
        "service/kvyield_server/pages/templates/advice.html",
    }


def test_no_name_in_code_calls_a_gpu_a_card() -> None:
    """GPU is the word in code too."""
    found: dict[str, set[str]] = {}
    for path in texts():
        name = str(path.relative_to(ROOT))
        if path.suffix == ".py" and name not in MODEL_CARDS:
            with path.open("rb") as file:
                names = {token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.NAME}
            found[name] = {each for each in names if CARDS.match(each)}
    assert len(found) > 300
    assert {name: names for name, names in found.items() if names} == {}
    assert all(CARDS.match(name) for name in ("card", "nvml_cards", "CARDS", "FakeCard", "card_facts", "_card"))
    assert not any(CARDS.match(name) for name in ("discard", "wildcard", "cardinality"))


@pytest.mark.parametrize(("phrase", "instead", "example"), BANNED)
def test_the_check_finds_each_phrase(phrase: str, instead: str, example: str) -> None:
    """A phrase that comes back is found, on one line and over two; its replacement is not."""
    assert found(example)
    assert found(example.replace(" ", "\n    # ", 1))
    assert found("def test_nothing_is_for_ever():")
    assert not re.search(phrase, instead)
