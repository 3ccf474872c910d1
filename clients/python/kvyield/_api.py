"""The API's methods, synchronous and asynchronous twins. Knows no HTTP library; `_send` is the only seam."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from kvyield import _calls, _wire
from kvyield._calls import Call
from kvyield._errors import ConfigError, InvalidError, NotAllowedError, RefusedError

T = TypeVar("T")
FORBIDDEN = 403


def _question(fields: Mapping[str, Any]) -> _wire.Question:
    try:
        return msgspec.convert(dict(fields), _wire.Question, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the question is wrong: {error}") from None


class Api:
    """Every call of the API, synchronous. All methods raise `ServiceError`s, as drawn in `kvyield._errors`."""

    def _send(self, call: Call[T]) -> T:
        raise NotImplementedError

    def post_observation(self, observation: _wire.Observation) -> _wire.Receipt:
        """Store one start; posting it again gives the stored one (``created`` is then False)."""
        return self._send(_calls.post_observation(observation))

    def post_observations(self, observations: Sequence[_wire.Observation]) -> list[_wire.BatchItem]:
        """Store many starts, any number; one bad item never stops the others. Items come in the order of the input."""
        items: list[_wire.BatchItem] = []
        for first, call in _calls.post_batches(observations):
            batch = self._send(call)
            items += [msgspec.structs.replace(item, index=item.index + first) for item in batch]
        return sorted(items, key=lambda item: item.index)

    def observation(self, observation_id: UUID | str) -> _wire.StoredObservation:
        """One start of the ledger."""
        return self._send(_calls.observation(observation_id))

    def observations_page(self, **filters: object) -> _wire.ObservationPage:
        """One page, newest first.

        Filters: pair_id, gpu, model, engine, outcome, host, since, until, sort, page_size, page_token.
        """
        return self._send(_calls.observations_page(filters))

    def observations(self, **filters: object) -> Iterator[_wire.StoredObservation]:
        """All observations that pass the filters, page by page; see `observations_page`."""
        token: str | None = None
        while True:
            page = self.observations_page(**(filters | {"page_token": token}))
            yield from page.items
            if page.next_page_token is None or page.next_page_token == token:
                return
            token = page.next_page_token

    def add_verification(self, observation_id: UUID | str, verification: _wire.Verification) -> _wire.StoredObservation:
        """Add a long prompt's result to a start; the same one again is known."""
        return self._send(_calls.add_verification(observation_id, verification))

    def check_verification(self, observation_id: UUID | str) -> None:
        """Whether a verification of a start would be taken: raises what refuses it. Nothing is stored."""
        with suppress(InvalidError):
            self._send(_calls.probe_verification(observation_id))

    def retract(self, observation_id: UUID | str, reason: str) -> _wire.StoredObservation:
        """Take a start out of the fits; it stays in the ledger, marked with the reason. Never retried."""
        return self._send(_calls.retract(observation_id, reason))

    def correct(
        self, observation_id: UUID | str, reason: str, **parts: Mapping[str, _wire.Scalar]
    ) -> _wire.StoredObservation:
        """Correct wrong facts; the former values stay readable. Never retried.

        ``parts`` are ``hardware``, ``model``, ``engine`` and ``flags``, each with the fields that change.
        """
        return self._send(_calls.correct(observation_id, {**parts, "reason": reason}))

    def pairs_page(self, **filters: object) -> _wire.PairPage:
        """One page of hardware/model pairs. Filters: search, gpu, model, sort, page_size, page_token."""
        return self._send(_calls.pairs_page(filters))

    def pairs(self, **filters: object) -> Iterator[_wire.Pair]:
        """All pairs that pass the filters, page by page; see `pairs_page`."""
        token: str | None = None
        while True:
            page = self.pairs_page(**(filters | {"page_token": token}))
            yield from page.items
            if page.next_page_token is None or page.next_page_token == token:
                return
            token = page.next_page_token

    def pair(self, pair_id: UUID | str) -> _wire.Pair:
        """One hardware/model pair."""
        return self._send(_calls.pair(pair_id))

    def fits(self, pair_id: UUID | str) -> list[_wire.Fit]:
        """The fitted deployments of a pair."""
        return self._send(_calls.fits(pair_id))

    def curve(self, pair_id: UUID | str, **query: object) -> _wire.Curve:
        """Medians and bands over the fraction. Query: deployment, from, to, points."""
        return self._send(_calls.curve(pair_id, query))

    def predict(self, selector: _wire.Selector, flags: Sequence[Mapping[str, _wire.Scalar]]) -> list[_wire.Prediction]:
        """Pool and free memory for each set of flags, in the same order."""
        return self._send(_calls.predict(selector, flags))

    def recommend(self, **question: Any) -> _wire.Recommendation:
        """Flags for a target; the keywords are the fields of `_wire.Question`, ``target_tokens`` always needed."""
        return self._send(_calls.recommend(_question(question)))

    def recommend_text(self, text_format: str, **question: Any) -> str:
        """The same answer as text: json (as the service wrote it), args, systemd, docker, compose or kubernetes."""
        return self._send(_calls.recommend_text(_question(question), text_format))

    def store_recommendation(self, **question: Any) -> _wire.StoredRecommendation:
        """The same answer, stored: an observation that carries its id is compared with it. Never retried."""
        return self._send(_calls.store_recommendation(_question(question)))

    def recommendation(self, recommendation_id: UUID | str) -> _wire.StoredRecommendation:
        """A stored answer."""
        return self._send(_calls.recommendation(recommendation_id))

    def settle(self, recommendation_id: UUID | str, observation_id: UUID | str) -> _wire.StoredRecommendation:
        """Tie a stored answer to a stored start that does not name it."""
        return self._send(_calls.settle(recommendation_id, observation_id))

    def recommendation_text(self, recommendation_id: UUID | str, text_format: str) -> str:
        """A stored answer as text: json (as the service wrote it), args, systemd, docker, compose or kubernetes."""
        return self._send(_calls.recommendation_text(recommendation_id, text_format))

    def calibration(self) -> dict[str, Any]:
        """How past advice turned out."""
        return self._send(_calls.calibration())

    def mcp(self, method: str, params: Mapping[str, Any]) -> _wire.Message:
        """What /mcp answers a message of the Model Context Protocol: ``result`` or ``error``. Never retried."""
        return self._send(_calls.mcp(method, params))

    def health(self) -> _wire.Health:
        """Whether the service can work; raises `ServiceFailedError` when it cannot. Never retried."""
        return self._send(_calls.ready())

    def allowed_roles(self) -> list[str]:
        """The roles that this token has, or all of them without tokens: ingest, read, admin. Nothing is stored.

        Raises `NotAllowedError` for a token that is missing, unknown or expired.
        """
        roles = []
        for role, call in _calls.probes().items():
            try:
                self._send(call)
            except NotAllowedError as error:
                if error.status != FORBIDDEN:
                    raise
                continue
            except RefusedError:
                pass
            roles.append(role)
        return roles


class AsyncApi:
    """Every call of the API, asynchronous. All methods raise `ServiceError`s, as drawn in `kvyield._errors`."""

    async def _send(self, call: Call[T]) -> T:
        raise NotImplementedError

    async def post_observation(self, observation: _wire.Observation) -> _wire.Receipt:
        """Store one start; posting it again gives the stored one (``created`` is then False)."""
        return await self._send(_calls.post_observation(observation))

    async def post_observations(self, observations: Sequence[_wire.Observation]) -> list[_wire.BatchItem]:
        """Store many starts, any number; one bad item never stops the others. Items come in the order of the input."""
        items: list[_wire.BatchItem] = []
        for first, call in _calls.post_batches(observations):
            batch = await self._send(call)
            items += [msgspec.structs.replace(item, index=item.index + first) for item in batch]
        return sorted(items, key=lambda item: item.index)

    async def observation(self, observation_id: UUID | str) -> _wire.StoredObservation:
        """One start of the ledger."""
        return await self._send(_calls.observation(observation_id))

    async def observations_page(self, **filters: object) -> _wire.ObservationPage:
        """One page, newest first.

        Filters: pair_id, gpu, model, engine, outcome, host, since, until, sort, page_size, page_token.
        """
        return await self._send(_calls.observations_page(filters))

    async def observations(self, **filters: object) -> AsyncIterator[_wire.StoredObservation]:
        """All observations that pass the filters, page by page; see `observations_page`."""
        token: str | None = None
        while True:
            page = await self.observations_page(**(filters | {"page_token": token}))
            for item in page.items:
                yield item
            if page.next_page_token is None or page.next_page_token == token:
                return
            token = page.next_page_token

    async def add_verification(
        self, observation_id: UUID | str, verification: _wire.Verification
    ) -> _wire.StoredObservation:
        """Add a long prompt's result to a start; the same one again is known."""
        return await self._send(_calls.add_verification(observation_id, verification))

    async def check_verification(self, observation_id: UUID | str) -> None:
        """Whether a verification of a start would be taken: raises what refuses it. Nothing is stored."""
        with suppress(InvalidError):
            await self._send(_calls.probe_verification(observation_id))

    async def retract(self, observation_id: UUID | str, reason: str) -> _wire.StoredObservation:
        """Take a start out of the fits; it stays in the ledger, marked with the reason. Never retried."""
        return await self._send(_calls.retract(observation_id, reason))

    async def correct(
        self, observation_id: UUID | str, reason: str, **parts: Mapping[str, _wire.Scalar]
    ) -> _wire.StoredObservation:
        """Correct wrong facts; the former values stay readable. Never retried.

        ``parts`` are ``hardware``, ``model``, ``engine`` and ``flags``, each with the fields that change.
        """
        return await self._send(_calls.correct(observation_id, {**parts, "reason": reason}))

    async def pairs_page(self, **filters: object) -> _wire.PairPage:
        """One page of hardware/model pairs. Filters: search, gpu, model, sort, page_size, page_token."""
        return await self._send(_calls.pairs_page(filters))

    async def pairs(self, **filters: object) -> AsyncIterator[_wire.Pair]:
        """All pairs that pass the filters, page by page; see `pairs_page`."""
        token: str | None = None
        while True:
            page = await self.pairs_page(**(filters | {"page_token": token}))
            for item in page.items:
                yield item
            if page.next_page_token is None or page.next_page_token == token:
                return
            token = page.next_page_token

    async def pair(self, pair_id: UUID | str) -> _wire.Pair:
        """One hardware/model pair."""
        return await self._send(_calls.pair(pair_id))

    async def fits(self, pair_id: UUID | str) -> list[_wire.Fit]:
        """The fitted deployments of a pair."""
        return await self._send(_calls.fits(pair_id))

    async def curve(self, pair_id: UUID | str, **query: object) -> _wire.Curve:
        """Medians and bands over the fraction. Query: deployment, from, to, points."""
        return await self._send(_calls.curve(pair_id, query))

    async def predict(
        self, selector: _wire.Selector, flags: Sequence[Mapping[str, _wire.Scalar]]
    ) -> list[_wire.Prediction]:
        """Pool and free memory for each set of flags, in the same order."""
        return await self._send(_calls.predict(selector, flags))

    async def recommend(self, **question: Any) -> _wire.Recommendation:
        """Flags for a target; the keywords are the fields of `_wire.Question`, ``target_tokens`` always needed."""
        return await self._send(_calls.recommend(_question(question)))

    async def recommend_text(self, text_format: str, **question: Any) -> str:
        """The same answer as text: json (as the service wrote it), args, systemd, docker, compose or kubernetes."""
        return await self._send(_calls.recommend_text(_question(question), text_format))

    async def store_recommendation(self, **question: Any) -> _wire.StoredRecommendation:
        """The same answer, stored: an observation that carries its id is compared with it. Never retried."""
        return await self._send(_calls.store_recommendation(_question(question)))

    async def recommendation(self, recommendation_id: UUID | str) -> _wire.StoredRecommendation:
        """A stored answer."""
        return await self._send(_calls.recommendation(recommendation_id))

    async def settle(self, recommendation_id: UUID | str, observation_id: UUID | str) -> _wire.StoredRecommendation:
        """Tie a stored answer to a stored start that does not name it."""
        return await self._send(_calls.settle(recommendation_id, observation_id))

    async def recommendation_text(self, recommendation_id: UUID | str, text_format: str) -> str:
        """A stored answer as text: json (as the service wrote it), args, systemd, docker, compose or kubernetes."""
        return await self._send(_calls.recommendation_text(recommendation_id, text_format))

    async def calibration(self) -> dict[str, Any]:
        """How past advice turned out."""
        return await self._send(_calls.calibration())

    async def mcp(self, method: str, params: Mapping[str, Any]) -> _wire.Message:
        """What /mcp answers a message of the Model Context Protocol: ``result`` or ``error``. Never retried."""
        return await self._send(_calls.mcp(method, params))

    async def health(self) -> _wire.Health:
        """Whether the service can work; raises `ServiceFailedError` when it cannot. Never retried."""
        return await self._send(_calls.ready())

    async def allowed_roles(self) -> list[str]:
        """The roles that this token has, or all of them without tokens: ingest, read, admin. Nothing is stored.

        Raises `NotAllowedError` for a token that is missing, unknown or expired.
        """
        roles = []
        for role, call in _calls.probes().items():
            try:
                await self._send(call)
            except NotAllowedError as error:
                if error.status != FORBIDDEN:
                    raise
                continue
            except RefusedError:
                pass
            roles.append(role)
        return roles
