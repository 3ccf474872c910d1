"""Who may call what, for every route that the application has: a new route fails here until it is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute

from _storages import fresh_storage
from api.conftest import Client
from kvyield_server.app import create_app
from kvyield_server.settings import Settings
from kvyield_server.storage.records import Role
from kvyield_server.storage.uow import Storage
from kvyield_server.storage.values import utc_now
from kvyield_server.usecases.tokens import new_token

Route = tuple[str, str]
EVERYBODY, READERS = {None, *Role}, {*Role}
ASKERS, POSTERS, MANAGERS = {Role.READ, Role.ADMIN}, {Role.INGEST, Role.ADMIN}, {Role.ADMIN}

MAY: dict[Route, set[Any]] = {
    ("GET", "/"): EVERYBODY,
    ("HEAD", "/"): EVERYBODY,
    ("GET", "/audit"): MANAGERS,
    ("GET", "/calibration"): ASKERS,
    ("GET", "/export/observations.csv"): MANAGERS,
    ("GET", "/export/observations.ndjson"): MANAGERS,
    ("GET", "/export/observations.parquet"): MANAGERS,
    ("GET", "/health/live"): EVERYBODY,
    ("HEAD", "/health/live"): EVERYBODY,
    ("GET", "/health/ready"): EVERYBODY,
    ("HEAD", "/health/ready"): EVERYBODY,
    ("POST", "/mcp"): READERS,
    ("GET", "/metrics"): ASKERS,
    ("GET", "/observations"): READERS,
    ("POST", "/observations"): POSTERS,
    ("POST", "/observations/batch"): POSTERS,
    ("GET", "/observations/{observation_id:uuid}"): READERS,
    ("POST", "/observations/{observation_id:uuid}/corrections"): POSTERS,
    ("POST", "/observations/{observation_id:uuid}/retraction"): MANAGERS,
    ("POST", "/observations/{observation_id:uuid}/verifications"): POSTERS,
    ("GET", "/pairs"): READERS,
    ("GET", "/pairs/{pair_id:uuid}"): READERS,
    ("GET", "/pairs/{pair_id:uuid}/curve"): READERS,
    ("GET", "/pairs/{pair_id:uuid}/fits"): READERS,
    ("POST", "/predictions"): ASKERS,
    ("GET", "/problems"): EVERYBODY,
    ("GET", "/problems/{code:str}"): EVERYBODY,
    ("GET", "/recommend"): ASKERS,
    ("POST", "/recommendations"): ASKERS,
    ("GET", "/recommendations/{recommendation_id:uuid}"): READERS,
    ("POST", "/recommendations/{recommendation_id:uuid}/settlement"): POSTERS,
    ("GET", "/schema"): EVERYBODY,
    ("HEAD", "/schema"): EVERYBODY,
    ("GET", "/schema/openapi.json"): EVERYBODY,
}
PAGES_FOR_ALL = {"/ui/sign-in", "/ui/sign-out"}


def routes(app: Litestar) -> Iterator[Route]:
    """Yield method and path of everything that answers."""
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            yield from ((method, route.path_format) for method in route.methods if method != "OPTIONS")


ALL = sorted(set(routes(create_app(Settings(), fresh_storage()))))
API = [(method, path) for method, path in ALL if not path.startswith("/ui")]
PAGES = [(method, path) for method, path in ALL if path.startswith("/ui") and "/static" not in path]


def address(path: str) -> str:
    """Return a path with an id in the place of each parameter."""
    parts = [str(UUID(int=7)) if part.startswith("{") else part for part in path.split("/")]
    return "/".join(parts)


def short(path: str) -> str:
    """Return a path without the types of its parameters."""
    return "/".join(part.split(":")[0] + "}" if ":" in part else part for part in path.split("/"))


def test_every_route_says_who_may_call_it() -> None:
    """The table above lists the routes of the API, each of them and no other."""
    assert {(method, short(path)) for method, path in MAY} == {(method, short(path)) for method, path in API}


@pytest.fixture
def login(storage: Storage) -> Callable[[Role | None], dict[str, str]]:
    """Make a token of a role, and one of another so that tokens are asked for; return what a caller sends."""

    def make(role: Role | None) -> dict[str, str]:
        token, text = new_token("t", [role or Role.READ], now=utc_now(), expires_at=None)
        storage.write(lambda uow: uow.tokens.add(token)).result()
        return {"Authorization": f"Bearer {text}"} if role else {}

    return make


@pytest.mark.parametrize(("route", "role"), list(product(sorted(MAY), [None, *Role])), ids=str)
def test_each_role_calls_what_it_may(
    client: Client, login: Callable[[Role | None], dict[str, str]], route: Route, role: Role | None
) -> None:
    """Without a token 401, with a token of another role 403, before the request is looked at; else neither."""
    method, path = route
    headers = login(role)
    answer = client.request(method, address(path), headers=headers, content=b"{" if method == "POST" else None)
    expected = None if role in MAY[route] else 401 if role is None else 403
    refused = answer.status_code if answer.status_code in (401, 403) else None
    if role is Role.INGEST and path.startswith("/pairs/"):
        assert refused in (None, 403)  # a pair that it never posted to
    else:
        assert refused == expected


@pytest.mark.parametrize(("route", "role"), list(product(PAGES, [None, *Role])), ids=str)
def test_pages_are_for_people_with_a_token(
    client: Client, login: Callable[[Role | None], dict[str, str]], route: Route, role: Role | None
) -> None:
    """A page sends who is not signed in to the sign-in, and refuses a host's token; a bearer header opens no page."""
    method, path = route
    text = login(role).get("Authorization", "Bearer ").removeprefix("Bearer ")
    headers = {"Cookie": f"kvyield_session={text}"} if text else {}
    answer = client.request(method, address(path), headers=headers, follow_redirects=False)
    to_sign_in = answer.status_code == 303 and "/ui/sign-in" in answer.headers["location"]
    if path in PAGES_FOR_ALL:
        assert answer.status_code != 403
    elif role is None:
        assert to_sign_in
    elif role is Role.INGEST:
        assert answer.status_code == 403
    else:
        assert not to_sign_in
