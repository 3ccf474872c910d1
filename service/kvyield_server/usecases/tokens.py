"""Bearer tokens: made once, shown once, kept only as a hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from ipaddress import ip_address

from kvyield_server.errors import AmbiguousError, InvalidError, NotFoundError, UnauthenticatedError
from kvyield_server.storage.records import ApiToken, Role
from kvyield_server.storage.uow import Storage, UnitOfWork
from kvyield_server.storage.values import new_id
from kvyield_server.usecases.audit import COMMAND_LINE, audited

PREFIX = "kvy_"
TOUCH_EVERY = timedelta(minutes=1)
_LONGEST_ADDRESS = 100


def new_token(name: str, roles: Iterable[Role], *, now: datetime, expires_at: datetime | None) -> tuple[ApiToken, str]:
    """Return a token as stored, and its text of 256 random bits, which is nowhere else."""
    text = PREFIX + secrets.token_urlsafe(32)
    token = ApiToken(
        id=new_id(), name=name, roles=frozenset(roles), token_hash=hash_of(text), created_at=now, expires_at=expires_at
    )
    return token, text


def hash_of(text: str) -> str:
    """Return the hash that is stored: the text is random enough that one round of SHA-256 is safe."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def authenticate(uow: UnitOfWork, text: str, *, now: datetime) -> ApiToken:
    """Return the token with that text.

    Raises:
        UnauthenticatedError: unknown, revoked or expired; the sentence says which only to who holds the token.
    """
    wanted = hash_of(text)
    return checked(uow.tokens.by_hash(wanted), wanted, now=now)


def checked(token: ApiToken | None, wanted: str, *, now: datetime) -> ApiToken:
    """Return the token that was found for a hash.

    Raises:
        UnauthenticatedError: as ``authenticate``.
    """
    if token is None or not hmac.compare_digest(token.token_hash, wanted):
        raise UnauthenticatedError("The bearer token is not known here.")
    if token.revoked_at is not None:
        raise UnauthenticatedError("The bearer token was revoked.")
    if not token.is_valid(now):
        raise UnauthenticatedError(f"The bearer token expired at {token.expires_at:%Y-%m-%dT%H:%M:%SZ}.")
    return token


def is_due_for_touch(token: ApiToken, now: datetime) -> bool:
    """Say whether the last use is worth writing down again."""
    return token.last_used_at is None or now - token.last_used_at >= TOUCH_EVERY


def any_token(uow: UnitOfWork) -> bool:
    """Say whether a token was ever made, be it revoked by now: from then on, every caller needs one."""
    return bool(uow.tokens.list())


def any_valid_token(uow: UnitOfWork, now: datetime) -> bool:
    """Say whether some token opens something now."""
    return any(token.is_valid(now) for token in uow.tokens.list())


def is_loopback(host: str) -> bool:
    """Say whether an address to listen on is reached from this machine only."""
    return host == "localhost" or (len(host) <= _LONGEST_ADDRESS and _is_loopback_address(host))


@lru_cache(1024)
def _is_loopback_address(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def create(storage: Storage, name: str, roles: Iterable[str], expires: str) -> tuple[ApiToken, str]:
    """Make and keep a token; return it and its text. InvalidError when ``expires`` cannot be read."""
    now = datetime.now(UTC)
    token, text = new_token(name, map(Role, roles), now=now, expires_at=expiry(expires, now))
    details = {"name": name, "roles": token.roles_text, "expires": expires}
    job = audited(
        lambda uow: uow.tokens.add(token),
        "token create",
        actor=COMMAND_LINE,
        now=now,
        subject=lambda _: token.id,
        details=details,
    )
    storage.write(job).result()
    return token, text


def revoke(storage: Storage, which: str) -> ApiToken:
    """Revoke a token by id or by a name that only one valid token has.

    Raises:
        NotFoundError, AmbiguousError: no token, or several, match.
    """
    with storage.read() as uow:
        tokens = uow.tokens.list()
    matches = [token for token in tokens if str(token.id) == which]
    matches = matches or [token for token in tokens if token.name == which and token.revoked_at is None]
    if not matches:
        raise NotFoundError(f"There is no token {which}.", [token.name for token in tokens[:5]])
    if len(matches) > 1:
        ids = [str(token.id) for token in matches]
        listed = [{"id": item, "name": which} for item in ids]
        raise AmbiguousError(f"Several tokens are named {which}: {', '.join(ids)}. Give the id.", listed)
    now = datetime.now(UTC)
    job = audited(
        lambda uow: uow.tokens.revoke(matches[0].id, now),
        "token revoke",
        actor=COMMAND_LINE,
        now=now,
        subject=lambda token: token.id,
        details={"name": matches[0].name},
    )
    return storage.write(job).result()


def described(storage: Storage) -> list[dict[str, str | None]]:
    """Return all tokens as a person may see them."""
    with storage.read() as uow:
        tokens = uow.tokens.list()
    return [_described(token, datetime.now(UTC)) for token in tokens]


def expiry(text: str, now: datetime) -> datetime | None:
    """Return when ``90d``, ``12h``, a date or a time ends; None for ``never``.

    Raises:
        InvalidError: it is none of these, or in the past.
    """
    if text == "never":
        return None
    try:
        moment = _moment(text, now)
    except (ValueError, OverflowError):
        raise InvalidError([("/expires", f"expires is {text!r}; give 90d, 12h, a date, or never.")]) from None
    if moment <= now:
        raise InvalidError([("/expires", f"expires is {text!r}, which is in the past.")])
    return moment


def _moment(text: str, now: datetime) -> datetime:
    if text[-1:] in ("d", "h") and text[:-1].isdecimal():
        return now + timedelta(**{"days" if text[-1] == "d" else "hours": int(text[:-1])})
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _described(token: ApiToken, now: datetime) -> dict[str, str | None]:
    state = "revoked" if token.revoked_at else "valid" if token.is_valid(now) else "expired"
    return {
        "id": str(token.id),
        "name": token.name,
        "roles": token.roles_text,
        "state": state,
        "expires_at": _seconds(token.expires_at),
        "last_used_at": _seconds(token.last_used_at),
    }


def _seconds(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds") if moment else None
