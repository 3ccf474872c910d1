"""The audit trail over HTTP: who changed what, and when."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from litestar import Request, get
from litestar.di import NamedDependency
from msgspec import Struct

from kvyield_server.api.auth import MANAGERS
from kvyield_server.api.pagination import key_of, page_of
from kvyield_server.api.services import services_of
from kvyield_server.schemas.common import JsonObject, Page
from kvyield_server.schemas.paging import PageQuery
from kvyield_server.storage.records import NEWEST_NOTED, AuditEntry
from kvyield_server.storage.uow import UnitOfWork


class AuditEntryOut(Struct, frozen=True, kw_only=True):
    """One change made through the API. A post is not one: each observation keeps when it came and with which token.

    Attributes:
        id: UUID of the entry.
        at: Time of the change, UTC.
        actor: Name of the token that made it, `cli` for the command line, or `loopback` where no token exists.
        action: What was done, such as `verify`, `retract` or `token create`.
        subject: Id of what was changed.
        details: What else is known of the change, such as the reason.
    """

    id: UUID
    at: datetime
    actor: str
    action: str
    subject: str
    details: JsonObject


@get("/audit", operation_id="list_audit", guards=[MANAGERS])
async def list_audit(request: Request[Any, Any, Any], parameters: NamedDependency[PageQuery]) -> Page[AuditEntryOut]:
    """List changes by people: verifications, retractions, stored recommendations, tokens, retention; newest first."""
    after = key_of(parameters.page_token, NEWEST_NOTED)

    def work(uow: UnitOfWork) -> Page[AuditEntryOut]:
        return page_of(uow.audit.page(after, parameters.page_size), _out, NEWEST_NOTED)

    return await services_of(request).read(work)


def _out(entry: AuditEntry) -> AuditEntryOut:
    return AuditEntryOut(
        id=entry.id,
        at=entry.at,
        actor=entry.actor,
        action=entry.action,
        subject=entry.subject,
        details=dict(entry.details),
    )
