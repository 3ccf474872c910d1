"""The advice as the first thing to see: flags to restart with, what they will yield, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvyield_server.domain.answers import Status
from kvyield_server.domain.facts.observation import FRACTION_FLAG, EngineName, Scalar
from kvyield_server.pages.views.words import (
    UNKNOWN,
    duration,
    figure,
    flag_option,
    flag_value,
    gib,
    percent,
    plural,
    span,
    span_gib,
    span_tokens,
    token_count,
    tokens,
)
from kvyield_server.schemas.common import EstimateOut
from kvyield_server.schemas.recommendations import AdviceOut, ChangeOut, LeverOut, RestartsOut

FORMATS = (
    ("args", "Arguments"),
    ("systemd", "systemd"),
    ("docker", "docker"),
    ("compose", "compose"),
    ("kubernetes", "Kubernetes"),
)
MEASURED = "measured"
HEADINGS = {
    "keep": "Keep what runs",
    "change": "Restart with",
    "at_risk": "Restart with",
    "infeasible": "No fraction holds this target",
    "not_enough_evidence": "Not enough evidence for advice",
}
STATUS_WORDS = {
    Status.OK: "ok",
    Status.AT_RISK: "at risk",
    Status.INFEASIBLE: "infeasible",
    Status.NOT_ENOUGH_EVIDENCE: "not enough evidence",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: what, how much, between what and what, and what to know of it. ``span`` is a dash where there is
    none, and ``MEASURED`` for what was measured."""

    name: str
    value: str
    span: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverRow:
    """A lever, with what it gains and what it costs."""

    flags: str
    joint: str
    gain_tokens: str
    gain_gib: str
    cost: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    option: str
    before: str
    after: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceView:
    """``texts`` holds (key, name, text) for each form in which the flags can be pasted; ``nearest`` is the fraction
    that the figures of an infeasible target are of; ``explanation`` is empty where it says the headline again."""

    status: Status
    status_word: str
    heading: str
    headline: str
    command_line: str
    summary: str
    nearest: str
    figures: tuple[Figure, ...]
    changes: tuple[ChangeRow, ...]
    restarts: str
    minutes: str
    verification: str
    window: str
    warnings: tuple[str, ...]
    explanation: str
    basis: str
    levers: tuple[LeverRow, ...]
    texts: tuple[tuple[str, str, str], ...]


def advice_view(advice: AdviceOut, *, target_tokens: int, texts: Mapping[str, str]) -> AdviceView:
    """Return the advice in words; ``texts`` are its renderings by format."""
    plan = advice.restarts if has_flags(advice) else None
    headline = advice.headline.text if advice.headline else ""
    return AdviceView(
        status=advice.status,
        status_word=STATUS_WORDS[advice.status],
        heading=_heading(advice),
        headline=headline,
        command_line=advice.command_line,
        summary=_summary(advice),
        nearest=_nearest(advice),
        figures=_figures(advice, target_tokens),
        changes=tuple(_change(change) for change in advice.changes),
        restarts=figure(plan.expected if plan else None, 1),
        minutes=_minutes(plan),
        verification=duration(advice.verification_seconds if has_flags(advice) else None),
        window=_window(advice),
        warnings=tuple(item.detail for item in advice.warnings if item.detail not in headline),
        explanation="" if advice.explanation in headline else advice.explanation,
        basis=_basis(advice),
        levers=tuple(_lever(advice.engine, lever) for lever in advice.alternatives),
        texts=tuple((key, name, texts[key]) for key, name in FORMATS if texts.get(key)),
    )


def has_flags(advice: AdviceOut) -> bool:
    """Tell whether there is anything to start with."""
    return advice.status in (Status.OK, Status.AT_RISK)


def _nearest(advice: AdviceOut) -> str:
    name = FRACTION_FLAG[advice.engine]
    value = advice.flags.get(name) if advice.status is Status.INFEASIBLE else None
    return "" if value is None else f"{name} {flag_value(value)}"


def _heading(advice: AdviceOut) -> str:
    code = advice.headline.code.value if advice.headline else advice.status.value
    heading = HEADINGS.get(code, "Restart with")
    return f"{heading}, then verify" if advice.status is Status.AT_RISK else heading


def _summary(advice: AdviceOut) -> str:
    odds = advice.probability
    if advice.status is Status.INFEASIBLE and advice.binding_constraint:
        return f"Binding constraint: {advice.binding_constraint.replace('_', ' ')}."
    if odds is None or odds.joint is None:
        return ""
    return f"probability that pool and memory both suffice: {percent(odds.joint)}"


def _figures(advice: AdviceOut, target_tokens: int) -> tuple[Figure, ...]:
    predicted, odds = advice.prediction, advice.probability
    pool, free, headroom = predicted.pool_tokens, predicted.free_at_ready_gib, predicted.headroom_gib
    if pool is None and free is None and headroom is None:
        return ()
    return (
        Figure(
            name="Pool",
            value=token_count(pool.median) if pool else UNKNOWN,
            span=_interval(pool, span_tokens(pool)),
            note=f"holds the target: {percent(odds.pool)}" if odds else "",
        ),
        Figure(
            name="Free memory at ready",
            value=gib(free.median, 2 if _is_measured(free) else 1) if free else UNKNOWN,
            span=_interval(free, span_gib(free)),
            note="",
        ),
        Figure(
            name="Headroom at the peak of a prompt",
            value=gib(headroom.median, 1) if headroom else UNKNOWN,
            span=span_gib(headroom),
            note=f"survives {token_count(target_tokens)}: {percent(odds.memory)}" if odds else "",
        ),
    )


def _is_measured(estimate: EstimateOut | None) -> bool:
    """Tell whether a figure is that of the start which runs these flags: a prediction has an interval."""
    return estimate is not None and estimate.low == estimate.high


def _interval(estimate: EstimateOut | None, text: str) -> str:
    return UNKNOWN if estimate is None else MEASURED if _is_measured(estimate) else text


def _change(change: ChangeOut) -> ChangeRow:
    after = "removed" if is_off(change.to_value) else flag_value(change.to_value)
    return ChangeRow(
        option=flag_option(change.flag), before=flag_value(change.from_value), after=after, reason=change.reason
    )


def _window(advice: AdviceOut) -> str:
    if advice.window is None:
        return "not known" if advice.status is Status.NOT_ENOUGH_EVIDENCE else "empty at this confidence"
    low, high = flag_value(round(advice.window.lowest, 3)), flag_value(round(advice.window.highest, 3))
    return f"{FRACTION_FLAG[advice.engine]} {span(low, high)}"


def _minutes(plan: RestartsOut | None) -> str:
    if plan is None or plan.minutes is None or not plan.expected:
        return ""
    return "under a minute" if plan.minutes < 1 else f"{figure(plan.minutes, 1)} min"


def _basis(advice: AdviceOut) -> str:
    kinds = {
        "config_only": "the model's config and the GPU only",
        "transfer": "starts of the same model on other hardware",
        "one_start": "one start",
        "several_starts": plural(len(advice.basis.observation_ids), "start"),
    }
    longest = advice.basis.verified_prompt_tokens
    verified = f"longest verified prompt {token_count(longest)}" if longest else "no prompt verified yet"
    return f"Based on {kinds[advice.basis.kind.value]}; {verified}."


def _lever(engine: EngineName, lever: LeverOut) -> LeverRow:
    return LeverRow(
        flags=flags_text(engine, lever.flags) or "no flag",
        joint=percent(lever.joint),
        gain_tokens=_signed(tokens(lever.gain_tokens), lever.gain_tokens),
        gain_gib=_signed(figure(lever.gain_gib, 1), lever.gain_gib),
        cost=lever.cost,
    )


def flags_text(engine: EngineName, flags: Mapping[str, Scalar]) -> str:
    """Return flags as the engine's command line takes them; those that are off are to be removed from it."""
    from kvyield_server.domain.advice.render import command_line  # keeps numpy out of start-up

    removed = [f"remove {command_line(engine, {name: True})}" for name, value in flags.items() if is_off(value)]
    return " ".join((command_line(engine, flags), *removed)).strip()


def is_off(value: Scalar) -> bool:
    """Tell whether a flag is left off the command line: not set, or set to no."""
    return value is None or value is False


def _signed(text: str, value: float | None) -> str:
    return f"+{text}" if value is not None and value > 0 else text
