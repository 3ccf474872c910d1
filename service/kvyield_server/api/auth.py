"""Who may do what: bearer tokens with roles, and the loopback rule."""

from __future__ import annotations

import re
import time
from collections.abc import Hashable
from functools import lru_cache
from typing import Any
from uuid import UUID

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from kvyield_server.api.conditional import stamp_of
from kvyield_server.api.request import header_of
from kvyield_server.api.services import Services, services_of, utc_now
from kvyield_server.api.telemetry import CALLER
from kvyield_server.errors import ForbiddenError, UnauthenticatedError
from kvyield_server.usecases.ports import ApiToken, Role
from kvyield_server.usecases.tokens import any_token, checked, hash_of, is_due_for_touch, is_loopback

ROLES = "roles"
TOKEN = "kvyield_token"  # noqa: S105 - the name of a slot, not a secret
OPEN: dict[str, Any] = {}
POSTS = {ROLES: frozenset({Role.INGEST, Role.ADMIN})}
READS = {ROLES: frozenset({Role.INGEST, Role.READ, Role.ADMIN})}
ASKS = {ROLES: frozenset({Role.READ, Role.ADMIN})}
MANAGES = {ROLES: frozenset({Role.ADMIN})}
_PROBES = "/health/"

_LOOK_EVERY_SECONDS = 1.0
_MOST_REMEMBERED = 1_024
_LONGEST_HOST = 255
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]{0,5})?")


class Gate:
    """Knows whether tokens exist; until the first is made, a service on loopback serves without."""

    def __init__(self) -> None:
        self._exist = False
        self._tokens: dict[Hashable, ApiToken] = {}
        self._looked_at = float("-inf")

    async def is_closed(self, services: Services) -> bool:
        """Say whether callers need a token. Once they do, they always do."""
        if not self._exist and time.monotonic() - self._looked_at >= _LOOK_EVERY_SECONDS:
            self._exist = await services.read(any_token)
            self._looked_at = time.monotonic()
        return self._exist

    async def token(self, connection: ASGIConnection[Any, Any, Any, Any], text: str) -> ApiToken:
        """Return the caller's token, looked up anew whenever anything was committed since: by any process, so that a
        revocation holds everywhere at once.

        Raises:
            UnauthenticatedError: unknown, revoked or expired.
        """
        wanted = hash_of(text)
        key = (await stamp_of(connection), wanted)
        found = self._tokens.get(key) or await services_of(connection).token_with(wanted)
        token = checked(found, wanted, now=utc_now())
        if len(self._tokens) >= _MOST_REMEMBERED:
            self._tokens.clear()
        self._tokens[key] = token
        return token


def gate_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Gate:
    """Return the gate of the application that a request came to."""
    gate: Gate = connection.scope["litestar_app"].gate  # type: ignore[attr-defined]  # of app.py
    return gate


async def authorise(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Let a caller through whose token has one of the handler's roles.

    Raises:
        UnauthenticatedError: no token, or one that is unknown, expired or revoked.
        ForbiddenError: the token's role does not allow this.
    """
    roles = handler.opt.get(ROLES)
    services, gate = services_of(connection), gate_of(connection)
    if not roles or not await gate.is_closed(services):
        return
    text = _bearer(header_of(connection.scope, b"authorization"))
    token = await gate.token(connection, text)
    _remember(connection, services, token)
    if token.roles.isdisjoint(roles):
        needed = " or ".join(sorted(role.value for role in roles))
        raise ForbiddenError(f"The token {token.name!r} has the role {token.roles_text}; this needs {needed}.")


async def refuse_other_hosts(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """Return unless a name that is not this machine's led to a loopback address that is open to all.

    A page of another site can make its own name point to 127.0.0.1; the browser then sends that name as the host.

    Raises:
        ForbiddenError: the Host header is no loopback name or address, and no token exists.
    """
    server = connection.scope.get("server")
    if server is None or not is_loopback(str(server[0])) or connection.scope["path"].startswith(_PROBES):
        return
    for name, host in connection.scope["headers"]:
        is_own = name != b"host" or (len(host) <= _LONGEST_HOST and _is_loopback_host(host))
        if not is_own and not await gate_of(connection).is_closed(services_of(connection)):
            raise ForbiddenError(
                f"The Host header is {host.decode('latin-1')[:100]!r}; without tokens this answers at 127.0.0.1 and "
                "localhost alone. Ask there, or make a token with kvyield-server token create."
            )


@lru_cache(_MOST_REMEMBERED)
def _is_loopback_host(host: bytes) -> bool:
    return is_loopback(_without_port(host.decode("latin-1")))


def _without_port(host: str) -> str:
    """Return the name or address that a Host header holds; nothing when it holds anything else."""
    found = _HOST.fullmatch(host.strip().lower())
    return found[1].removesuffix(".") if found else ""


def token_of(request: Request[Any, Any, Any]) -> ApiToken | None:
    """Return the caller's token; None when the service is open."""
    token: ApiToken | None = request.scope["state"].get(TOKEN)
    return token


def token_id_of(request: Request[Any, Any, Any]) -> UUID | None:
    """Return the id of the caller's token; None when the service is open."""
    token = token_of(request)
    return token.id if token else None


def actor_of(request: Request[Any, Any, Any]) -> str:
    """Return who is written into the audit trail."""
    token = token_of(request)
    return token.name if token else "loopback"


def bound_to(request: Request[Any, Any, Any]) -> UUID | None:
    """Return the token whose own pairs are all that the caller may read; None when it may read all."""
    token = token_of(request)
    return token.id if token and token.only_posts else None


def _bearer(header: str | None) -> str:
    scheme, _, text = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not text.strip():
        raise UnauthenticatedError(
            "A token is needed: send Authorization: Bearer, as kvyield-server token create gave it."
        )
    return text.strip()


def _remember(connection: ASGIConnection[Any, Any, Any, Any], services: Services, token: ApiToken) -> None:
    connection.scope["state"][TOKEN] = token
    connection.scope["state"][CALLER] = token.name
    now = utc_now()
    if is_due_for_touch(token, now):
        services.storage.write(lambda uow: uow.tokens.touch(token.id, now))
