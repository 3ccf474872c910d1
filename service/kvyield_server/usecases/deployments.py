"""Deployments: which fitted deployment of a pair a question is about, or a cold start when there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from kvyield_server.domain.answers import Caution
from kvyield_server.domain.facts.observation import Engine, EngineName, Flags, Hardware, Model, Observation
from kvyield_server.errors import InvalidError, NotFoundError
from kvyield_server.storage.records import Pair
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.fits import FitCache, transfers_to
from kvyield_server.usecases.select import Selector, find_pair

if TYPE_CHECKING:
    from kvyield_server.domain.model.fit import DeploymentFit, PairFit


@dataclass(frozen=True)
class Subject:
    """What a selector meant: a recorded pair with its fits, or only a model that starts cold."""

    selector: Selector
    hardware: Hardware
    model: Model
    pair: Pair | None
    fit: PairFit | None
    transfers: tuple[Observation, ...]

    @property
    def pair_id(self) -> UUID | None:
        return self.pair.id if self.pair else None

    @property
    def engine(self) -> EngineName:
        """The engine that was named, else the one of the newest start; InvalidError when neither says."""
        if self.selector.engine is not None:
            return self.selector.engine
        if self.fit and self.fit.deployments:
            return self.fit.deployments[0].summary.engine
        raise InvalidError([("/engine", "engine is needed: the pair has no start that says which.")])

    def deployment(self, flags: Flags) -> DeploymentFit:
        """Return the deployment that agrees with the selector and the flags, else a cold start."""
        chosen = self.fit and self.fit.choose(
            engine=self.engine, engine_version=self.selector.engine_version, like=self.selector.like, flags=flags
        )
        return chosen or self._cold(flags)

    def cautions(self, fit: DeploymentFit) -> tuple[Caution, ...]:
        """Return what to say when the deployment is not of the engine version that was asked for."""
        asked, found = self.selector.engine_version, fit.summary.engine_version
        if asked is None or asked == found:
            return ()
        detail = f"Asked for version {asked}; the evidence is of {found or 'an unknown version'}."
        return (Caution(code="other_version", detail=detail),)

    def _cold(self, flags: Flags) -> DeploymentFit:
        from kvyield_server.domain.model.fit import cold_fit  # scipy loads at the first fit

        engine = Engine(name=self.engine, version=self.selector.engine_version)
        hardware, model = self.hardware, self.model
        return cold_fit(hardware=hardware, model=model, engine=engine, flags=flags, transfers=self.transfers)


def subject_of(uow: UnitOfWork, fits: FitCache, selector: Selector) -> Subject:
    """Return what a selector means.

    Raises:
        NotFoundError, AmbiguousError, InvalidError: as ``find_pair``; a selector with facts may name a new pair.
    """
    try:
        pair = find_pair(uow, selector)
    except NotFoundError:
        if selector.facts is None or selector.model is None or selector.like is not None:
            raise
        return _never_recorded(uow, selector)
    pair = replace(pair, hardware=_told_hardware(pair.hardware, selector), model=_told_model(pair.model, selector))
    fit = fits.of_pair(uow, pair, _told(selector))
    is_known = any(selector.engine in (None, deployment.summary.engine) for deployment in fit.deployments)
    transfers = () if is_known else transfers_to(uow, pair.model.name, pair.id)
    return Subject(selector, pair.hardware, pair.model, pair, fit, transfers)


def _never_recorded(uow: UnitOfWork, selector: Selector) -> Subject:
    hardware = _told_hardware(Hardware(gpu=selector.gpu or "", gpu_count=selector.gpu_count or 1), selector)
    model = _told_model(Model(name=selector.model or ""), selector)
    transfers = transfers_to(uow, model.name, None)
    return Subject(selector, hardware, model, None, None, transfers)


def _told_hardware(known: Hardware, asked: Selector) -> Hardware:
    unified = known.unified_memory if asked.unified_memory is None else asked.unified_memory
    return replace(known, memory_gib=asked.memory_gib or known.memory_gib, unified_memory=unified)


def _told_model(known: Model, asked: Selector) -> Model:
    return replace(known, facts={**known.facts, **(asked.facts or {})})


def _told(asked: Selector) -> str:
    told = (asked.facts, asked.memory_gib, asked.unified_memory)
    return "" if told == (None, None, None) else repr(told)
