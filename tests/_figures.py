"""Every figure that real logs hold, against what the readers make of them: right, wrong, missing or invented.

Three sets: 25 logs of public reports with the values that were published for them and every value that they hold, 36
logs and excerpts of public sources with every value that they hold, and 110 starts on one H200 with what was measured.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvyield.assemble import Extras, assemble
from kvyield.engines import Sourced, Start, read_starts

DATA = Path(__file__).parent / "clients" / "engines" / "data"
PRINTED = 0.0051
NOT_COMPARED = {"measurements.startup_seconds", "failure.message"}
Verdict = Literal["right", "wrong", "missing", "invented"]


@dataclass(frozen=True)
class Figure:
    """One value of one log."""

    case: str
    name: str
    known: object
    read: object
    verdict: Verdict


def figures() -> Iterator[Figure]:
    """All figures of all sets."""
    yield from report_figures()
    yield from public_figures()
    yield from h200_figures()


def report_figures() -> Iterator[Figure]:
    """Public reports: the published values, and every value that the log holds; the options are a person's."""
    logs = unpacked("report_logs.tar.gz")
    for case in records("report_cases.jsonl"):
        (start,) = read_starts(io.BytesIO(logs[case["id"]]))
        options = {name: Sourced(value, "option") for name, value in case["options"].items()}
        flags = {name: Sourced(value, "option") for name, value in case["flags"].items()}
        draft = assemble(start, Extras(options=options, flags=flags)).draft
        found = flat(draft)
        yield from compared(case["id"], case["published"], found, closed=False)
        yield from compared(case["id"], case["holds"], found, closed=True)


def public_figures() -> Iterator[Figure]:
    """Logs and excerpts, with every value that they hold."""
    logs = unpacked("public_logs.tar.gz")
    for case in records("public_expected.jsonl"):
        starts = list(read_starts(io.BytesIO(logs[case["id"]]), engine=case["engine"]))
        for index, known in enumerate(case["starts"]):
            expected = {"outcome": known["outcome"]} | grouped(known)
            found = view(starts[index]) if index < len(starts) else {}
            yield from compared(f"{case['id']} {index + 1}", expected, found, closed=True)


def h200_figures() -> Iterator[Figure]:
    """What was measured beside each start on an H200, and the outcome."""
    logs = unpacked("h200_logs.tar.xz")
    for known in records("h200_truth.jsonl"):
        (start,) = read_starts(io.BytesIO(logs[known["id"]]))
        expected = {"measurements.pool_tokens": known.get("pool_tokens")} | _measured(known)
        yield from compared(
            known["id"], {k: v for k, v in expected.items() if v is not None}, view(start), closed=False
        )


def _measured(known: Mapping[str, Any]) -> dict[str, object]:
    log = known["log"]
    if known["engine"] == "vllm":
        names = {"kv_cache_gib": "v_avail_kv", "weights_gib": "v_load", "graph_gib": "v_graph"}
    else:
        names = {
            "free_before_load_gib": "load_begin",
            "free_after_load_gib": "load_end",
            "free_at_pool_end_gib": "pool_end",
            "free_at_ready_gib": "avail_final",
            "weights_gib": "load_mem",
        }
    return {f"measurements.{name}": log.get(told) for name, told in names.items()}


def compared(case: str, known: Mapping[str, Any], found: Mapping[str, Any], *, closed: bool) -> Iterator[Figure]:
    """Verdicts on known values; ``closed``: the log holds no other measurement or failure figure than those known."""
    for name, value in known.items():
        read = found.get(name)
        verdict: Verdict = "right" if same(value, read) else "missing" if read is None else "wrong"
        yield Figure(case, name, value, read, verdict)
    for name, read in found.items() if closed else ():
        if (
            name not in known
            and name not in NOT_COMPARED
            and read is not None
            and not name.startswith(("model", "eng"))
        ):
            yield Figure(case, name, None, read, "invented")


def same(known: object, read: object) -> bool:
    """Equal, or within the digits that the publication printed."""
    if isinstance(known, float) and isinstance(read, int | float):
        return abs(known - read) <= PRINTED
    return known == read


def flat(draft: Mapping[str, Any]) -> dict[str, Any]:
    """An observation's values by path."""
    named = {
        "outcome": draft["outcome"],
        "model.name": draft["model"]["name"],
        "engine.version": draft["engine"]["version"],
    }
    return named | grouped({name: draft[name] or {} for name in ("flags", "measurements", "failure")})


def view(start: Start) -> dict[str, Any]:
    """A start's values by path."""
    groups = {"flags": start.flags, "measurements": start.measurements, "failure": start.failure}
    values = {name: {key: item.value for key, item in group.items()} for name, group in groups.items()}
    return {"outcome": start.outcome} | grouped(values)


def grouped(values: Mapping[str, Any]) -> dict[str, Any]:
    """Paths such as ``measurements.pool_tokens``, without what is not compared."""
    paths = {
        f"{group}.{key}": values[group][key] for group in ("flags", "measurements", "failure") for key in values[group]
    }
    return {path: value for path, value in paths.items() if path not in NOT_COMPARED}


def tally(found: list[Figure]) -> Counter[str]:
    """How many figures are right, wrong, missing and invented."""
    return Counter(figure.verdict for figure in found)


def unpacked(archive: str) -> dict[str, bytes]:
    """The files of a packed folder of logs by name, without ``.log``."""
    with tarfile.open(DATA / archive) as packed:
        files = {member.name.removesuffix(".log"): packed.extractfile(member) for member in packed.getmembers()}
        return {name: file.read() for name, file in files.items() if file is not None}


def records(name: str) -> list[dict[str, Any]]:
    """The lines of a JSON lines file."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]
