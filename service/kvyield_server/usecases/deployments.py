"""Deployments: which fitted deployment of a pair a question is about, or a cold start when there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from kvyield_server.domain.answers import Caution
from kvyield_server.domain.observation import Engine, EngineName, Flags, Hardware, Model, Observation
from kvyield_server.errors import InvalidError, NotFoundError
from kvyield_server.storage.records import Pair
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.usecases.fits import FitCache, Revisions, revisions, transfers_to
from kvyield_server.usecases.select import Selector, find_pair

if TYPE_CHECKING:
    from kvyield_server.domain.fit import DeploymentFit, PairFit


@dataclass(frozen=True)
class Subject:
    """What a selector meant: a recorded pair with its fits, or only a model that starts cold."""

    selector: Selector
    pair: Pair | None
    fit: PairFit | None
    transfers: tuple[Observation, ...]
    revisions: Revisions

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
        return (Caution(code="other_engine_version", detail=detail),)

    def _cold(self, flags: Flags) -> DeploymentFit:
        from kvyield_server.domain.fit import cold_fit  # noqa: PLC0415 - scipy loads at the first fit

        hardware, model = self._known()
        engine = Engine(name=self.engine, version=self.selector.engine_version)
        return cold_fit(hardware=hardware, model=model, engine=engine, flags=flags, transfers=self.transfers)

    def _known(self) -> tuple[Hardware, Model]:
        asked = self.selector
        hardware = self.pair.hardware if self.pair else Hardware(gpu=asked.gpu or "", gpu_count=asked.gpu_count or 1)
        model = self.pair.model if self.pair else Model(name=asked.model or "")
        hardware = Hardware(
            gpu=hardware.gpu,
            gpu_count=hardware.gpu_count,
            memory_gib=asked.memory_gib or hardware.memory_gib,
            unified_memory=hardware.unified_memory if asked.unified_memory is None else asked.unified_memory,
        )
        return hardware, Model(name=model.name, revision=model.revision, facts={**model.facts, **(asked.facts or {})})


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
        model = selector.model
        return Subject(selector, None, None, transfers_to(uow, model, None), revisions(uow, model))
    state = revisions(uow, pair.model.name)
    fit = fits.of_pair(uow, pair, state)
    is_known = any(selector.engine in (None, deployment.summary.engine) for deployment in fit.deployments)
    transfers = () if is_known else transfers_to(uow, pair.model.name, pair.id)
    return Subject(selector, pair, fit, transfers, state)
