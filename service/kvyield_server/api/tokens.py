"""Tokens as the database has them now, and from memory while it is away."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import NamedTuple

from kvyield_server.errors import StorageUnavailableError
from kvyield_server.usecases.ports import ApiToken, Storage
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
    ``MOST_KNOWN`` that were used last are remembered. All methods may wait for the database.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._stamp = storage.stamp()
        self._is_needed = self._read_needed()

    def are_needed(self) -> bool:
        """Say whether callers need a token. Once the first was ever made, they always do."""
        if not self._is_needed:
            try:
                stamp = self._storage.stamp()
                if stamp != self._stamp:
                    self._is_needed, self._stamp = self._read_needed(), stamp
            except StorageUnavailableError:
                return False
        return self._is_needed

    def find(self, text: str) -> Found:
        """Look for the token with that text.

        Raises:
            StorageUnavailableError: the database does not answer, and no such token is remembered.
        """
        is_needed = self.are_needed()
        return Found(is_needed, self._find(hash_of(text)) if is_needed and text else None)

    def _find(self, wanted: str) -> ApiToken | None:
        with self._lock:
            known = self._known.get(wanted)
        try:
            stamp = self._storage.stamp()
            if known is not None and known.stamp == stamp:
                token: ApiToken | None = known.token
            else:
                with self._storage.read() as uow:
                    token = uow.tokens.by_hash(wanted)
        except StorageUnavailableError:
            if known is None or time.monotonic() - known.checked_at > KNOWN_SECONDS:
                raise
            return known.token
        self._remember(wanted, token, stamp)
        return token

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
