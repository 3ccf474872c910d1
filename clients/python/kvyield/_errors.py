"""Everything that kvyield raises, under one root, so that a caller can catch as much or as little as it means to.

::

    KvyieldError
    ├── ConfigError                 a setting is wrong or unreadable
    ├── SourceError                 a log could not be read
    ├── IncompleteError             facts are missing without which a start cannot be posted
    ├── SpoolError                  the disk queue could not be written or read
    ├── TuneError                   an engine cannot be restarted with other flags, or put back
    └── ServiceError                everything that goes wrong with the service
        ├── ServiceUnreachableError     no answer: refused, cut off, no such host, bad certificate
        │   └── DeadlineError           no answer in the time that was allowed
        ├── ServiceFailedError          408, 425, 429 and 5xx: the same call may work later
        ├── UnexpectedAnswerError       an answer that kvyield's API does not give (a proxy's, a redirect)
        │   └── AnswerTooLargeError     more bytes than were allowed
        └── RefusedError                every other 4xx: the same call will be refused again
            ├── NotAllowedError             401, 403
            ├── NotFoundError               404
            ├── ConflictError               409
            └── InvalidError                400, 413, 415, 422
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvyield._wire import Problem

MAY_WORK_LATER = frozenset({408, 425, 429})
NOT_NOW = frozenset({502, 503, 504})


class KvyieldError(Exception):
    """The root of all errors that kvyield raises; its text is written for the person who ran the command."""


class ConfigError(KvyieldError):
    """A setting is wrong or unreadable; the text names it and where it came from."""


class SourceError(KvyieldError):
    """A log could not be read; the text names it and what would be right."""


class IncompleteError(KvyieldError):
    """A start lacks facts that the service always needs; ``missing`` names the fields, as paths of the wire."""

    def __init__(self, message: str, missing: Sequence[str]) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class SpoolError(KvyieldError):
    """The disk queue could not be written or read."""


class TuneError(KvyieldError):
    """An engine cannot be restarted with other flags, or put back; the text says why and what would be right."""


class ServiceError(KvyieldError):
    """Everything that goes wrong with the service."""


class ServiceUnreachableError(ServiceError):
    """No answer came: connection refused or cut, no such host, a certificate that does not hold."""


class DeadlineError(ServiceUnreachableError):
    """No whole answer came in the time that was allowed."""


class UnexpectedAnswerError(ServiceError):
    """An answer that kvyield's API does not give: another program listens there, or a proxy stands between."""


class AnswerTooLargeError(UnexpectedAnswerError):
    """The answer held more bytes than were allowed; it was not read to its end."""


class ServiceFailedError(ServiceError):
    """The service could not do it now (408, 425, 429, 5xx); ``retry_after_seconds`` is what it asked for."""

    def __init__(self, status: int, problem: Problem, retry_after_seconds: float | None = None) -> None:
        super().__init__(_sentence(status, problem))
        self.status = status
        self.problem = problem
        self.retry_after_seconds = retry_after_seconds


class RefusedError(ServiceError):
    """The service refused the call and would refuse it again; ``problem`` says why (RFC 9457)."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(_sentence(status, problem))
        self.status = status
        self.problem = problem


class NotAllowedError(RefusedError):
    """The token is missing, unknown, expired, or its role does not cover the call."""


class NotFoundError(RefusedError):
    """There is no such thing; the problem's detail lists the nearest names."""


class ConflictError(RefusedError):
    """The id is known with other content, or a name fits several things; the problem's detail lists them."""


class InvalidError(RefusedError):
    """The body or a parameter is wrong; ``problem.errors`` points to each fault."""


_BY_STATUS: dict[int, type[RefusedError]] = {
    400: InvalidError,
    401: NotAllowedError,
    403: NotAllowedError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidError,
    415: InvalidError,
    422: InvalidError,
}


def error_of(status: int, problem: Problem, retry_after_seconds: float | None = None) -> ServiceError:
    """The error that stands for an HTTP status of 400 and above."""
    if status >= 500 or status in MAY_WORK_LATER:
        return ServiceFailedError(status, problem, retry_after_seconds)
    return _BY_STATUS.get(status, RefusedError)(status, problem)


def is_own_fault(error: KvyieldError) -> bool:
    """Whether the service is there and failed on this very call (500): others may well work."""
    return isinstance(error, ServiceFailedError) and error.status not in MAY_WORK_LATER | NOT_NOW


def _sentence(status: int, problem: Problem) -> str:
    said = problem.detail or ""
    faults = "; ".join(f"{fault.pointer}: {fault.detail}" for fault in problem.errors if fault.detail not in said)
    parts = [problem.title or "refused", problem.detail, faults]
    text = ": ".join(part for part in parts if part)
    return f"{text} (HTTP {status}, request {problem.request_id})" if problem.request_id else f"{text} (HTTP {status})"
