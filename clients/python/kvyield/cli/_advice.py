"""Advice as a person reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from kvyield.cli._run import safe
from kvyield.cli._tables import flags_text, gib, percent, span, table, tokens

if TYPE_CHECKING:
    from kvyield import _wire

HEADLINES = {
    "ok": "ok: these flags hold the target and leave room for it",
    "at_risk": "at risk: the best flags are below the confidence that was asked for",
    "infeasible": "infeasible: no fraction holds the target and leaves room for it",
    "not_enough_evidence": "not enough evidence: too little is known to give flags",
}

ESTIMATE = "This is an estimate: no start was used."


def show_advice(advice: _wire.Recommendation, target_tokens: int) -> None:
    """Flags, probabilities, what was never verified, warnings, restart plan and levers."""
    click.echo(safe(headline_of(advice)))
    if advice.command_line:
        click.echo(safe(f"\n  {advice.command_line}"))
    click.echo()
    if advice.changes:
        rows = [(one.flag, _known(one.from_value), _then(one.to_value), one.reason) for one in advice.changes]
        table(("flag", ">now", ">then", "why"), rows)
    table(("with these flags", ""), _facts(advice, target_tokens))
    show_warnings(advice.warnings)
    if advice.alternatives:
        table((">tokens", ">GiB", ">probability", "lever", "cost"), [_lever(one) for one in advice.alternatives])
    if advice.explanation and advice.explanation not in (one.detail for one in advice.warnings):
        click.echo(safe(advice.explanation))


def headline_of(advice: _wire.Recommendation) -> str:
    """The service's own headline; from one that makes none, the status in words. An estimate is called one."""
    told = advice.headline.text if advice.headline else ""
    text = told or HEADLINES.get(advice.status, advice.status)
    return f"{text}\n{ESTIMATE}" if is_estimate(advice) and "estimate" not in text.lower() else text


def is_estimate(advice: _wire.Recommendation) -> bool:
    """Whether flags are advised though no start was used."""
    if advice.status == "not_enough_evidence":
        return False
    if advice.headline is not None:
        return advice.headline.estimate
    return advice.basis is not None and not advice.basis.observation_ids


def _facts(advice: _wire.Recommendation, target_tokens: int) -> Iterator[tuple[str, str]]:
    predicted = advice.prediction
    if predicted is not None:
        yield "pool, tokens", span(predicted.pool_tokens)
        yield "free at ready, GiB", span(predicted.free_at_ready_gib, gib)
        yield "headroom, GiB", span(predicted.headroom_gib, gib)
    if advice.probability is not None:
        chance = advice.probability
        yield (
            "probability",
            f"pool {percent(chance.pool)}, memory {percent(chance.memory)}, both {percent(chance.joint)}",
        )
    if advice.window is not None:
        yield "fractions in the window", f"{advice.window.lowest:g} to {advice.window.highest:g}"
    yield from _plan(advice)
    yield "never verified", _unverified(advice, target_tokens)
    if advice.basis is not None:
        yield "based on", based_on(advice.basis)


def based_on(basis: _wire.Basis) -> str:
    """The kind of evidence, how many starts, and of which deployment."""
    kind, count = basis.kind.replace("_", " "), len(basis.observation_ids)
    starts = f"{count} {'start' if count == 1 else 'starts'}"
    if basis.kind == "one_start" and count > 1:
        kind = f"{starts} that count as one"
    elif basis.kind in ("one_start", "several_starts"):
        kind = starts
    elif count:
        kind = f"{kind}, {starts}"
    return f"{kind}; {basis.deployment or 'no deployment'}"


def show_warnings(warnings: Iterable[_wire.Caution]) -> None:
    """Each warning once, with its code."""
    for text in {f"warning: {one.detail or one.code} [{one.code}]": None for one in warnings}:
        click.echo(safe(text))


def _plan(advice: _wire.Recommendation) -> Iterator[tuple[str, str]]:
    plan = advice.restarts
    if plan is not None and plan.expected is not None:
        yield "restarts", f"{plan.expected:g} expected{_minutes(plan.minutes)}"
    if advice.verification_seconds is not None:
        yield "a verification", f"about {advice.verification_seconds:.0f} s"


def _minutes(minutes: float | None) -> str:
    if minutes is None:
        return ""
    return ", under a minute in all" if minutes < 1 else f", about {minutes:.3g} minutes in all"


def _unverified(advice: _wire.Recommendation, target_tokens: int) -> str:
    verified = advice.basis.verified_prompt_tokens if advice.basis else None
    if verified is None:
        return "no prompt of any length; `kvyield verify` sends one"
    return f"prompts over {tokens(verified)} tokens" if verified < target_tokens else "-"


def _lever(one: _wire.Lever) -> tuple[str, ...]:
    gain = "-" if one.gain_tokens is None else f"{one.gain_tokens:+,.0f}"
    room = "-" if one.gain_gib is None else f"{one.gain_gib:+.2f}"
    return (gain, room, percent(one.joint), flags_text(one.flags), one.cost or "")


def _then(value: object) -> str:
    return "removed" if value is None or value is False else str(value)


def _known(value: object) -> str:
    return "-" if value is None else str(value)
