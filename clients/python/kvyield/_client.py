"""`Client` and `AsyncClient`: the whole API with typed methods, over httpx; no other file imports it.

Nothing here waits without a bound: connect and read have their own limits, and a total covers a call with all its
retries, name look-up and slowly dripping answers included. Redirects are not followed, bodies have a size limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from kvyield import __version__, _calls
from kvyield._api import Api, AsyncApi
from kvyield._calls import Answer, Call
from kvyield._errors import (
    AnswerTooLargeError,
    ConfigError,
    DeadlineError,
    ServiceError,
    ServiceUnreachableError,
    UnexpectedAnswerError,
)
from kvyield._secrets import redacted
from kvyield._transfer import Attempts, Limits, Origin, check_answer, within
from kvyield.config import Settings, load_settings

T = TypeVar("T")
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


class _Base:
    """Address, limits and the building of requests, shared by both clients."""

    def __init__(self, url: str | None, token: str | None, limits: Limits | None, ca_file: Path | None) -> None:
        settings = load_settings(url=url, token=token, ca_file=str(ca_file) if ca_file else None)
        self.origin = Origin.parse(settings.url)
        self.limits = limits or Limits()
        self._settings = settings

    def options(self) -> dict[str, Any]:
        if self._settings.token_fault:
            raise ConfigError(self._settings.token_fault)
        return {
            "headers": _headers(self._settings),
            "follow_redirects": False,
            "trust_env": not self.origin.is_loopback,
            "verify": _verify(self.origin, self._settings.ca_file),
        }

    def request(self, call: Call[Any], seconds: float) -> dict[str, Any]:
        content_type = {"content-type": "application/json"} if call.body is not None else {}
        return {
            "method": call.method,
            "url": self.origin.url + call.path,
            "params": dict(call.params) or None,
            "content": call.body,
            "headers": {**content_type, **call.headers},
            "timeout": self._timeout(seconds),
        }

    def _timeout(self, seconds: float) -> httpx.Timeout:
        read = max(min(self.limits.read_seconds, seconds), 0.001)
        return httpx.Timeout(read, connect=max(min(self.limits.connect_seconds, seconds), 0.001))

    def translated(self, error: Exception) -> ServiceError | ConfigError:
        if isinstance(error, httpx.TimeoutException):
            return DeadlineError(
                f"{self.origin.url} did not answer in time ({type(error).__name__})" + _advice(self.origin)
            )
        if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol | UnicodeError):
            return ConfigError(f"{self.origin.url}: {error}")
        told = f"{self.origin.url}: {str(error) or type(error).__name__}"
        return ServiceUnreachableError(told + _advice(self.origin, str(error)))

    def late(self) -> DeadlineError:
        return DeadlineError(f"{self.origin.url} did not give a whole answer within the time allowed")


def _verify(origin: Origin, ca_file: Path | None = None) -> bool | ssl.SSLContext:
    if origin.url.startswith("http://") and origin.is_loopback:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no one, and spares loading the CA bundle
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the CA file {ca_file} cannot be used: {error}; it must hold PEM certificates") from None


def _advice(origin: Origin, error: str = "") -> str:
    """What of this environment may be why no connection was made: the proxy that was asked, or the certificates."""
    told = []
    scheme = origin.url.partition("://")[0]
    proxies = {} if origin.is_loopback else getproxies()
    name = next((name for name in (scheme, "all") if name in proxies), None)
    if name and not proxy_bypass(urlsplit(origin.url).hostname or ""):
        told.append(
            f"asked through the proxy {redacted(proxies[name])} of {name.upper()}_PROXY; NO_PROXY makes exceptions"
        )
    if "CERTIFICATE_VERIFY_FAILED" in error:
        told.append("--ca-file, KVYIELD_CA_FILE or SSL_CERT_FILE names the certificates to check against")
    return f" ({'; '.join(told)})" if told else ""


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Names the variables that the HTTP library reads when it cannot begin because of them."""
    try:
        yield
    except (OSError, ValueError, httpx.InvalidURL, ImportError) as error:
        known = [name for one in _VARIABLES for name in (one, one.lower()) if os.environ.get(name)]
        told = ", ".join(f"{name}={redacted(os.environ[name])}" for name in known)
        where = f" ({told})" if told else ""
        raise ConfigError(f"no connection can be made with this environment{where}: {error}") from error


def _headers(settings: Settings) -> dict[str, str]:
    headers = {
        "accept": "application/json, application/problem+json, */*;q=0.5",
        "accept-encoding": "identity",
        "user-agent": f"kvyield/{__version__}",
    }
    if settings.token:
        if not settings.token.isascii() or not settings.token.isprintable():
            raise ConfigError("the token holds signs that no token has (line ends, control or non-ASCII signs)")
        headers["authorization"] = f"Bearer {settings.token}"
    return headers


class _Body:
    """Collects a body and refuses what is too large, compressed against our asking, or too late."""

    def __init__(self, response: httpx.Response, limit_bytes: int, ends: float) -> None:
        self._chunks: list[bytes] = []
        self._size = 0
        self._limit = limit_bytes
        self._ends = ends
        declared = response.headers.get("content-length", "0")
        if declared.isdigit() and int(declared[:20]) > limit_bytes:
            raise self._too_large()
        if response.headers.get("content-encoding", "identity") != "identity":
            raise UnexpectedAnswerError("the answer is compressed, which was not asked for")

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > self._limit:
            raise self._too_large()
        if time.monotonic() > self._ends:
            raise DeadlineError("the answer did not end within the time allowed")

    def _too_large(self) -> AnswerTooLargeError:
        return AnswerTooLargeError(f"the answer is larger than {self._limit:,} bytes; it was not read to its end")

    def whole(self) -> bytes:
        return b"".join(self._chunks)


class Client(Api):
    """The service's API, synchronous. Safe to share between threads; use as a context manager or `close` it.

    ``url``, ``token`` and ``ca_file`` (PEM certificates that the service's is checked against) default to
    ``KVYIELD_URL``, ``KVYIELD_TOKEN`` and ``KVYIELD_CA_FILE``, then the configuration file. Every method raises
    `ServiceError`s only: see the tree in `kvyield._errors`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        limits: Limits | None = None,
        transport: httpx.BaseTransport | None = None,
        ca_file: Path | None = None,
    ) -> None:
        self._base = _Base(url, token, limits, ca_file)
        self._transport = transport
        self._lock = threading.Lock()
        self._http = self._connect()

    def _connect(self) -> httpx.Client:
        with _environment():
            return httpx.Client(transport=self._transport, **self._base.options())

    @property
    def url(self) -> str:
        """The service's address."""
        return self._base.origin.url

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def _send(self, call: Call[T]) -> T:
        attempts = Attempts(self._base.limits, idempotent=call.idempotent)
        while True:
            try:
                return call.read(self._exchange(call, attempts.remaining_seconds))
            except ServiceError as error:
                pause = attempts.pause_after(error)
            time.sleep(pause)

    def _exchange(self, call: Call[Any], seconds: float) -> Answer:
        ends = time.monotonic() + seconds
        http = self._http
        answer = within(seconds, lambda: self._converse(http, call, ends))
        if answer is None:
            self._abandon(http)
            raise self._base.late()
        return answer

    def _converse(self, http: httpx.Client, call: Call[Any], ends: float) -> Answer:
        try:
            with http.stream(**self._base.request(call, ends - time.monotonic())) as response:
                body = _Body(response, self._base.limits.answer_bytes, ends)
                for chunk in response.iter_raw():
                    body.add(chunk)
                return check_answer(response.status_code, _lower(response), body.whole(), self._base.origin)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError, RuntimeError) as error:
            raise self._base.translated(error) from error

    def _abandon(self, http: httpx.Client) -> None:
        """Closing the sockets ends the thread that still waits on one of them; the next call connects anew."""
        with self._lock:
            if self._transport is None and self._http is http:
                self._http = self._connect()
                http.close()

    def export(self, file_format: str = "ndjson") -> Iterator[bytes]:
        """The whole ledger as ndjson, csv or parquet, streamed; an interrupted export raises and is never retried."""
        call = Call("GET", _calls.export_path(file_format), lambda answer: answer)
        ends = time.monotonic() + self._base.limits.export_seconds
        response = self._open(call)
        try:
            yield from self._chunks(response, ends)
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise self._base.translated(error) from error
        finally:
            response.close()

    def _open(self, call: Call[Any]) -> httpx.Response:
        request = self._base.request(call, self._base.limits.read_seconds)
        http = self._http
        try:
            opened = within(
                self._base.limits.total_seconds, lambda: http.send(http.build_request(**request), stream=True)
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._base.translated(error) from error
        if opened is None:
            self._abandon(http)
            raise self._base.late()
        return opened

    def _chunks(self, response: httpx.Response, ends: float) -> Iterator[bytes]:
        if response.status_code != 200:
            body = b"".join(chunk for chunk, _ in zip(response.iter_raw(), range(64), strict=False))
            check_answer(response.status_code, _lower(response), body, self._base.origin)
        for chunk in response.iter_raw():
            if time.monotonic() > ends:
                raise self._base.late()
            yield chunk


def _lower(response: httpx.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


class AsyncClient(AsyncApi):
    """The service's API, asynchronous: the same methods and bounds as `Client`, on asyncio."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        limits: Limits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        ca_file: Path | None = None,
    ) -> None:
        self._base = _Base(url, token, limits, ca_file)
        with _environment():
            self._http = httpx.AsyncClient(transport=transport, **self._base.options())

    @property
    def url(self) -> str:
        """The service's address."""
        return self._base.origin.url

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _send(self, call: Call[T]) -> T:
        attempts = Attempts(self._base.limits, idempotent=call.idempotent)
        while True:
            try:
                return call.read(await self._exchange(call, attempts.remaining_seconds))
            except ServiceError as error:
                pause = attempts.pause_after(error)
            await asyncio.sleep(pause)

    async def _exchange(self, call: Call[Any], seconds: float) -> Answer:
        try:
            return await asyncio.wait_for(self._converse(call, time.monotonic() + seconds), timeout=seconds)
        except (asyncio.TimeoutError, TimeoutError):  # two classes on 3.10
            raise self._base.late() from None

    async def _converse(self, call: Call[Any], ends: float) -> Answer:
        try:
            async with self._http.stream(**self._base.request(call, ends - time.monotonic())) as response:
                body = _Body(response, self._base.limits.answer_bytes, ends)
                async for chunk in response.aiter_raw():
                    body.add(chunk)
                return check_answer(response.status_code, _lower(response), body.whole(), self._base.origin)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError, RuntimeError) as error:
            raise self._base.translated(error) from error

    async def export(self, file_format: str = "ndjson") -> AsyncIterator[bytes]:
        """The whole ledger as ndjson, csv or parquet, streamed; an interrupted export raises and is never retried."""
        call = Call("GET", _calls.export_path(file_format), lambda answer: answer)
        ends = time.monotonic() + self._base.limits.export_seconds
        try:
            async with self._http.stream(**self._base.request(call, self._base.limits.read_seconds)) as response:
                if response.status_code != 200:
                    body = _Body(response, self._base.limits.answer_bytes, ends)
                    async for chunk in response.aiter_raw():
                        body.add(chunk)
                    check_answer(response.status_code, _lower(response), body.whole(), self._base.origin)
                async for chunk in response.aiter_raw():
                    if time.monotonic() > ends:
                        raise self._base.late()
                    yield chunk
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise self._base.translated(error) from error


def unix_transport(path: Path) -> httpx.BaseTransport:
    """A way to a service on a Unix socket."""
    return httpx.HTTPTransport(uds=str(path))


@dataclass(frozen=True)
class OpenHttp:
    """A plain HTTP client for an inference engine, with the errors that mean "late" and "failed"."""

    client: httpx.Client
    late: type[Exception] = httpx.TimeoutException
    failed: type[Exception] = httpx.HTTPError


def open_http(url: str, token: str | None = None, *, connections: int = 100) -> OpenHttp:
    """A client for the engine at ``url``: no redirects, no proxy for a loopback address. Raises `ConfigError`."""
    origin = Origin.parse(url)
    headers = {"accept-encoding": "identity", "user-agent": f"kvyield/{__version__}"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    with _environment():
        client = httpx.Client(
            base_url=origin.url,
            headers=headers,
            follow_redirects=False,
            trust_env=not origin.is_loopback,
            verify=_verify(origin),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=8),
        )
    return OpenHttp(client)
