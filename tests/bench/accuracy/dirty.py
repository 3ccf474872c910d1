"""Simulated ledgers, clean and dirty: the rules that must hold, errors, coverage, and what became of the advice."""

from __future__ import annotations

from collections import Counter

from bench.report import Report, per_cent
from domain.dirty_tally import Tally, tally
from domain.dirty_world import KINDS, dirty_world

LEDGERS = 2_000
CLEAN_LEDGERS = 500
HEADS = ("ledgers", "count", "rules broken", "pool, median off", "in 90 %", "ok of answerable", "ok held", "stated")


def dirty(report: Report) -> None:
    """Print both kinds of ledger and hold the dirty ones against their bars."""
    report.section(f"Simulated ledgers, {LEDGERS:,} of them spoiled by one or two of: {', '.join(KINDS)}")
    clean = tally((seed, dirty_world(seed, 0)) for seed in range(CLEAN_LEDGERS))
    whole = tally((seed, dirty_world(seed)) for seed in range(LEDGERS))
    smallest = tally(((seed, dirty_world(seed)) for seed in range(CLEAN_LEDGERS)), "headroom")
    rows = [_row("clean", clean), _row("spoiled", whole)]
    rows += [_row(f"  with {kind}", whole.of_kind(kind)) for kind in KINDS]
    rows.append(_row("spoiled, smallest fraction asked for", smallest))
    report.table(HEADS, rows)
    _bars(report, whole)


def _row(name: str, found: Tally) -> tuple[str, ...]:
    return (
        name,
        str(len(found.judged)),
        str(len(found.broken)),
        per_cent(found.median_error),
        per_cent(found.coverage, 1),
        per_cent(found.share_ok, 1),
        f"{per_cent(found.success, 1)} of {len(found.oks)}",
        per_cent(found.stated, 1),
    )


def _bars(report: Report, found: Tally) -> None:
    rules = Counter(sentence.partition(":")[0] for _, sentence in found.broken)
    broken = ", ".join(f"{rule} {count} times" for rule, count in sorted(rules.items())) or "none broken"
    report.bar("spoiled ledgers: the rules hold in all", broken, is_met=not rules)
    for seed, sentence in found.broken[:10]:
        report.line(f"    ledger {seed}: {sentence}")
    error, unanswered = found.median_error, found.unanswered
    figure = f"{per_cent(error, 4)} of {len(found.errors)}, {unanswered} not predicted"
    report.bar("three clean starts: pool's median error <= 0.1 %", figure, is_met=error <= 0.001)
    figure = f"{per_cent(found.coverage, 1)} of {len(found.errors)}"
    report.bar("three clean starts: 90 % intervals hold >= 85 %", figure, is_met=found.coverage >= 0.85)
    figure = f"{per_cent(found.success, 1)} of {len(found.oks)}"
    report.bar("the first restart of an `ok` succeeds in >= 90 %", figure, is_met=found.success >= 0.90)
    figure = f"{per_cent(found.success, 1)}, stated {per_cent(found.stated, 1)}"
    report.bar("no less than the mean joint stated less 2 points", figure, is_met=found.success >= found.stated - 0.02)
    figure = f"{per_cent(found.share_ok, 1)} of {found.answerable}"
    report.bar("of answerable questions >= 60 % are `ok`", figure, is_met=found.share_ok >= 0.60)
    report.line("all answers: " + ", ".join(f"{count} {name}" for name, count in sorted(found.statuses.items())))
