"""Tokens as the database has them now, and from memory while it is away."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import NamedTuple

from kvyield_server.storage.records import ApiToken
from kvyield_server.storage.uow import Storage
from kvyield_server.usecases.tokens import any_token, hash_of

MOST_KNOWN = 1_024
KNOWN_SECONDS = 86_400.0  # how long a token is taken from memory while the database is away


class Found(NamedTuple):
    """Whether callers need a token, and the one that was looked for, valid or not."""

    is_needed: bool
    token: ApiToken | None


class _Known(NamedTuple):
    token: ApiToken
    stamp: Hashable
    checked_at: float


class KnownTokens:
    """Looks tokens up. What was read is right until something is committed, by any process, so that a revocation holds
    at once for all replicas.

    While the database does not answer, a token that it confirmed within ``KNOWN_SECONDS`` is taken as it was then. The
    ``MOST_KNOWN`` that were used last are remembered.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._stamp = storage.stamp()
        self.is_needed = self._read_needed()

    def are_needed(self) -> bool:
        """Say whether callers need a token, after a look at the database. Once the first was made, they always do."""
        if not self.is_needed:
            stamp = self._storage.stamp()
            if stamp != self._stamp:
                self.is_needed, self._stamp = self._read_needed(), stamp
        return self.is_needed

    def find(self, text: str) -> Found:
        """Look for the token with that text in the database. StorageUnavailableError when it does not answer."""
        if not self.are_needed() or not text:
            return Found(self.is_needed, None)
        wanted, stamp = hash_of(text), self._storage.stamp()
        with self._lock:
            known = self._known.get(wanted)
        if known is not None and known.stamp == stamp:
            token: ApiToken | None = known.token
        else:
            with self._storage.read() as uow:
                token = uow.tokens.by_hash(wanted)
        self._remember(wanted, token, stamp)
        return Found(self.is_needed, token)

    def remembered(self, text: str) -> Found | None:
        """Return what is known without the database; None when the token was not confirmed lately."""
        if not self.is_needed or not text:
            return Found(self.is_needed, None)
        with self._lock:
            known = self._known.get(hash_of(text))
        is_fresh = known is not None and time.monotonic() - known.checked_at <= KNOWN_SECONDS
        return Found(self.is_needed, known.token) if known is not None and is_fresh else None

    def _remember(self, wanted: str, token: ApiToken | None, stamp: Hashable) -> None:
        with self._lock:
            self._known.pop(wanted, None)
            if token is not None:
                self._known[wanted] = _Known(token, stamp, time.monotonic())
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)

    def _read_needed(self) -> bool:
        with self._storage.read() as uow:
            return any_token(uow)
