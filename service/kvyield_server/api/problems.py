"""Every error becomes problem details (RFC 9457), and no input becomes a 500."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import getdoc
from typing import Any, ClassVar
from urllib.parse import quote

import structlog
from litestar import Request, Response
from litestar.datastructures import ResponseHeader
from litestar.exceptions import (
    ClientException,
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)
from litestar.openapi.datastructures import ResponseSpec
from litestar.routes import HTTPRoute
from litestar.types import ExceptionHandlersMap
from msgspec import convert

from kvyield_server.api.telemetry import request_id_of
from kvyield_server.errors import (
    AmbiguousError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    KvyieldError,
    MigrationNeededError,
    MissingExtraError,
    NotFoundError,
    RetractedError,
    StorageUnavailableError,
    UnauthenticatedError,
)
from kvyield_server.schemas.problem import PROBLEM_MEDIA_TYPE, FaultOut, MatchOut, Problem
from kvyield_server.schemas.strict import Fault, FaultyBodyError, MalformedJsonError

log = structlog.get_logger("kvyield.problems")


class UnsupportedMediaError(KvyieldError):
    """The `Content-Type` is not JSON."""

    code: ClassVar[str] = "unsupported_media_type"
    title: ClassVar[str] = "Unsupported media type"


class MalformedError(KvyieldError):
    """The request is not what its protocol says: broken JSON, no body, a bad header."""

    code: ClassVar[str] = "malformed"
    title: ClassVar[str] = "Malformed request"


class TooLargeError(KvyieldError):
    """The body is longer than the service reads."""

    code: ClassVar[str] = "too_large"
    title: ClassVar[str] = "Body too large"


class TooSlowError(KvyieldError):
    """The body did not arrive in time."""

    code: ClassVar[str] = "too_slow"
    title: ClassVar[str] = "Body too slow"


class NoSuchRouteError(KvyieldError):
    """There is nothing at this path."""

    code: ClassVar[str] = "no_such_route"
    title: ClassVar[str] = "No such route"


class MethodNotAllowedError(KvyieldError):
    """The path exists and does not take this method."""

    code: ClassVar[str] = "method_not_allowed"
    title: ClassVar[str] = "Method not allowed"


STATUS_BY_KIND: dict[type[KvyieldError], int] = {
    MalformedError: 400,
    UnauthenticatedError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
    NoSuchRouteError: 404,
    MethodNotAllowedError: 405,
    TooSlowError: 408,
    AmbiguousError: 409,
    ConflictError: 409,
    RetractedError: 409,
    TooLargeError: 413,
    UnsupportedMediaError: 415,
    InvalidError: 422,
    KvyieldError: 500,
    MissingExtraError: 501,
    StorageUnavailableError: 503,
    MigrationNeededError: 503,
}


LOCATION = ResponseHeader(name="Location", documentation_only=True, description="The address of what is stored.")


def meaning_of(kind: type[KvyieldError]) -> str:
    """Return what a kind of problem means, in a sentence or two."""
    if kind is KvyieldError:
        return "Something went wrong in the service, not in the request; its log holds it by the request id."
    return " ".join((getdoc(kind) or "").split()).replace("``", "`")


def responses_of(*kinds: type[KvyieldError]) -> dict[int, ResponseSpec]:
    """Return how problems are documented, by status."""
    found: dict[int, ResponseSpec] = {}
    for status in sorted({STATUS_BY_KIND[kind] for kind in kinds}):
        here = [kind for kind in STATUS_BY_KIND if kind in kinds and STATUS_BY_KIND[kind] == status]
        meanings = [f"{kind.title}: {meaning_of(kind)}" for kind in here]
        found[status] = ResponseSpec(
            Problem, description=" ".join(meanings), media_type=PROBLEM_MEDIA_TYPE, generate_examples=False
        )
    return found


@dataclass(frozen=True, slots=True)
class ProblemContext:
    """Where a problem occurred: the request's path and id."""

    instance: str
    request_id: str

    @classmethod
    def of(cls, request: Request[Any, Any, Any]) -> ProblemContext:
        return cls(quote(request.scope["path"]), request_id_of(request.scope))


def problem_of(error: Exception, where: ProblemContext) -> Problem:
    """Return the problem that an error means."""
    known = _as_known(error)
    status = next(STATUS_BY_KIND[kind] for kind in type(known).__mro__ if kind in STATUS_BY_KIND)
    faults = known.errors if isinstance(known, InvalidError) else ()
    return Problem(
        type=f"/problems/{known.code}",
        title=known.title,
        status=status,
        detail=known.detail,
        instance=where.instance,
        request_id=where.request_id,
        errors=[FaultOut(pointer=pointer, detail=detail) for pointer, detail in faults],
        nearest=list(known.nearest) if isinstance(known, NotFoundError) and known.nearest else None,
        matches=convert(known.matches, list[MatchOut]) if isinstance(known, AmbiguousError) else None,
    )


def raise_faults(faults: Sequence[Fault]) -> None:
    """Raise InvalidError when there are faults."""
    if faults:
        raise InvalidError(faults, detail=" ".join(fault.detail for fault in faults[:3]))


def answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """Answer any error as a problem; what was not foreseen goes to the log with its traceback, never to the caller."""
    problem = logged_problem(request, error)
    headers = headers_of(request, problem.status)
    return Response(problem, status_code=problem.status, media_type=PROBLEM_MEDIA_TYPE, headers=headers)


def logged_problem(request: Request[Any, Any, Any], error: Exception) -> Problem:
    """Return the problem that an error means; what is the service's own fault goes to its log."""
    problem = problem_of(error, ProblemContext.of(request))
    if problem.status == 500:
        log.error("unexpected_error", request_id=problem.request_id, path=problem.instance, exc_info=error)
    if problem.status == 503:
        log.warning("storage_unavailable", request_id=problem.request_id, path=problem.instance, cause=_cause(error))
    return problem


EXCEPTION_HANDLERS: ExceptionHandlersMap = {
    HTTPException: answer_error,
    KvyieldError: answer_error,
    Exception: answer_error,
}


def _cause(error: Exception) -> str:
    """Return what the database's driver said, without the statement that it was about."""
    cause = error.__cause__ or error
    return " ".join(str(getattr(cause, "orig", None) or cause).split())[:300]


def _as_known(error: Exception) -> KvyieldError:
    match error:
        case KvyieldError():
            return error
        case MalformedJsonError():
            return MalformedError(str(error))
        case FaultyBodyError():
            return InvalidError(error.faults, detail=" ".join(fault.detail for fault in error.faults[:3]))
        case HTTPException():
            return _as_known_http(error)
        case _:
            return KvyieldError("Something went wrong here, not in the request; the log holds it by the request id.")


def _as_known_http(error: HTTPException) -> KvyieldError:
    if isinstance(error, NotFoundException):
        return NoSuchRouteError("There is nothing at this path; GET /schema/openapi.json lists the paths.")
    if isinstance(error, MethodNotAllowedException):
        return MethodNotAllowedError("The path exists and does not take this method; the Allow header lists which.")
    if isinstance(error, ValidationException):
        return InvalidError([("", str(error.detail))])
    if error.status_code == 413:
        return TooLargeError("The body is longer than this service reads; send observations in smaller batches.")
    if isinstance(error, ClientException) or error.status_code < 500:
        return MalformedError(str(error.detail))
    return KvyieldError("Something went wrong here, not in the request; the log holds it by the request id.")


def headers_of(request: Request[Any, Any, Any], status: int) -> dict[str, str]:
    """Return the headers that come with a problem of a status."""
    if status == 401:
        return {"WWW-Authenticate": 'Bearer realm="kvyield"'}
    if status == 503:
        return {"Retry-After": "2"}
    return {"Allow": ", ".join(_allowed(request))} if status == 405 else {}


def _allowed(request: Request[Any, Any, Any]) -> list[str]:
    """Return the methods of the routes that lead to a path."""
    path = request.scope["path"]
    here = (it for it in request.app.routes if isinstance(it, HTTPRoute) and _leads_to(it.path_format, path))
    return sorted({method for route in here for method in route.methods})


def _leads_to(template: str, path: str) -> bool:
    parts, given = template.strip("/").split("/"), path.strip("/").split("/")
    return len(parts) == len(given) and all(a == b or a.startswith("{") for a, b in zip(parts, given, strict=True))
