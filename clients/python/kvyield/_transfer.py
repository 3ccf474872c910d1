"""Rules of the exchange that both clients share: limits, retries, the address, how an answer is judged. No I/O."""

from __future__ import annotations

import ipaddress
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from kvyield import _wire
from kvyield._calls import Answer
from kvyield._errors import (
    ConfigError,
    ServiceError,
    ServiceFailedError,
    ServiceUnreachableError,
    UnexpectedAnswerError,
    error_of,
)

T = TypeVar("T")
LONGEST_PAUSE_SECONDS = 8.0


@dataclass(frozen=True)
class Limits:
    """Bounds of one call, in seconds and bytes. ``total_seconds`` holds for the call with all its retries.

    ``until`` is a moment of ``time.monotonic`` after which no call goes on: several calls then share one deadline.
    """

    connect_seconds: float = 5.0
    read_seconds: float = 15.0
    total_seconds: float = 30.0
    export_seconds: float = 3600.0
    answer_bytes: int = 32 * 2**20
    retries: int = 2
    first_pause_seconds: float = 0.25
    until: float | None = None


@dataclass(frozen=True)
class Origin:
    """Where the service is: a base address without trailing slash."""

    url: str
    is_loopback: bool

    @classmethod
    def parse(cls, url: str) -> Origin:
        """Raises `ConfigError` when the address is not a plain http or https one."""
        try:
            parts = urlsplit(url.strip())
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is not an address: {error}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError(f"{url!r} is not an address like http://127.0.0.1:8321")
        if parts.username is not None or parts.query or parts.fragment:
            raise ConfigError("the address holds more than scheme, host, port and path; a token goes to KVYIELD_TOKEN")
        return cls(url=url.strip().rstrip("/"), is_loopback=_is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Attempts:
    """The time and tries left for one call; `pause_after` says how long to wait before the next, or raises."""

    def __init__(self, limits: Limits, *, idempotent: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._ends = clock() + limits.total_seconds
        if limits.until is not None:
            self._ends = min(self._ends, limits.until)
        self._left = limits.retries if idempotent else 0
        self._made = 0

    @property
    def remaining_seconds(self) -> float:
        return max(self._ends - self._clock(), 0.0)

    def pause_after(self, error: ServiceError) -> float:
        """Seconds to wait: backoff with jitter, or what the service asked for. Raises the error if it is final."""
        if self._left <= 0 or not isinstance(error, ServiceUnreachableError | ServiceFailedError):
            raise error
        self._left -= 1
        pause = backoff_seconds(self._limits.first_pause_seconds, self._made)
        self._made += 1
        if isinstance(error, ServiceFailedError) and error.retry_after_seconds is not None:
            pause = error.retry_after_seconds
        if pause >= self.remaining_seconds:
            raise error
        return pause


def backoff_seconds(first_seconds: float, made: int, longest_seconds: float = LONGEST_PAUSE_SECONDS) -> float:
    """The pause after ``made`` earlier ones: doubling up to the longest, of which a random upper half is taken."""
    ceiling: float = min(first_seconds * 2 ** min(made, 30), longest_seconds)
    return ceiling * (0.5 + random.random() / 2)  # noqa: S311  # jitter needs no secrecy


def check_answer(status: int, headers: Mapping[str, str], body: bytes, origin: Origin) -> Answer:
    """The answer when it is a success; raises what it stands for otherwise. Header names are lower case."""
    if 200 <= status < 300:
        return Answer(status, body)
    if status < 400:
        target = headers.get("location", "somewhere else")[:200]
        raise UnexpectedAnswerError(
            f"{origin.url} redirects to {target!r}; redirects are not followed, fix the address"
        )
    problem = _problem(status, headers, body)
    if problem is None and status in (404, 405):
        raise UnexpectedAnswerError(
            f"{origin.url} answers HTTP {status}, but not as kvyield does; is the address right?"
        )
    raise error_of(status, problem or _wire.Problem(title=_phrase(status), status=status), _retry_after(headers))


def _problem(status: int, headers: Mapping[str, str], body: bytes) -> _wire.Problem | None:
    if "json" not in headers.get("content-type", ""):
        return None
    try:
        problem = msgspec.json.decode(body, type=_wire.Refusal)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if problem.error is not None and problem.error.data is not None:  # of /mcp
        return problem.error.data
    return problem if problem.title or problem.detail or problem.status == status else None


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "unknown status"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max((parsedate_to_datetime(text) - datetime.now(timezone.utc)).total_seconds(), 0.0)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def within(seconds: float, work: Callable[[], T]) -> T | None:
    """What ``work`` returns or raises, or None when it takes longer; it then goes on in its own thread."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # carried to the caller, whatever it is
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="kvyield-call").start()
    try:
        return future.result(timeout=seconds)
    except FutureTimeoutError:
        if future.done():
            raise
        return None
