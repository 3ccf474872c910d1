"""The audit trail over HTTP: who changed what, and when."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from litestar import Request, Response, get
from msgspec import Struct

from kvyield_server.api.auth import MANAGES
from kvyield_server.api.conditional import answered
from kvyield_server.api.pages import key_of, page_of
from kvyield_server.api.request import QUERY, query_of
from kvyield_server.schemas.common import Page
from kvyield_server.schemas.paging import PageQuery
from kvyield_server.usecases.ports import AuditEntry, UnitOfWork


class AuditEntryOut(Struct, frozen=True, kw_only=True):
    """``actor`` is a token's name, ``cli``, or ``loopback`` where no token exists; ``subject`` is the id of the thing.

    A post is not in the trail: each observation itself keeps when it came and with which token.
    """

    id: UUID
    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, Any]


@get("/audit", operation_id="list_audit", opt={**MANAGES, QUERY: PageQuery})
async def list_audit(request: Request[Any, Any, Any]) -> Response[Page[AuditEntryOut]]:
    """List changes by people: verifications, retractions, stored recommendations, tokens, retention; newest first."""
    query = query_of(request, PageQuery)
    after = key_of(query.page_token)

    def work(uow: UnitOfWork) -> Page[AuditEntryOut]:
        return page_of(uow.audit.page(after, query.page_size), _out)

    return await answered(request, work)


def _out(entry: AuditEntry) -> AuditEntryOut:
    return AuditEntryOut(
        id=entry.id,
        at=entry.at,
        actor=entry.actor,
        action=entry.action,
        subject=entry.subject,
        details=dict(entry.details),
    )
