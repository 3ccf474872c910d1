"""Who may do what: bearer tokens with roles, and the loopback rule."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from kvyield_server.api.services import Services, services_of
from kvyield_server.errors import ForbiddenError, StorageUnavailableError, UnauthenticatedError
from kvyield_server.storage.records import ApiToken, Role
from kvyield_server.storage.values import utc_now
from kvyield_server.usecases.tokens import checked, hash_of, is_due_for_touch, is_loopback

Connection = ASGIConnection[Any, Any, Any, Any]

_PROBES = "/health/"
_LONGEST_HOST = 255
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]{0,5})?")


class Allows:
    """A guard that lets a caller through whose bearer token has one of these roles; anyone while no token exists."""

    def __init__(self, *roles: Role) -> None:
        self.roles = frozenset(roles)

    async def __call__(self, connection: Connection, _: BaseRouteHandler) -> None:
        """Keep the caller's token as the user of the request.

        Raises:
            UnauthenticatedError: no token, or one that is unknown, expired or revoked.
            ForbiddenError: the token's roles do not allow this.
        """
        token = await authenticate(services_of(connection), self.text_of(connection))
        connection.scope["user"] = token
        if token is not None and self.roles.isdisjoint(token.roles):
            needed = " or ".join(sorted(self.roles))
            raise ForbiddenError(f"The token {token.name!r} has the role {token.roles_text}; this needs {needed}.")

    def text_of(self, connection: Connection) -> str:
        """Return the text of the token that came with a request; nothing when none did."""
        scheme, _, text = connection.headers.get("authorization", "").partition(" ")
        return text.strip() if scheme.lower() == "bearer" else ""


POSTERS = Allows(Role.INGEST, Role.ADMIN)
READERS = Allows(Role.INGEST, Role.READ, Role.ADMIN)
ASKERS = Allows(Role.READ, Role.ADMIN)
MANAGERS = Allows(Role.ADMIN)


async def authenticate(services: Services, text: str) -> ApiToken | None:
    """Return the token with that text, its use noted; None while no token exists, when nobody needs one.

    Raises:
        UnauthenticatedError: no text, or that of a token that is unknown, revoked or expired.
        StorageUnavailableError: the database does not answer, and the token is not remembered.
    """
    is_away = False
    try:
        found = await services.look(lambda: services.tokens.find(text))
    except StorageUnavailableError:
        known = services.tokens.remembered(text)
        if known is None:
            raise
        is_away, found = True, known
    if not found.is_needed:
        return None
    if not text:
        raise UnauthenticatedError(
            "A token is needed: send Authorization: Bearer, as kvyield-server token create gave it."
        )
    now = utc_now()
    token = checked(found.token, hash_of(text), now=now)
    if not is_away and is_due_for_touch(token, now):
        services.storage.write(lambda uow: uow.tokens.touch(token.id, now))
    return token


async def own_hosts_only(connection: Connection, _: BaseRouteHandler) -> None:
    """Refuse, as a guard of all routes, a name that is not this machine's while a loopback address is open to all.

    A page of another site can make its own name point to 127.0.0.1; the browser then sends that name as the host.

    Raises:
        ForbiddenError: the Host header is not a loopback name or address, and no token exists.
    """
    server = connection.scope.get("server")
    if server is None or not is_loopback(str(server[0])) or connection.scope["path"].startswith(_PROBES):
        return
    services = services_of(connection)
    for host in connection.headers.getall("host", []):
        if not _is_own(host) and not services.tokens.is_needed and not await services.look(services.tokens.are_needed):
            raise ForbiddenError(
                f"The Host header is {host[:100]!r}; without tokens this answers at 127.0.0.1 and "
                "localhost alone. Ask there, or make a token with kvyield-server token create."
            )


def _is_own(host: str) -> bool:
    named = _HOST.fullmatch(host.strip().lower()) if len(host) <= _LONGEST_HOST else None
    return named is not None and is_loopback(named[1].removesuffix("."))


def token_of(connection: Connection) -> ApiToken | None:
    """Return the caller's token; None when the service is open, or when the route asks for none."""
    token: ApiToken | None = connection.scope.get("user")
    return token


def token_id_of(connection: Connection) -> UUID | None:
    """Return the id of the caller's token; None when the service is open."""
    token = token_of(connection)
    return token.id if token else None


def actor_of(connection: Connection) -> str:
    """Return who is written into the audit trail."""
    token = token_of(connection)
    return token.name if token else "loopback"


def bound_to(connection: Connection) -> UUID | None:
    """Return the token whose own pairs are all that the caller may read; None when it may read all."""
    token = token_of(connection)
    return token.id if token and token.only_posts else None
