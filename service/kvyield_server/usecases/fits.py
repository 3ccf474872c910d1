"""Fits of a pair, made once per state of its evidence and kept in memory.

The revision is read from the database each time, so a fit is right even when another process wrote the evidence.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING
from uuid import UUID

from kvyield_server.domain.answers import Caution
from kvyield_server.domain.facts.observation import Observation
from kvyield_server.storage.records import Pair
from kvyield_server.storage.uow import UnitOfWork

if TYPE_CHECKING:
    from kvyield_server.domain.model.fit import DeploymentFit, PairFit

MOST_STARTS, MOST_LENT, MOST_TRANSFERS = 2_000, 200, 2_000

Revisions = tuple[tuple[UUID, int], ...]
Key = tuple[UUID, Revisions, str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a fit is made from: a pair's own starts, and starts of the same model on other hardware."""

    observations: tuple[Observation, ...]
    transfers: tuple[Observation, ...]
    left_out: int = 0


class FitCache:
    """Fits by the revisions of all pairs of the model: at equal revisions a fit is still right.

    Simultaneous askers of one fit share one computation.
    """

    def __init__(self, executor: Executor, size: int = 256) -> None:
        self._executor = executor
        self._size = size
        self._lock = Lock()
        self._fits: OrderedDict[Key, Future[PairFit]] = OrderedDict()
        self.made = 0

    def of_pair(self, uow: UnitOfWork, pair: Pair, told: str = "") -> PairFit:
        """Return the fits of a pair, computed in the fit executor when its evidence changed.

        ``told`` names attributes of ``pair`` that the asker told and the database does not hold.
        """
        key = (pair.id, uow.pairs.revisions_of_model(pair.model.name), told)
        future = self._known(key) or self._started(key, evidence_of(uow, pair))
        try:
            return future.result()
        except Exception:
            with self._lock:
                self._fits.pop(key, None)
            raise

    def _known(self, key: Key) -> Future[PairFit] | None:
        with self._lock:
            if key in self._fits:
                self._fits.move_to_end(key)
            return self._fits.get(key)

    def _started(self, key: Key, evidence: Evidence) -> Future[PairFit]:
        with self._lock:
            if key not in self._fits:
                self._fits[key] = self._executor.submit(_fit, evidence)
                self.made += 1
                self._drop_old(key)
            return self._fits[key]

    def _drop_old(self, newest: Key) -> None:
        for key in [key for key in self._fits if key[0] == newest[0] and key[1] != newest[1]]:
            del self._fits[key]
        while len(self._fits) > self._size:
            self._fits.popitem(last=False)


def evidence_of(uow: UnitOfWork, pair: Pair) -> Evidence:
    """Load the evidence of a pair: its newest starts, so that a large pair is fitted as quickly as any; retracted
    observations are left out."""
    starts = _starts(uow, pair, MOST_STARTS)
    left_out = max(0, pair.observation_count - len(starts))
    return Evidence(starts, transfers_to(uow, pair.model.name, pair.id), left_out)


def transfers_to(uow: UnitOfWork, model: str, pair_id: UUID | None) -> tuple[Observation, ...]:
    """Load the newest starts of a model on all hardware but one pair's."""
    others = [pair for pair in uow.pairs.of_model(model) if pair.id != pair_id]
    found: list[Observation] = []
    for pair in others:
        found += _starts(uow, pair, min(MOST_LENT, MOST_TRANSFERS - len(found)))
        if len(found) >= MOST_TRANSFERS:
            break
    return tuple(found)


def _starts(uow: UnitOfWork, pair: Pair, most: int) -> tuple[Observation, ...]:
    return tuple(_completed(stored.observation, pair) for stored in uow.observations.of_pair(pair.id, newest=most))


def _completed(start: Observation, pair: Pair) -> Observation:
    """Return a start with the attributes that other starts of its pair told: memory, and facts of the model."""
    hardware = replace(
        start.hardware,
        memory_gib=start.hardware.memory_gib or pair.hardware.memory_gib,
        unified_memory=_first(start.hardware.unified_memory, pair.hardware.unified_memory),
        driver_memory_gib=start.hardware.driver_memory_gib or pair.hardware.driver_memory_gib,
    )
    model = replace(start.model, facts={**pair.model.facts, **start.model.facts})
    return replace(start, hardware=hardware, model=model)


def _first(given: bool | None, known: bool | None) -> bool | None:
    return known if given is None else given


def _fit(evidence: Evidence) -> PairFit:
    from kvyield_server.domain.model.fit import PairEvidence, fit_pair  # scipy loads at the first fit

    fit = fit_pair(PairEvidence(evidence.observations, evidence.transfers))
    if not evidence.left_out:
        return fit
    used, all_starts = len(evidence.observations), len(evidence.observations) + evidence.left_out
    detail = f"Of the pair's {all_starts} starts the newest {used} were used; older ones count no more."
    warning = Caution(code="newest_starts_only", detail=detail)
    return replace(fit, deployments=tuple(_warned(deployment, warning) for deployment in fit.deployments))


def _warned(deployment: DeploymentFit, warning: Caution) -> DeploymentFit:
    summary = replace(deployment.summary, warnings=(*deployment.summary.warnings, warning))
    return replace(deployment, summary=summary)
