"""Real logs with what is known of them, and a view of a start without its sources."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvyield.engines import Start, read_starts

DATA = Path(__file__).parent / "data"

View = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A real log and what is known of it."""

    name: str
    log: bytes
    known: Mapping[str, Any]


def unpack(archive: str) -> dict[str, bytes]:
    """The files of a packed folder of logs by name."""
    with tarfile.open(DATA / archive) as packed:
        files = {member.name.removesuffix(".log"): packed.extractfile(member) for member in packed.getmembers()}
        return {name: file.read() for name, file in files.items() if file is not None}


def records(name: str) -> list[dict[str, Any]]:
    """The lines of a JSON lines file."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def view_of(start: Start) -> View:
    """Values without sources, and without what differs with the prefix: the place of a line in the file, the host."""
    groups = {"flags": start.flags, "measurements": start.measurements, "failure": start.failure, "facts": start.facts}
    values = {name: {key: item.value for key, item in group.items()} for name, group in groups.items()}
    values["facts"].pop("host", None)
    return {"engine": start.engine, "outcome": start.outcome, **values, "contradictions": len(start.contradictions)}


@pytest.fixture(scope="session")
def h200() -> list[Case]:
    """110 starts on one H200, each with the truth measured for it."""
    logs = unpack("h200_logs.tar.xz")
    return [Case(known["id"], logs[known["id"]], known) for known in records("h200_truth.jsonl")]


@pytest.fixture(scope="session")
def public() -> list[Case]:
    """36 logs and excerpts from public sources, each with every value that it holds."""
    logs = unpack("public_logs.tar.gz")
    return [Case(known["id"], logs[known["id"]], known) for known in records("public_expected.jsonl")]


@pytest.fixture(scope="session")
def published() -> list[dict[str, Any]]:
    """The public logs' figures as they were published, some of them from the text around the log."""
    return records("public_published.jsonl")


@pytest.fixture(scope="session", name="view_of")
def view_of_fixture() -> Callable[[Start], View]:
    """A start's values without their sources."""
    return view_of


@pytest.fixture(scope="session")
def view() -> Callable[[Iterable[bytes | str]], list[View]]:
    """Reads lines and shows each start's values."""

    def read(lines: Iterable[bytes | str], **options: Any) -> list[View]:
        return [view_of(start) for start in read_starts(lines, **options)]

    return read
