"""36 logs and excerpts from public sources: every value that a log holds is right, and none is invented."""

from __future__ import annotations

import io
from typing import Any

from kvyield.engines import read_starts

PUBLISHED = {
    "pool_tokens": "pool_tokens",
    "kv_gb": "kv_cache_gib",
    "avail_before_load_gb": "free_before_load_gib",
    "avail_after_load_gb": "free_after_load_gib",
    "weight_gb": "weights_gib",
    "avail_after_pool_gb": "free_at_pool_end_gib",
    "final_available_gpu_mem_gb": "free_at_ready_gib",
}
FRACTION = ("mem_fraction_static", "gpu_memory_utilization", "free_gpu_memory_fraction", "cache_max_entry_count")
ENDS_EARLY = (
    "sg-24gbx2-qwen35-9b",
    "sg-3gpu-uneven-dcp",
    "sg-4080-gpt2-kvcached",
    "sg-96gb-dsv4-two-runs-mixed",
    "sg-mi355x8-glm5-fp8kv",
    "sg-swa-dup-tp2",
    "trt-32gb-llama31-8b",
    "vl-14gb-15b-050",
    "vl-24gb-unsloth-078",
    "vl-48gb-unsloth-078",
    "vl-7b-abridged",
    "vl-80gb-phi4-bnb-070",
    "vl-ansi-llama3-8b-4096",
    "vl-ascend-qwen3vl8b-new",
    "vl-b12x-dcp4-ok",
    "vl-gb10-dsv4-hma",
    "vl-gb10-spec-085",
    "vl-ray-pp1tp0-line",
    "vl-spec-padding-negative-graph",
    "vl-tp2-11351",
)
NOT_IN_THE_LOG = {
    ("sg-a800x2-refused-012", "fraction"): "told beside the log",
    ("sg-hip-oom-prefill-088", "fraction"): "told beside the log",
    ("sg-mamba-pdmux-082", "fraction"): "told beside the log",
    ("sg-uma-ornith-fp8-080", "fraction"): "told beside the log",
    ("vl-ascend-qwen3vl8b-new", "fraction"): "told beside the log",
    ("vl-ascend-qwen3vl8b-oom", "fraction"): "told beside the log",
    ("vl-b12x-dcp4-ok", "fraction"): "told beside the log",
    ("vl-c500-lfm2-1024-050", "fraction"): "told beside the log",
    ("vl-c500-lfm2-1024-050", "pool_tokens"): "told beside the log",
    ("vl-c500-lfm2-1024-050", "kv_gb"): "told beside the log",
    ("vl-c500-lfm2-1024-050", "outcome"): "the log holds three warnings and no figure",
    ("vl-b12x-dcp4-fail", "outcome"): "the log names an illegal access, not a lack of memory: failed",
    ("vl-6gb-wsl-int4-negative", "kv_gb"): "negative: evidence of the refusal, no size of a pool",
    ("sg-notebook-llama31-lora", "outcome"): "the log ends after the weights: unfinished",
    ("sg-mi355x8-glm5-fp8kv", "avail_after_pool_gb"): "3.9 is rank 0's; the least over ranks is 3.88",
    **{(name, "outcome"): "the log ends before the engine is up: unfinished" for name in ENDS_EARLY},
}
OUTCOMES = {"ok": "ready", "refused": "refused", "oom_runtime": "oom_runtime", "oom_startup": "oom_startup"}


def read(case: Any) -> list[Any]:
    return list(read_starts(io.BytesIO(case.log), engine=case.known["engine"]))


def test_values_are_exactly_those_of_the_log(public, view_of):
    """Outcome, time, flags, measurements and failure of each start are those expected, no more and no fewer."""
    assert len(public) == 36
    for case in public:
        starts = read(case)
        expected = case.known["starts"]
        assert len(starts) == len(expected), case.name
        for start, known in zip(starts, expected, strict=True):
            seen = view_of(start)
            seen["failure"].pop("message", None)
            assert {name: seen[name] for name in ("engine", "outcome", "flags", "measurements", "failure")} == {
                name: known[name] for name in ("engine", "outcome", "flags", "measurements", "failure")
            }, case.name
            assert (start.observed_at.isoformat() if start.observed_at else None) == known["observed_at"], case.name
            assert start.contradictions == [], case.name


def test_values_agree_with_what_was_published(public, published, capsys):
    """Each published figure is the one read, except where the log does not hold it, for a reason that is listed."""
    cases = {case.name: case for case in public}
    rows, used = [], set()
    for known in published:
        starts = read(cases[known["id"]])
        row = compare(known, starts[0] if starts else None)
        used |= {(known["id"], name) for name, agrees in row.items() if agrees is False}
        rows.append((known["id"], row))
    with capsys.disabled():
        print(table(rows))
    assert used == set(NOT_IN_THE_LOG)


def compare(known: dict[str, Any], start: Any) -> dict[str, bool]:
    """Per published figure whether the same was read."""
    found = {"outcome": start is not None and start.outcome == OUTCOMES[known["outcome"]]}
    for name, wire in PUBLISHED.items():
        if name in known:
            item = start.measurements.get(wire) if start else None
            found[name] = item is not None and abs(item.value - known[name]) < 1e-6
    if "fraction" in known:
        flags = [start.flags[name].value for name in FRACTION if name in start.flags] if start else []
        found["fraction"] = flags == [known["fraction"]]
    return found


def table(rows: list[tuple[str, dict[str, bool]]]) -> str:
    """One line a log: what was read as published, and what the log does not hold, with the reason."""
    lines = ["", f"{'log':34s} read as published / listed reason"]
    for name, row in rows:
        agreed = " ".join(field for field, agrees in row.items() if agrees)
        others = "; ".join(
            f"{field}: {NOT_IN_THE_LOG.get((name, field), 'UNEXPECTED')}" for field, ok in row.items() if not ok
        )
        lines.append(f"{name:34s} {agreed}" + (f"  [{others}]" if others else ""))
    return "\n".join(lines)


def test_every_value_names_its_line(public):
    """Each value says which line it came from, and that line is in the log."""
    for case in public:
        lines = case.log.decode("utf-8", "replace").split("\n")
        for start in read(case):
            for name, item in {**start.flags, **start.measurements}.items():
                if item.source.startswith("line "):
                    number = int(item.source[5:].partition(":")[0])
                    assert 1 <= number <= len(lines), (case.name, name)
                else:
                    assert item.source.startswith("time of") or item.source == "default", (case.name, name, item.source)
