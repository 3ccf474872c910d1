"""Advice replayed on real groups: asking for the pool that a start had must give its fraction back.

The prompt's need is given as nothing: what is replayed is the pool. Memory that a real prompt would not have found
makes some of these pools infeasible, rightly. On unified memory equal starts differ by per cents, so that a confidence
of 0.95 asks for a margin of its own beyond the fraction that was: there the fraction is asked back with confidence 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.accuracy.public import fit_able
from bench.report import Report, percentile
from domain.door import advise
from domain.real_starts import h200_ladder
from kvyield_server.domain.answers import Advice, Status
from kvyield_server.domain.facts.devices import has_unified_memory
from kvyield_server.domain.facts.observation import FRACTION_FLAG, EngineName, Observation, Outcome

LADDERS = (("qwen3-8b", "sglang"), ("dsv2-lite", "sglang"), ("qwen3-8b", "vllm"))
CONTEXT = {EngineName.SGLANG: "context_length", EngineName.VLLM: "max_model_len"}
DEATHS = (Outcome.OOM_STARTUP, Outcome.OOM_RUNTIME)
RESERVED = 8
"""SGLang takes prompts up to the pool less 7 tokens; the last page may not be whole."""


@dataclass(frozen=True)
class Replayed:
    """One left-out start, what was advised for its pool, and whether another start of the group died there."""

    group: str
    start: Observation
    advice: Advice
    is_deadly: bool

    @property
    def off(self) -> float | None:
        """How far the advised fraction is from the one that it had; None where none was advised."""
        advised = self.advice.flags.get(FRACTION_FLAG[self.start.engine.name])
        if self.advice.status not in (Status.OK, Status.AT_RISK) or not isinstance(advised, int | float):
            return None
        return abs(float(advised) - (self.start.fraction or 0.0))


def demanded(start: Observation) -> tuple[int, int]:
    """Return the prompt length and how many at once fill this start's pool, as its context admits them."""
    pool = start.measurements.pool_tokens or 0
    context = start.flags.get(CONTEXT.get(start.engine.name, "")) or start.model.facts.get("max_position_embeddings")
    longest = int(context) if isinstance(context, int) and context > 2 * RESERVED else pool
    count = max(1, -(-pool // longest))
    return max(1, pool // count - RESERVED), count


def groups() -> list[tuple[str, Sequence[Observation]]]:
    """Return the ladders of one H200 and the public groups of three and more fractions whose starts agree."""
    found: list[tuple[str, Sequence[Observation]]] = [
        (f"H200, {model}, {engine}", h200_ladder(model, engine)) for model, engine in LADDERS
    ]
    return found + [
        (group.group, group.starts) for group in fit_able() if group.contradiction is None and len(group.fractions) >= 3
    ]


def replayed(confidence: float = 0.95) -> list[Replayed]:
    """Leave every ready start out of its group and ask the others for its pool, where they have two themselves."""
    found = []
    for name, starts in groups():
        for left_out in starts:
            pool = left_out.measurements.pool_tokens or 0
            if left_out.outcome is not Outcome.READY or pool <= 2 * RESERVED:
                continue
            rest = [start for start in starts if start is not left_out]
            if len({start.fraction for start in rest if start.measurements.pool_tokens}) < 2:
                continue
            target, count = demanded(left_out)
            asked = {"concurrent": count, "prefer": "headroom", "confidence": confidence, "prompt_need_gib": 0.0}
            advice = advise(rest, target, **asked)
            advised = advice.flags.get(FRACTION_FLAG[left_out.engine.name])
            died = [start.fraction for start in rest if start.outcome in DEATHS]
            is_deadly = advice.status in (Status.OK, Status.AT_RISK) and advised in died
            found.append(Replayed(name, left_out, advice, is_deadly))
    return found


def _is_unified(answer: Replayed) -> bool:
    return has_unified_memory(answer.start.hardware)


def replay(report: Report) -> None:
    """Print how far advice was from what ran, group by group, with the bars."""
    report.section("Advice replayed on real groups: the fraction asked back for the pool that it gave")
    answers, even = replayed(), replayed(0.5)
    rows = []
    for name in dict.fromkeys(answer.group for answer in answers):
        own = [answer for answer in answers if answer.group == name]
        offs = [answer.off for answer in own if answer.off is not None]
        worst = f"{max(offs):.3f}" if offs else "-"
        rows.append((name, len(own), worst, len(own) - len(offs)))
    report.table(("group", "starts left out", "worst off", "not answered"), rows)
    for kind, found, is_unified, allowed in (
        ("discrete GPUs", answers, False, 0.002),
        ("unified memory, confidence 0.5", even, True, 0.01),
    ):
        offs = [1.0 if answer.off is None else answer.off for answer in found if _is_unified(answer) is is_unified]
        far = percentile(offs, 90)
        report.bar(
            f"{kind}: 90th percentile within {allowed}", f"{far:.4f} of {len(offs)}", is_met=far <= allowed + 1e-9
        )
    wide = [1.0 if answer.off is None else answer.off for answer in answers if _is_unified(answer)]
    report.line(f"    unified memory, confidence 0.95: {percentile(wide, 90):.4f}, the margin of its scatter included")
    deadly = [f"{answer.group} at {answer.advice.flags}" for answer in answers if answer.is_deadly]
    report.bar("never a fraction that a start of the group died at", "; ".join(deadly) or "none", is_met=not deadly)
