"""The ledger as ``tune`` uses it: every start a row, every result added to it, advice asked; disk first, always."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kvyield import _wire
from kvyield._errors import IncompleteError, KvyieldError, NotAllowedError, ServiceError
from kvyield.assemble import Assembled, verified_start
from kvyield.delivery import Delivery, Spooled, spool_observations, spool_verification
from kvyield.spool import Spool

if TYPE_CHECKING:
    from kvyield._client import Client
    from kvyield.verify import Verified


@dataclass
class Row:
    """A start on its way into the ledger. ``id`` is the ledger's, None while the start waits in the spool."""

    start: Assembled
    id: UUID | None = None
    results: list[Verified] = field(default_factory=list)
    waits: list[Spooled] = field(default_factory=list)
    is_settled: bool = False
    """Whether it was posted with its end: what more is read of it adds nothing."""


@dataclass
class Ledger:
    """Posts and asks. ``connect`` makes a client for each exchange: a round takes minutes, and services move."""

    connect: Callable[[], Client]
    spool: Spool
    say: Callable[[str], None]
    pace_of: Callable[[Client, UUID], Iterable[tuple[int, float]]]

    def refusal(self, is_dry: bool) -> str | None:
        """Why the service lets this token not do what ``tune`` needs; None when it does, or cannot be reached now."""
        needed = {"read"} if is_dry else {"ingest", "read"}
        try:
            with self.connect() as client:
                roles = set(client.allowed_roles())
        except NotAllowedError as error:
            return str(error)
        except KvyieldError:
            return None  # what is measured waits in the spool
        if "admin" in roles or needed <= roles:
            return None
        told, wanted = ", ".join(sorted(roles)) or "none", " and ".join(sorted(needed))
        return f"the token has the roles {told}, and tune needs {wanted}"

    def post(self, start: Assembled) -> Row:
        """Brings a start to the ledger; what the service does not take now waits in the spool, and that is said.

        Raises `IncompleteError` when the start lacks facts, `KvyieldError` when the service refuses it.
        """
        row = Row(start)
        spooled = spool_observations([start.observation()], self.spool)
        self._send(row, spooled, is_first=True)
        return row

    def add(self, row: Row, result: Verified) -> None:
        """Brings a result to the disk, as soon as it is there. One that ended the start is told by `end`."""
        row.results.append(result)
        if result.outcome is not None:
            return
        if row.id is not None:
            row.waits.append(spool_verification(row.id, result.verification, self.spool))
        else:
            before = row.waits
            whole = spool_observations([verified_start(row.start, row.results).observation()], self.spool)
            for one in before if not whole.unspooled else ():
                one.withdraw()
            row.waits = [whole]

    def send(self, row: Row) -> None:
        """Sends what waits of a row."""
        waiting, row.waits = row.waits, []
        for spooled in waiting:
            self._send(row, spooled)

    def end(self, row: Row, end: Assembled) -> None:
        """Brings the end of a start to the ledger, which merges it with its row; says what keeps it from that."""
        row.is_settled = True
        try:
            self._send(row, spool_observations([end.observation()], self.spool))
        except IncompleteError as error:
            self.say(f"the end of a start could not be posted: {error}")

    def advise(self, question: Mapping[str, Any]) -> _wire.StoredRecommendation:
        """Asks for advice and has it stored. Raises `ServiceError`."""
        with self.connect() as client:
            return client.store_recommendation(**question)

    def look_up(self, question: Mapping[str, Any]) -> _wire.Recommendation:
        """Asks for advice and leaves nothing behind. Raises `ServiceError`."""
        with self.connect() as client:
            return client.recommend(**question)

    def is_verified(self, row: Row, tokens: int, concurrent: int) -> bool:
        """Whether the ledger has a verification of this very start that was asked for no less."""
        if row.id is None:
            return False
        with suppress(ServiceError), self.connect() as client:
            stored = client.observation(row.id)
            return stored.retracted_at is None and any(
                one.passed and one.prompt_tokens >= tokens * 0.995 and (one.concurrent or 1) >= concurrent
                for one in stored.verifications
            )
        return False

    def pace(self, row: Row) -> list[tuple[int, float]]:
        """What prompts took by the ledger."""
        if row.id is None:
            return []
        with suppress(KvyieldError), self.connect() as client:
            return list(self.pace_of(client, row.id))
        return []

    def _send(self, row: Row, spooled: Spooled, *, is_first: bool = False) -> None:
        for delivery in spooled.send_by(self.connect):
            if delivery.result == "spooled":
                row.waits += [spooled] if is_first else []
                self.say(f"waits in the spool: {delivery.reason}")
            elif delivery.result in ("refused", "lost"):
                self._refused(delivery, is_first=is_first)
            elif row.id is None and isinstance(delivery.item, _wire.Observation):
                row.id = delivery.stored_id

    def _refused(self, delivery: Delivery, *, is_first: bool) -> None:
        if is_first and delivery.error is not None:
            raise delivery.error
        if is_first:
            raise KvyieldError(f"the start is {delivery.result}: {delivery.reason}")
        self.say(f"{delivery.result}: {delivery.reason}")
