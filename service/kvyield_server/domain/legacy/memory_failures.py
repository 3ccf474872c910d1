"""Starts that ran out of memory, and the fractions that they rule out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvyield_server.domain.answers import Question
from kvyield_server.domain.engines.registry import NAMES, number
from kvyield_server.domain.engines.token_cost import speculation
from kvyield_server.domain.facts.deployment import Group, differing_fields
from kvyield_server.domain.facts.observation import EngineName, Flags, Observation, Outcome, Phase
from kvyield_server.domain.facts.scalars import is_on
from kvyield_server.domain.facts.versions import is_other_series
from kvyield_server.domain.legacy.evidence import fraction_of
from kvyield_server.domain.legacy.window import HIGHEST_STEP, step_below

_OTHER_MEMORY = frozenset({"engine", "tp", "pp", "dp", "dp_attention", "dcp", "kv_dtype"})

_DIED = frozenset({Outcome.OOM_STARTUP, Outcome.OOM_RUNTIME})


@dataclass(frozen=True, slots=True)
class SiblingDeath:
    """A start of a sibling deployment that ran out of memory, and the fields in which the deployments differ."""

    start: Observation
    differing: frozenset[str]


def sibling_deaths(groups: Sequence[Group]) -> tuple[tuple[SiblingDeath, ...], ...]:
    """Return, of each group, the starts out of memory of others with its engine, parallel layout and KV dtype."""
    died = [(group, [start for start in group.starts if start.outcome in _DIED]) for group in groups]
    deadly = [(group, starts) for group, starts in died if starts]
    return tuple(tuple(_of_siblings(group, deadly)) for group in groups)


def _of_siblings(group: Group, deadly: Sequence[tuple[Group, Sequence[Observation]]]) -> Iterator[SiblingDeath]:
    for other, starts in deadly:
        differing = differing_fields(group.key, other.key)
        if other is not group and not differing & _OTHER_MEMORY:
            yield from (SiblingDeath(start, differing) for start in starts)


def binds(death: SiblingDeath, version: str | None, starts: Sequence[Observation]) -> bool:
    """Tell whether a sibling's death rules out its fraction here as if it were this deployment's own.

    It does when nothing but the version differs, within one minor series or with a version unknown, unless a later
    start of this deployment became ready at that fraction under flags no lighter.
    """
    if death.differing - {"version"} or is_other_series(version, death.start.engine.version):
        return False
    return not any(_refutes(start, death.start) for start in starts)


def _refutes(start: Observation, death: Observation) -> bool:
    served, died = fraction_of(start), fraction_of(death)
    if served is None or died is None or death.outcome is not Outcome.OOM_STARTUP:
        return False
    is_later = start.outcome is Outcome.READY and start.observed_at > death.observed_at and served >= died
    return is_later and not is_lighter(start.engine.name, start.flags, death.flags)


def counts_against(start: Observation, question: Question) -> bool:
    """Tell whether a start ran out of memory in a way that bears on the question.

    A start that died while loading weights had no pool yet. A run-time death counts for prompts no
    shorter than its own.
    """
    if fraction_of(start) is None:
        return False
    if start.outcome is Outcome.OOM_STARTUP:
        return start.failure is None or start.failure.phase is not Phase.LOAD
    if start.outcome is not Outcome.OOM_RUNTIME:
        return False
    prompt = start.failure.prompt_tokens if start.failure else None
    return prompt is None or question.target_tokens >= prompt


def highest_survivable_step(
    engine: EngineName, flags: Flags, deaths: Sequence[Observation]
) -> tuple[int, Observation | None]:
    """Return the largest step below every death that counts under ``flags``, and the death that sets it.

    The step is zero where a start died at the smallest fraction of all.
    """
    cap, death = HIGHEST_STEP, None
    for start in deaths:
        fraction = fraction_of(start)
        if fraction is None or is_lighter(engine, flags, start.flags):
            continue
        below = max(0, step_below(fraction))
        if below < cap:
            cap, death = below, start
    return cap, death


def is_lighter(engine: EngineName, flags: Flags, then: Flags) -> bool:
    """Tell whether the flags take less memory beside the pool than those of another start: one less, none more."""
    names = NAMES[engine]
    lighter = heavier = False
    for key in (names.requests, names.chunk, names.graph_batch, names.context):
        now_value, then_value = number(flags, key), number(then, key)
        if now_value is None or then_value is None:
            continue
        slack = 1.01 if key == names.context else 1.0
        lighter |= now_value < then_value and key != names.context
        heavier |= now_value > then_value * slack
    for now_on, then_on in _switches(engine, flags, then):
        lighter |= then_on and not now_on
        heavier |= now_on and not then_on
    return lighter and not heavier


def _switches(engine: EngineName, flags: Flags, then: Flags) -> list[tuple[bool, bool]]:
    off = NAMES[engine].graphs_off
    switches = [(bool(speculation(flags)), bool(speculation(then)))]
    if off is not None:
        switches.append((not is_on(flags.get(off)), not is_on(then.get(off))))
    return switches
