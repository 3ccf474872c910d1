"""The 110 starts measured on one H200: leave one out, two starts, one start."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from bench.accuracy.errors import HEADS, Errors, ask, fit_of
from bench.report import Report, middle, per_cent, share_of
from domain.real_starts import h200_ladder, h200_starts
from kvyield_server.domain.facts.observation import Observation

LADDERS = (("qwen3-8b", "sglang"), ("dsv2-lite", "sglang"), ("qwen3-8b", "vllm"))


def h200(report: Report, public_points: Errors) -> None:
    """Print what the measured starts say, and coverage over all real points."""
    left_out = _left_out(report)
    _from_two(report)
    _from_one(report)
    report.section("Coverage over all real left-out points")
    left_out.merge(public_points)
    covered = share_of(left_out.inside)
    figure = f"{sum(left_out.inside)} of {left_out.count} = {per_cent(covered, 1)}"
    report.bar("all real points: 90 % intervals hold at least 85 %", figure, is_met=covered >= 0.85)


def _left_out(report: Report) -> Errors:
    report.section("110 H200 starts, each left out and predicted from all others of its model")
    starts, everything = list(h200_starts().values()), Errors()
    sums: dict[str, Errors] = {}
    silent: list[str] = []
    for other in starts:
        rest = [each for each in starts if each.model.name == other.model.name and each is not other]
        answer = ask(fit_of(rest), other)
        if answer is None:
            silent.append(f"{_name(other)} ({other.outcome.value}, recorded no pool)")
            continue
        errors = sums.setdefault(_kind(other, starts), Errors())
        if answer.estimate is None:
            silent.append(f"{_name(other)}: not enough evidence")
        for each in (errors, everything):
            each.add(answer.estimate, answer.truth, allowed=answer.page)
    rows = [(name, *errors.cells()) for name, errors in sorted(sums.items())]
    report.table(("left out of", *HEADS), [*rows, ("all", *everything.cells())])
    report.line("No prediction to compare: " + ("; ".join(silent) or "none"))
    return everything


def _kind(start: Observation, starts: Sequence[Observation]) -> str:
    """Name the comparison: were the same pool flags at another fraction in the ledger, or only relatives?"""
    if any(name in start.flags and start.flags[name] is not None for name in ("max_total_tokens",)):
        return f"{_label(start)}, pool capped by a flag"
    twins = [each for each in starts if each is not start and _same_line(each, start)]
    if any(each.fraction != start.fraction for each in twins):
        return f"{_label(start)}, same flags at other fractions"
    return f"{_label(start)}, flags that no other fraction had"


def _same_line(one: Observation, other: Observation) -> bool:
    keys = ({*one.flags, *other.flags}) - {"mem_fraction_static", "gpu_memory_utilization"}
    same = one.model.name == other.model.name and one.engine.name == other.engine.name
    return same and all(one.flags.get(key) == other.flags.get(key) for key in keys)


def _label(start: Observation) -> str:
    return f"{start.model.name}, {start.engine.name.value}"


def _name(start: Observation) -> str:
    return next(name for name, each in h200_starts().items() if each is start)


def _from_two(report: Report) -> None:
    report.section("H200 ladders: any two starts 0.02 or more apart predict all others of the same flags")
    rows, over = [], 0
    for model, engine in LADDERS:
        ladder, errors = h200_ladder(model, engine), Errors()
        for low, high in combinations(ladder, 2):
            spacing = (high.fraction or 0.0) - (low.fraction or 0.0)
            if spacing < 0.0199:
                continue
            pair = fit_of((low, high))
            for other in ladder:
                answer = ask(pair, other)
                if other in (low, high) or answer is None:
                    continue
                distance = min(abs((other.fraction or 0.0) - (end.fraction or 0.0)) for end in (low, high))
                errors.add(answer.estimate, answer.truth, allowed=2 + distance / spacing)
        over += sum(off > 0 for off in errors.beyond) if engine == "sglang" else 0
        rows.append((f"{model}, {engine}", *errors.cells()))
    report.table(("ladder", *HEADS), rows)
    report.bar("SGLang: within 2 + distance / spacing tokens", f"{over} predictions beyond it", is_met=over == 0)


def _from_one(report: Report) -> None:
    report.section("H200 ladders: one start with its own memory lines predicts all others")
    rows, found = [], {}
    for model, engine in LADDERS:
        for least in (0.5, 0.0) if engine == "sglang" else (0.0,):
            errors = _one_start(h200_ladder(model, engine), least)
            found[engine, model, least] = errors
            rows.append((f"{model}, {engine}, from {least}", *errors.cells()))
    report.table(("ladder", *HEADS), rows)
    for model in ("qwen3-8b", "dsv2-lite"):
        errors = found["sglang", model, 0.5]
        half, worst = middle(errors.relative), max(errors.relative)
        report.bar(f"{model}, SGLang, from 0.5: median <= 0.03 %", per_cent(half, 4), is_met=half <= 0.0003)
        report.bar(f"{model}, SGLang, from 0.5: worst <= 0.1 %", per_cent(worst, 4), is_met=worst <= 0.001)
    errors = found["vllm", "qwen3-8b", 0.0]
    half, worst = middle(errors.relative), max(errors.relative)
    report.bar("qwen3-8b, vLLM, logged K and GPU: median <= 0.1 %", per_cent(half, 4), is_met=half <= 0.001)
    report.bar("qwen3-8b, vLLM, logged K and GPU: worst <= 2 %", per_cent(worst, 3), is_met=worst <= 0.02)


def _one_start(ladder: Sequence[Observation], least: float) -> Errors:
    errors = Errors()
    chosen = [start for start in ladder if (start.fraction or 0.0) >= least]
    for start in chosen:
        pair = fit_of([start])
        for other in chosen:
            answer = ask(pair, other) if other is not start else None
            if answer is not None:
                errors.add(answer.estimate, answer.truth, allowed=answer.page)
    return errors
