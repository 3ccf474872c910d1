"""The audit trail: a change and the note of who made it are stored together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from kvyield_server.storage.records import AuditEntry
from kvyield_server.storage.uow import UnitOfWork
from kvyield_server.storage.values import new_id

T = TypeVar("T")
COMMAND_LINE = "cli"


def audited(
    job: Callable[[UnitOfWork], T],
    action: str,
    *,
    actor: str,
    now: datetime,
    subject: Callable[[T], UUID | None],
    details: Mapping[str, object] | None = None,
) -> Callable[[UnitOfWork], T]:
    """Return the job with a note of it; ``subject`` names what was changed, None when nothing was."""

    def noted(uow: UnitOfWork) -> T:
        result = job(uow)
        changed = subject(result)
        if changed is not None:
            entry = AuditEntry(
                id=new_id(), at=now, actor=actor, action=action, subject=str(changed), details=details or {}
            )
            uow.audit.add(entry)
        return result

    return noted
