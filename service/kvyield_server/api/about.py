"""What the service says of itself: where things are, what each kind of problem means, its OpenAPI document."""

from __future__ import annotations

from typing import Any

from litestar import Request, get, head
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath
from litestar.response import Redirect
from msgspec import Struct

from kvyield_server import __version__
from kvyield_server.api.problems import STATUS_BY_KIND, meaning_of, responses_of
from kvyield_server.errors import KvyieldError, NotFoundError

PAGES = "/ui"
TO_PAGES = {302: ResponseSpec(None, description="A browser is sent to the pages.")}


class IndexOut(Struct, frozen=True, kw_only=True):
    """Where things are.

    Attributes:
        name: Always `kvyield`.
        version: Version of the service.
        links: Paths of the service by what is there.
    """

    name: str
    version: str
    links: dict[str, str]


class ProblemKindOut(Struct, frozen=True, kw_only=True):
    """One kind of problem.

    Attributes:
        type: The `type` of such problems, which is the path of this answer.
        title: Name of the kind of problem.
        status: The HTTP status that it is answered with.
        meaning: What it means, in a sentence or two.
    """

    type: str
    title: str
    status: int
    meaning: str


@get("/", operation_id="index", responses=TO_PAGES)
async def index(request: Request[Any, Any, Any]) -> IndexOut | Redirect:
    """Say where things are; a browser is sent to the pages."""
    if "text/html" in request.headers.get("accept", ""):
        return Redirect(PAGES, status_code=302)
    links = {
        "observations": "/observations",
        "pairs": "/pairs",
        "recommend": "/recommend",
        "openapi": "/schema/openapi.json",
        "documentation": "/schema",
        "problems": "/problems",
        "health": "/health/ready",
    }
    return IndexOut(name="kvyield", version=__version__, links=links)


@head("/", include_in_schema=False)
async def is_here() -> None:
    """Answer who only asks whether the service is here."""


@get("/problems", operation_id="list_problems")
async def list_problems() -> list[ProblemKindOut]:
    """List the kinds of problems that this service answers with."""
    return [_kind(kind, status) for kind, status in STATUS_BY_KIND.items()]


@get("/problems/{code:str}", operation_id="get_problem", responses=responses_of(NotFoundError))
async def get_problem(code: FromPath[str]) -> ProblemKindOut:
    """Say what one kind of problem means."""
    for kind, status in STATUS_BY_KIND.items():
        if kind.code == code:
            return _kind(kind, status)
    raise NotFoundError(f"There is no kind of problem {code!r}.", [kind.code for kind in STATUS_BY_KIND])


@get("/schema/openapi.json", operation_id="openapi", include_in_schema=False)
async def openapi(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """Return the OpenAPI document."""
    document: dict[str, Any] = request.app.state.openapi()
    return document


def _kind(kind: type[KvyieldError], status: int) -> ProblemKindOut:
    return ProblemKindOut(type=f"/problems/{kind.code}", title=kind.title, status=status, meaning=meaning_of(kind))
