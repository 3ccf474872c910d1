"""Precision and recall of what a start ended of: real logs, and every known wording in every phase and wrapping.

Usage: PYTHONPATH=tests python tests/bench/bench_endings.py
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterator

from _endings import LIKELY_ENDINGS, NOTHING, STARTS, WRAPPINGS, log_of
from _figures import records, unpacked
from bench.report import Report, per_cent
from kvyield.engines import read_starts

OUT_OF_MEMORY = ("oom_startup", "oom_runtime")
KINDS = (*OUT_OF_MEMORY, "refused", "failed", "ready", "unfinished")
Pair = tuple[str, str]
"""A start's known outcome, and the one that was read."""


def main() -> int:
    report = Report("No end for want of GPU memory is missed, and nothing else is taken for one.")
    sets = (("real logs", list(real_logs())), ("wordings, phases, wrappings", list(wordings())))
    for title, pairs in sets:
        report.section(title)
        count = Counter(pairs)
        report.table(
            ("known", *(f"read {kind}" for kind in KINDS)),
            [(kind, *(count[kind, read] for read in KINDS)) for kind in KINDS],
        )
        for kind in OUT_OF_MEMORY:
            precision, recall = measured(pairs, kind)
            report.bar(f"{kind} precision", per_cent(precision, 1), is_met=precision == 1)
            report.bar(f"{kind} recall", per_cent(recall, 1), is_met=recall == 1)
    return report.close()


def real_logs() -> Iterator[Pair]:
    """Public reports, public logs and excerpts, and starts on one H200."""
    logs = unpacked("report_logs.tar.gz")
    for case in records("report_cases.jsonl"):
        known = case["holds"].get("outcome") or case["published"].get("outcome") or "ready"
        yield known, outcome_of(logs[case["id"]])
    logs = unpacked("public_logs.tar.gz")
    for case in records("public_expected.jsonl"):
        for start, known in zip(
            read_starts(io.BytesIO(logs[case["id"]]), engine=case["engine"]), case["starts"], strict=True
        ):
            yield known["outcome"], start.outcome
    logs = unpacked("h200_logs.tar.xz")
    ends = {"c7_sgl_q8_fine0.99": "oom_startup", "c8_vllm_q8_f0.2": "refused"}
    for case in records("h200_truth.jsonl"):
        yield "ready" if case["ready"] else ends[case["id"]], outcome_of(logs[case["id"]])


def wordings() -> Iterator[Pair]:
    """Every wording after every phase of the engines that print it, in every wrapping."""
    for (engine, phase), wrapping in ((start, wrapping) for start in STARTS for wrapping in WRAPPINGS):
        for ending in (*LIKELY_ENDINGS, *NOTHING):
            if engine not in ending.engines or (ending.row == "stopped" and phase != "serving"):
                continue
            known = "failed" if ending.cause else "ready" if phase == "serving" else "unfinished"
            if ending.cause == "gpu_memory":
                known = "oom_runtime" if phase == "serving" else "oom_startup"
            yield known, outcome_of(b"".join(log_of(engine, phase, ending, wrapping=wrapping)))


def outcome_of(log: bytes) -> str:
    starts = list(read_starts(io.BytesIO(log)))
    return starts[-1].outcome if len(starts) == 1 else f"{len(starts)} starts"


def measured(pairs: list[Pair], kind: str) -> tuple[float, float]:
    """Precision and recall of one outcome."""
    hit = sum(known == read == kind for known, read in pairs)
    said, there = sum(read == kind for _, read in pairs), sum(known == kind for known, _ in pairs)
    return hit / said if said else 1.0, hit / there if there else 1.0


if __name__ == "__main__":
    sys.exit(main())
