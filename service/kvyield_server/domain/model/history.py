"""What starts, deaths and verifications say for themselves, whatever the line says: the ledger's own answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import merge
from operator import itemgetter
from typing import Any
from uuid import UUID

import numpy as np

from kvyield_server.domain.engines.registry import NAMES
from kvyield_server.domain.facts.deployment import dtype_word
from kvyield_server.domain.facts.observation import (
    FRACTION_FLAG,
    NO_MEMORY_FLAGS,
    Engine,
    Flags,
    Observation,
    Outcome,
    Phase,
    Scalar,
    Verification,
)
from kvyield_server.domain.facts.scalars import as_number, is_on
from kvyield_server.domain.model.consensus import LEAST_AGREEING
from kvyield_server.domain.model.evidence import (
    fraction_of,
    held_by_others,
    is_death,
    is_lighter,
    is_no_lighter,
    size_of,
    usable_free,
)
from kvyield_server.domain.model.interface import Mask, Measured
from kvyield_server.domain.model.mixture import Floats
from kvyield_server.domain.model.need import was_served

SAME = 1e-9
MOST_DEATHS = 8
_MOST_FIGURES = 32
"""Figures of equal starts that are compared with the newest: more say nothing new."""


class _Alike:
    """Starts whose flags say the same to memory, the fraction apart, as they are asked for by their fraction.

    ``last`` are those since the newest that came up, itself first. ``figures`` are the newest few of each kind that
    starts which came up measured, with the place of the start in time. ``served`` are prompts that passed, without
    those that another one proves as well.
    """

    def __init__(self, flags: Flags) -> None:
        self.flags = flags
        self.came_up = False
        self.last: dict[float, list[tuple[int, Observation]]] = {}
        self.died_at_load: list[tuple[int, Observation]] = []
        self.figures: dict[float, dict[str, deque[tuple[int, Any]]]] = {}
        self.served: list[tuple[Observation, Verification]] = []

    def add(self, place: int, start: Observation, *, answers: bool) -> None:
        """Add the next start in time; a mistyped one does not answer."""
        fraction = _rounded(start.fraction)
        if _died_at_load(start):
            self.died_at_load.append((place, start))
        if start.came_up:
            self.came_up = True
        if fraction is not None:
            before = [] if start.came_up else self.last.get(fraction, [])
            self.last[fraction] = [*before, (place, start)]
        if not answers:
            return
        if start.came_up and fraction is not None:
            figures = self.figures.setdefault(fraction, {})
            told = {
                "start": start,
                "pool": start.measurements.pool_tokens if (start.measurements.pool_tokens or 0) > 0 else None,
                "ready": usable_free(start, start.measurements.free_at_ready_gib),
                "sampled": max(_befores(start), default=None) if start.verifications else None,
            }
            for name, value in told.items():
                if value is not None:
                    figures.setdefault(name, deque(maxlen=_MOST_FIGURES)).append((place, value))
        for check in start.verifications:
            if was_served(check) and not any(_proves(by, other, start, check) for by, other in self.served):
                self.served.append((start, check))


def _in_order(groups: Sequence[Mapping[str, Iterable[tuple[int, Any]]]], kind: str) -> tuple[Any, ...]:
    """Return the figures of one kind that some groups of starts measured, oldest first."""
    return tuple(value for _, value in merge(*(group.get(kind, ()) for group in groups), key=itemgetter(0)))


def _rounded(fraction: float | None) -> float | None:
    return None if fraction is None else round(fraction, 8)


def _died_at_load(start: Observation) -> bool:
    return start.failure is not None and start.failure.phase is Phase.LOAD


def _proves(by: Observation, check: Verification, start: Observation, other: Verification) -> bool:
    """Tell whether a check under like flags proves what another does: as long and as many, at no smaller a fraction."""
    here, there = fraction_of(by), fraction_of(start)
    is_as_high = here == there or (here is not None and there is not None and here >= there)
    return is_as_high and _covers(check, other.prompt_tokens, other.concurrent or 1)


@dataclass(frozen=True, kw_only=True)
class History:
    """The live starts of one deployment, oldest first.

    ``flags`` are those of what runs: what an older start does not mention is taken to be as there. ``mistyped`` starts
    answer for nothing. ``siblings`` are starts of deployments that differ in the version alone. ``gib_per_fraction`` is
    what a fraction of 1.0 takes of free memory.
    """

    engine: Engine
    starts: tuple[Observation, ...]
    flags: Flags
    mistyped: frozenset[UUID] = frozenset()
    siblings: tuple[Observation, ...] = ()
    gib_per_fraction: float | None = None
    deaths: tuple[Observation, ...] = field(init=False)

    def __post_init__(self) -> None:
        everything = sorted((*self.starts, *self.siblings), key=lambda start: (start.observed_at, start.id.int))
        counting = tuple(start for start in everything if is_death(start) and self._counts(start, everything))
        object.__setattr__(self, "deaths", counting)

    @cached_property
    def runs(self) -> Observation | None:
        """The newest live start that came up."""
        usable = (start for start in reversed(self.starts) if start.came_up and start.id not in self.mistyped)
        return next(usable, None)

    @cached_property
    def limited(self) -> Observation | None:
        """The newest live start that came up and printed the longest prompt that it takes."""
        return next((s for s in reversed(self.starts) if s.came_up and s.measurements.longest_prompt_tokens), None)

    @cached_property
    def _alike(self) -> list[_Alike]:
        found: dict[tuple[tuple[str, Scalar], ...], _Alike] = {}
        apart = NO_MEMORY_FLAGS | {FRACTION_FLAG[self.engine.name]}
        for place, start in enumerate(self.starts):
            key = tuple(sorted([item for item in start.flags.items() if item[0] not in apart], key=itemgetter(0)))
            if key not in found:
                found[key] = _Alike(start.flags)
            found[key].add(place, start, answers=start.id not in self.mistyped)
        return list(found.values())

    def measured(self, flags: Flags) -> Measured | None:
        """Return what live starts that came up under these very flags measured; the newest's figure each."""
        fraction = _rounded(as_number(flags.get(FRACTION_FLAG[self.engine.name])))
        same = [
            alike.figures[fraction]
            for alike in self._alike
            if fraction in alike.figures and self._is_same(alike.flags, flags)
        ]
        if not same:
            return None
        newest = max((figures["start"][-1] for figures in same), key=itemgetter(0))[1]
        pools = _in_order(same, "pool")
        free_gib = _in_order(same, "ready") or _in_order(same, "sampled")
        return Measured(
            newest=newest,
            pool_tokens=pools[-1] if pools else None,
            free_at_ready_gib=free_gib[-1] if free_gib else None,
            pools=pools,
            free_gib=free_gib,
        )

    def forbidden(
        self, flags: Flags, fractions: Floats, prompt_tokens: int, _concurrent: int
    ) -> tuple[Mask, Observation | None]:
        """Return the fractions that a death which counts rules out, and the death that rules out the lowest.

        Of counts of blocks, deaths at counts tell.
        """
        is_count = bool((fractions > 1.0).any())
        alike = (each for each in self._ruled_out(flags, prompt_tokens) if (each[0] > 1.0) is is_count)
        found = min(alike, key=lambda each: each[0], default=None)
        lowest, death = (np.inf, None) if found is None else found
        mask: Mask = fractions >= lowest - SAME
        return mask, death

    def deaths_at(self, flags: Flags, prompt_tokens: int, outcome: Outcome) -> list[tuple[float, int | None]]:
        """Return the fractions from which deaths of this kind rule out such a prompt, the lowest few, rising.

        With each the prompt that died, where that is known.
        """
        found: dict[float, int | None] = {}
        for fraction, start in self._ruled_out(flags, prompt_tokens):
            if fraction <= 1.0 and start.outcome is outcome:
                prompt = start.failure.prompt_tokens if start.failure else None
                known = found.get(fraction, prompt)
                found[fraction] = None if known is None or prompt is None else min(known, prompt)
        return sorted(found.items(), key=lambda each: each[0])[:MOST_DEATHS]

    def served_below(self, flags: Flags, fraction: float, prompt_tokens: int, outcome: Outcome) -> float:
        """Return the highest fraction below at which a start under flags no lighter came up, or served such a prompt.

        0 where none did. A start that came up contradicts a death at start-up, one that served a death while serving.
        """
        best = 0.0
        for start in self.starts:
            own = fraction_of(start)
            if not start.came_up or start.id in self.mistyped or own is None or not best < own < fraction:
                continue
            has_served = any(was_served(c) and c.prompt_tokens >= prompt_tokens for c in start.verifications)
            is_enough = outcome is Outcome.OOM_STARTUP or has_served
            if is_enough and is_no_lighter(self.engine.name, start.flags, flags):
                best = own
        return best

    def _ruled_out(self, flags: Flags, prompt_tokens: int) -> Iterator[tuple[float, Observation]]:
        for start in self.deaths:
            fraction = size_of(start)
            prompt = start.failure.prompt_tokens if start.failure else None
            is_longer = start.outcome is Outcome.OOM_RUNTIME and prompt is not None and prompt_tokens < prompt
            if fraction is not None and not is_longer and not is_lighter(self.engine.name, flags, start.flags):
                yield fraction - self._short(start), start

    def _short(self, death: Observation) -> float:
        """Return by how much lower a fraction would have left what a dying prompt still wanted."""
        failure = death.failure
        if failure is None or self.gib_per_fraction is None or death.outcome is not Outcome.OOM_RUNTIME:
            return 0.0
        wanted, left = as_number(failure.wanted_gib), as_number(failure.free_gib)
        if wanted is None or left is None or not 0.0 <= left < wanted < self.gib_per_fraction:
            return 0.0
        return (wanted - left) / self.gib_per_fraction

    def _counts(self, death: Observation, everything: Sequence[Observation]) -> bool:
        """Tell whether nothing contradicts a death: memory that others held, or starts that came up there.

        One that came up there before contradicts it only where three or more came up in all: then it is the death
        that is odd.
        """
        fraction = size_of(death)
        if held_by_others(death) or fraction is None:
            return False
        if death.outcome is Outcome.OOM_RUNTIME:
            return not any(self._outlived(start, death, fraction) for start in everything)
        served_here = sum(start.came_up for start in self.starts)
        for start in everything:
            served = size_of(start)
            if not start.came_up or served is None or (served > 1.0) is not (fraction > 1.0):
                continue
            if _same_fraction(served, fraction) and self._is_same(start.flags, death.flags):
                return False
            is_heard = start.observed_at > death.observed_at or served_here >= LEAST_AGREEING
            if is_heard and served >= fraction - SAME and is_no_lighter(self.engine.name, start.flags, death.flags):
                return False
        return True

    def _outlived(self, start: Observation, death: Observation, fraction: float) -> bool:
        """Tell whether a later start served such a prompt under flags no lighter."""
        served = size_of(start)
        if start.observed_at <= death.observed_at or served is None or served < fraction - SAME:
            return False
        if (served > 1.0) is not (fraction > 1.0):
            return False
        if not is_no_lighter(self.engine.name, start.flags, death.flags):
            return False
        prompt = death.failure.prompt_tokens if death.failure else None
        return any(was_served(check) and check.prompt_tokens >= (prompt or 0) for check in start.verifications)

    def failed(self, flags: Flags) -> Observation | None:
        """Return the newest start under these very flags that never came up, where none under them ever did.

        One that failed while it loaded weights had no pool yet: the fraction does not matter then. The newest that came
        up counts too where it ran out of memory which others held: that rules nothing out and is not forgotten.
        """
        fraction = _rounded(as_number(flags.get(FRACTION_FLAG[self.engine.name])))
        found: list[tuple[int, Observation]] = []
        for alike in self._alike:
            if (fraction in alike.last or alike.died_at_load) and self._is_same(alike.flags, flags):
                found += (
                    alike.died_at_load if fraction is None else [*alike.died_at_load, *alike.last.get(fraction, ())]
                )
        for _, start in sorted(found, key=itemgetter(0), reverse=True):
            if start.came_up:
                is_squeezed = start.outcome is Outcome.OOM_RUNTIME and held_by_others(start)
                return start if is_squeezed else None
            at_load = _died_at_load(start)
            if (start.outcome is Outcome.FAILED or at_load) and not held_by_others(start):
                is_outlived = any(other.came_up for _, other in found) if not at_load else self._came_up(flags)
                return None if is_outlived else start
        return None

    def _came_up(self, flags: Flags) -> bool:
        """Tell whether a start came up under these flags, whatever its fraction."""
        return any(alike.came_up and self._is_same(alike.flags, flags) for alike in self._alike)

    def passed(self, flags: Flags, prompt_tokens: int, concurrent: int) -> Verification | None:
        """Return a served verification, under flags no lighter, of a prompt no shorter and as many at once."""
        for start, check in (each for alike in self._alike for each in alike.served):
            if _covers(check, prompt_tokens, concurrent) and self._is_as_heavy(start, flags):
                return check
        return None

    def unserved(self, flags: Flags, prompt_tokens: int, concurrent: int) -> Verification | None:
        """Return the newest verification that was not served and forbids ``ok`` for such a prompt until one passes.

        A smaller fraction is a remedy only where memory ran out.
        """
        fraction = as_number(flags.get(FRACTION_FLAG[self.engine.name]))
        for start, check in self._unserved:
            if prompt_tokens < check.prompt_tokens or concurrent < (check.concurrent or 1):
                continue
            own = fraction_of(start)
            is_lower = own is not None and fraction is not None and fraction < own - SAME
            is_remedy = is_lower and start.death is not None
            if not is_remedy and is_no_lighter(self.engine.name, flags, start.flags):
                return check
        return None

    @cached_property
    def _unserved(self) -> list[tuple[Observation, Verification]]:
        """Verifications that were not served and that none since outdid, the newest first."""
        found: list[tuple[Observation, Verification]] = []
        since: list[tuple[Observation, Verification]] = []
        for start in reversed(self.starts):
            for check in reversed(start.verifications):
                if was_served(check):
                    since.append((start, check))
                elif not any(self._outdoes(later, by, start, check) for later, by in since):
                    found.append((start, check))
        return found

    def _outdoes(self, later: Observation, by: Verification, start: Observation, check: Verification) -> bool:
        return _covers(by, check.prompt_tokens, check.concurrent or 1) and self._is_as_heavy(later, start.flags)

    def _is_as_heavy(self, start: Observation, flags: Flags) -> bool:
        """Tell whether a start left no more memory to a prompt than these flags do."""
        name = FRACTION_FLAG[self.engine.name]
        asked, own = as_number(flags.get(name)), fraction_of(start)
        if asked is not None and own is not None and own < asked - SAME:
            return False
        spec = NAMES[self.engine.name]
        for cap in (*spec.caps, *spec.inert_with):
            mine, given = as_number(start.flags.get(cap)), as_number(flags.get(cap))
            if mine is not None and (given is None or given > mine):
                return False
            if mine is None and given is not None and cap in spec.inert_with:
                return False
        return is_no_lighter(self.engine.name, start.flags, flags)

    def _is_same(self, own: Flags, asked: Flags) -> bool:
        """Tell whether no flag of memory differs, the fraction apart; what only one of them knows is as what runs."""
        for key, value in asked.items():
            if key in NO_MEMORY_FLAGS or key == FRACTION_FLAG[self.engine.name]:
                continue
            if key not in own:
                if is_on(value) and not _equal(key, value, self.flags.get(key)):
                    return False
            elif not _equal(key, value, own[key]):
                return False
        return True


def _covers(check: Verification, prompt_tokens: int, concurrent: int) -> bool:
    """Tell whether a verification proves a prompt of this length and as many at once."""
    return check.prompt_tokens >= prompt_tokens and (check.concurrent or 1) >= concurrent


def _befores(start: Observation) -> list[float]:
    before = (usable_free(start, check.free_before_gib) for check in start.verifications)
    return [gib for gib in before if gib is not None]


def _same_fraction(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) <= SAME


def _equal(key: str, one: Scalar, other: Scalar) -> bool:
    if one == other:
        return True
    if not is_on(one) and not is_on(other):
        return True
    if key == "kv_cache_dtype":
        return dtype_word(one) == dtype_word(other)
    numbers = as_number(one), as_number(other)
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0] == numbers[1]
    return str(one).strip().lower() == str(other).strip().lower()
