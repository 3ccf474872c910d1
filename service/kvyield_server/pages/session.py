"""Who looks at a page: a token in a cookie that no script can read, and forms that only our own pages may send."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import structlog
from litestar import HttpMethod, MediaType, Request, Response
from litestar.datastructures import Cookie
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.types import Guard

from kvyield_server.api.auth import Allows, Connection, authenticate
from kvyield_server.api.problems import ProblemContext, answer_error, problem_of
from kvyield_server.api.services import Services
from kvyield_server.errors import ForbiddenError, InvalidError, UnauthenticatedError
from kvyield_server.pages.rendering import STATIC_PATH, page
from kvyield_server.schemas.strict import MAX_FAULTS, MAX_KEY, pointer_to
from kvyield_server.storage.records import ApiToken, Role
from kvyield_server.storage.values import utc_now

log = structlog.get_logger("kvyield.pages")

COOKIE = "kvyield_session"
_READS = (HttpMethod.GET, HttpMethod.HEAD)
_OWN_PAGE = re.compile(r"/ui(?:[/?][!-\[\]-~]*)?")  # printable ASCII without blanks and backslashes
_OWN_SITES = ("same-origin", "none")


class SignedIn(Allows):
    """A guard that lets a person through whose cookie holds a token of one of these roles; anyone while no token
    exists."""

    def text_of(self, connection: Connection) -> str:
        """Return the token that the person signed in with; nothing when nobody did."""
        return connection.cookies.get(COOKIE, "")


LOOKS = SignedIn(Role.READ, Role.ADMIN)
MANAGES = SignedIn(Role.ADMIN)


def look(
    path: str, *parameters: str, several: Sequence[str] = (), guards: Sequence[Guard] = (LOOKS,)
) -> HTTPRouteHandler:
    """Return the decorator of a page that is only looked at: it answers GET, and HEAD with the same headers.

    ``parameters`` are those that its query may hold, once each; ``several`` those of them that it may hold repeatedly.
    """
    opt = {"parameters": (*parameters, *several), "several": tuple(several)}
    return HTTPRouteHandler(path, http_method=_READS, guards=guards, opt=opt)


async def known_parameters_only(connection: Connection, handler: BaseRouteHandler) -> None:
    """Refuse, as a guard of all pages, a query that a page would read otherwise than it was meant.

    Raises:
        InvalidError: a parameter is unknown, is given twice, or holds a NUL character.
    """
    if "parameters" not in handler.opt:
        return
    known, several = handler.opt["parameters"], handler.opt["several"]
    pairs = list(connection.query_params.multi_items())
    counts = Counter(name for name, _ in pairs)
    there_are = f"there are {', '.join(known)}" if known else "there are none"
    faults = [(name, "is not a parameter of this page; " + there_are) for name in counts if name not in known]
    faults += [(name, "is given more than once; give it once") for name in _repeated(counts, several) if name in known]
    faults += [(name, "holds a NUL character; leave it out") for name, value in pairs if "\0" in value]
    if faults:
        told = [(pointer_to(name), f"{name[:MAX_KEY]} {text}.") for name, text in faults[:MAX_FAULTS]]
        raise InvalidError(told, detail=" ".join(text for _, text in told[:3]))


def _repeated(counts: Counter[str], several: Sequence[str]) -> list[str]:
    return [name for name, count in counts.items() if count > 1 and name not in several]


async def signed_in(services: Services, text: str) -> ApiToken:
    """Return the token with that text.

    Raises:
        UnauthenticatedError: there is none that is valid now.
        ForbiddenError: it is a host's token, which posts and looks at nothing.
    """
    token = await authenticate(services, text)
    if token is None:
        raise UnauthenticatedError("No token exists yet, and none is needed.")
    if token.only_posts:
        raise ForbiddenError("An ingest token is for a host that posts; sign in with a read or admin token.")
    return token


async def own_forms_only(connection: Connection, _: BaseRouteHandler) -> None:
    """Refuse, as a guard of all pages, a form that is not of our own pages.

    Raises:
        ForbiddenError: a browser says that another site sent it.
    """
    if connection.scope.get("method", "GET") in _READS:
        return
    site, origin = connection.headers.get("sec-fetch-site"), connection.headers.get("origin")
    is_own_origin = origin is None or urlsplit(origin).netloc == connection.headers.get("host")
    if (site is not None and site not in _OWN_SITES) or not is_own_origin:
        raise ForbiddenError("This form was sent from another site; open the page here and send it again.")


def session_cookie(token: ApiToken, text: str, *, is_https: bool) -> Cookie:
    """Return the cookie of a token, which ends when the token does."""
    left = None if token.expires_at is None else max(0, int((token.expires_at - utc_now()).total_seconds()))
    return Cookie(key=COOKIE, value=text, path="/ui", httponly=True, samesite="lax", secure=is_https, max_age=left)


def safe_next(wanted: str | None) -> str:
    """Return where to go after signing in: one of our own pages, whatever was asked for."""
    is_own = wanted is not None and _OWN_PAGE.fullmatch(wanted) and ".." not in unquote(wanted.partition("?")[0])
    return wanted if wanted and is_own else "/ui"


def answer_page_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Answer any error of a page as a page: to the sign-in where that would help."""
    if isinstance(error, UnauthenticatedError):
        return to_sign_in(request)
    problem = problem_of(error, ProblemContext.of(request))
    if problem.status == 500:
        log.error("unexpected_error", request_id=problem.request_id, path=problem.instance, exc_info=error)
    is_asked_too_much = request.method in _READS and request.scope["query_string"] and problem.status in (404, 422)
    values = {"problem": problem, "bare": problem.instance if is_asked_too_much else ""}
    return page(request, "problem.html", values, status_code=problem.status)


def answer_unrouted(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Answer what the framework refuses before any page is reached: as a page below the pages, else as a problem."""
    path = request.scope["path"]
    is_page = path.startswith("/ui/") and not path.startswith(STATIC_PATH)
    return answer_page_error(request, error) if is_page else answer_error(request, error)


def to_sign_in(request: Request[Any, Any, Any]) -> Response[Any]:
    """Send a person to the sign-in, and back to this page afterwards."""
    query = request.scope["query_string"].decode("ascii", "replace")
    back = request.scope["path"] + (f"?{query}" if query else "")
    address = f"/ui/sign-in?next={quote(back if request.method == 'GET' else '/ui', safe='')}"
    is_swap = request.headers.get("hx-request") == "true"
    headers = {"HX-Redirect": "/ui/sign-in"} if is_swap else {"Location": address}
    return Response("", status_code=200 if is_swap else 303, headers=headers, media_type=MediaType.HTML)
