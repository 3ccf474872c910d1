"""Pages over HTTP without a browser: headers, sessions, forms of other sites, and faults as pages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from litestar.testing import TestClient

from _storages import fresh_storage
from kvyield_server.app import create_app
from kvyield_server.pages.pair_page import HISTORY, QUESTION
from kvyield_server.pages.session import safe_next
from kvyield_server.settings import Settings
from kvyield_server.storage.records import Role
from kvyield_server.storage.uow import Storage
from kvyield_server.usecases.tokens import new_token
from pages.samples import MODEL, worked_case

Client = TestClient[Any]


@pytest.fixture
def storage() -> Storage:
    return fresh_storage()


@pytest.fixture
def client(storage: Storage) -> Iterator[Client]:
    with TestClient(create_app(Settings(), storage)) as client:
        client.follow_redirects = False
        for body in worked_case():
            assert client.post("/observations", json=body).status_code == 201
        yield client


def token(storage: Storage, role: Role, days: float = 1) -> str:
    now = datetime.now(UTC)
    made, text = new_token("somebody", [role], now=now, expires_at=now + timedelta(days=days))
    storage.write(lambda unit: unit.tokens.add(made)).result()
    return text


def pair(storage: Storage) -> str:
    with storage.read() as unit:
        return str(next(name.id for name in unit.pairs.names() if name.model == MODEL))


def newest(storage: Storage) -> str:
    with storage.read() as unit:
        stored = next(name.id for name in unit.pairs.names())
        return str(unit.observations.of_pair(stored)[0].observation.id)


@pytest.mark.parametrize("path", ["/ui", "/ui/advice", "/ui/sign-in", "/ui/nothing-here", "/ui/static/kvyield.js"])
def test_pages_are_locked_down(client: Client, path: str) -> None:
    """No inline script or style may run, no other site may frame a page, and types are not guessed."""
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-frame-options"] == "DENY"


def test_the_front_door_leads_browsers_to_the_pages(client: Client) -> None:
    """A browser at / comes to the pages; a tool gets JSON."""
    assert client.get("/", headers={"accept": "text/html,*/*"}).headers["location"] == "/ui"
    assert client.get("/", headers={"accept": "application/json"}).json()["name"] == "kvyield"


@pytest.mark.parametrize("path", ["/", "/ui", "/ui/advice", "/ui/sign-in", "/ui/static/kvyield.js"])
def test_pages_answer_who_asks_for_the_head_alone(client: Client, path: str) -> None:
    """HEAD finds the front door and the pages, as link checkers and load balancers ask."""
    assert client.head(path).status_code == 200


def test_a_pair_opens_without_advice(client: Client, storage: Storage) -> None:
    """With no question asked nothing is there to restart with or to keep; a target in the address is a question."""
    opened = client.get(f"/ui/pairs/{pair(storage)}").text
    assert ("What runs now" in opened, "data-copy" in opened, "Save to the advice log" in opened) == (
        True,
        False,
        False,
    )
    assert "Restart with" in client.get(f"/ui/pairs/{pair(storage)}?target_tokens=200000").text
    assert client.head(f"/ui/pairs/{pair(storage)}").status_code == 200


def test_what_runs_and_holds_the_target_is_kept(client: Client, storage: Storage) -> None:
    """What runs answers for itself and is said first; a target that it does not hold asks for a restart."""
    text = client.get(f"/ui/pairs/{pair(storage)}?target_tokens=60000").text
    assert text.index("Keep what runs") < text.index('id="text-args"')
    assert "Keep what runs" not in client.get(f"/ui/pairs/{pair(storage)}?target_tokens=200000").text


def test_words_are_those_of_the_glossary(client: Client, storage: Storage) -> None:
    """The pages say lever, probability and predicted, and none of the words that mean the same."""
    text = client.get(f"/ui/pairs/{pair(storage)}?target_tokens=200000").text + client.get("/ui/advice").text
    assert "Levers, best first" in text
    assert not [word for word in ("Other ways", "hance", "foretold") if word in text]


def test_pages_are_not_part_of_the_api(client: Client) -> None:
    """The OpenAPI document lists no page."""
    assert not [path for path in client.get("/schema/openapi.json").json()["paths"] if path.startswith("/ui")]


def test_unknown_things_are_a_page_of_their_own(client: Client, storage: Storage) -> None:
    """An unknown id answers 404 as HTML with the request's id; so does a comparison of one start, as 422."""
    answer = client.get(f"/ui/pairs/{uuid4()}")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert answer.headers["x-request-id"] in answer.text
    assert client.get(f"/ui/observations/{uuid4()}").status_code == 404
    for query in ("", f"?start={newest(storage)}", "?start=x&start=y"):
        assert client.get(f"/ui/pairs/{pair(storage)}/compare{query}").status_code == 422


def test_a_broken_filter_or_page_token_is_said(client: Client, storage: Storage) -> None:
    """An impossible filter is reported and hides nothing; a page token that nobody gave is a 422."""
    history = client.get(f"/ui/pairs/{pair(storage)}/history?outcome=bogus")
    assert (history.status_code, "No such filter" in history.text) == (200, True)
    assert client.get("/ui?page_token=bogus").status_code == 422
    assert client.get(f"/ui/pairs/{pair(storage)}?page_token=bogus").status_code == 422


@pytest.mark.parametrize("path", ["/ui/nothing", "/ui/pairs", "/ui/pairs/1", "/ui/observations/x/y", "/ui/%ff"])
def test_an_address_that_leads_nowhere_is_a_page(client: Client, path: str) -> None:
    """Whoever mistypes an address below the pages gets a page with the way back; a static file and the API do not."""
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert 'href="/ui"' in answer.text
    for other in ("/ui/static/none.js", "/nothing"):
        assert client.get(other).headers["content-type"].startswith("application/problem+json")


def pages_of(client: Client, storage: Storage) -> list[str]:
    """Return the address of every page and every part of one."""
    one = f"/ui/pairs/{pair(storage)}"
    start = f"/ui/observations/{newest(storage)}"
    parts = ("", "/advice", "/history", "/compare")
    return ["/ui", "/ui/fleet", "/ui/drift", "/ui/advice", "/ui/sign-in", start, *(one + part for part in parts)]


def test_a_parameter_that_no_page_takes_is_named(client: Client, storage: Storage) -> None:
    """On every page an unknown parameter is a 422 page that names it and leads to the page without it."""
    for path in pages_of(client, storage):
        answer = client.get(f"{path}?colour=red")
        assert (answer.status_code, answer.headers["content-type"]) == (422, "text/html; charset=utf-8"), path
        assert "colour is not a parameter of this page" in answer.text
        assert f'href="{path}"' in answer.text


@pytest.mark.parametrize("value", ["x", "-1", "1e999", "%00", "9" * 400])
def test_no_parameter_breaks_a_page(client: Client, storage: Storage, value: str) -> None:
    """Whatever a known parameter holds, the answer is a page and never the service's own fault."""
    one = f"/ui/pairs/{pair(storage)}"
    known = {one: (*QUESTION, *HISTORY), "/ui": ("search",), "/ui/fleet": ("search", "show", "sort", "page")}
    known |= {"/ui/drift": ("versions",), "/ui/sign-in": ("next",), f"{one}/compare": ("start",)}
    for path, names in known.items():
        for name in names:
            answer = client.get(f"{path}?{name}={value}")
            assert answer.status_code in (200, 404, 422), (path, name)
            assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_a_parameter_given_twice_is_named(client: Client, storage: Storage) -> None:
    """Of two values none is taken silently; ids of starts to compare come in twos."""
    one = f"/ui/pairs/{pair(storage)}"
    for query in (
        "/ui?search=a&search=a",
        "/ui/fleet?page=1&page=2",
        f"{one}?host=a&host=b",
        f"{one}?prefer=pool&prefer=",
    ):
        answer = client.get(query)
        assert (answer.status_code, "is given more than once; give it once." in answer.text) == (422, True), query


def test_a_deployment_that_is_not_there_is_said(client: Client, storage: Storage) -> None:
    """No other deployment is shown, advised or kept under the name of one that does not exist."""
    one = f"/ui/pairs/{pair(storage)}"
    for answer in (
        client.get(f"{one}?deployment=gone"),
        client.get(f"{one}/advice?deployment=gone&target_tokens=1000"),
        client.post(f"{one}/advice", data={"deployment": "gone", "target_tokens": "1000"}),
    ):
        assert (answer.status_code, "has no deployment gone" in answer.text) == (404, True)


def test_only_starts_of_the_pair_are_compared(client: Client, storage: Storage) -> None:
    """A start of another hardware is not shown under this one's name."""
    other = client.post("/observations", json={**worked_case()[0], "model": {"name": "other"}}).json()
    one = pair(storage)
    with storage.read() as unit:
        mine = unit.observations.of_pair(UUID(one))[0].observation.id
    answer = client.get(f"/ui/pairs/{one}/compare?start={mine}&start={other['id']}")
    assert (answer.status_code, other["id"] in answer.text) == (422, True)


def test_a_faulty_question_keeps_the_lines(client: Client, storage: Storage) -> None:
    """Beside the fault, said with the field's label, the fitted lines are still there to draw and to read."""
    text = client.get(f"/ui/pairs/{pair(storage)}?target_tokens=many").text
    assert "Target: longest prompt, tokens: &#34;many&#34;; expected a whole number." in text
    assert '"running": 0.94' in text
    assert '<th role="rowheader" scope="row" class="num">0.94</th>' in text


def test_a_faulty_question_is_said_beside_its_field(client: Client, storage: Storage) -> None:
    """The fragment of a faulty form is a 422 that links to the field."""
    answer = client.get(f"/ui/pairs/{pair(storage)}/advice?target_tokens=many")
    assert answer.status_code == 422
    assert 'href="#target_tokens"' in answer.text


@pytest.mark.parametrize(
    "headers", [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://evil.example"}]
)
def test_forms_of_other_sites_are_refused(client: Client, storage: Storage, headers: dict[str, str]) -> None:
    """Another site cannot retract, keep advice or sign somebody in, even while the service is open."""
    start = newest(storage)
    for path, data in (
        (f"/ui/observations/{start}/retraction", {"reason": "evil"}),
        (f"/ui/pairs/{pair(storage)}/advice", {"target_tokens": "1000"}),
        ("/ui/sign-in", {"token": "x"}),
        ("/ui/sign-out", {}),
    ):
        assert client.post(path, data=data, headers=headers).status_code == 403
    with storage.read() as unit:
        assert unit.recommendations.page(None, 1).items == ()


def test_once_a_token_exists_pages_ask_for_one(client: Client, storage: Storage) -> None:
    """Without a session a page leads to the sign-in and back; a fragment tells the script to go there."""
    token(storage, Role.READ)
    answer = client.get("/ui/advice?page_token=x")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/ui/sign-in?next=%2Fui%2Fadvice%3Fpage_token%3Dx"
    swap = client.get("/ui/advice", headers={"hx-request": "true"})
    assert (swap.status_code, swap.headers["hx-redirect"]) == (200, "/ui/sign-in")


def test_the_session_cookie_is_out_of_reach(client: Client, storage: Storage) -> None:
    """No script reads the cookie, no other site's form sends it, it ends with its token, and sign-out drops it."""
    answer = client.post("/ui/sign-in", data={"token": token(storage, Role.READ), "next": "/ui/advice"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/advice")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "path=/ui" in cookie
    assert 86_000 < int(cookie.partition("max-age=")[2].partition(";")[0]) <= 86_400
    assert client.get("/ui").status_code == 200
    client.post("/ui/sign-out")
    client.cookies.clear()
    assert client.get("/ui").status_code == 303


@pytest.mark.parametrize(("role", "status"), [(Role.READ, 403), (Role.ADMIN, 303)])
def test_only_an_admin_may_retract(client: Client, storage: Storage, role: Role, status: int) -> None:
    """A read token sees no retraction form and is refused; an admin's retraction is kept."""
    start, text = newest(storage), token(storage, role)
    client.post("/ui/sign-in", data={"token": text})
    assert ("Retract this start" in client.get(f"/ui/observations/{start}").text) == (role is Role.ADMIN)
    assert client.post(f"/ui/observations/{start}/retraction", data={"reason": "neighbour"}).status_code == status


@pytest.mark.parametrize("reason", ["", "   ", "x" * 201])
def test_a_retraction_needs_a_reason(client: Client, storage: Storage, reason: str) -> None:
    """Without a reason, or with a whole essay, nothing is retracted and the page says what is wanted."""
    answer = client.post(f"/ui/observations/{newest(storage)}/retraction", data={"reason": reason})
    assert (answer.status_code, "Say why" in answer.text) == (422, True)


@pytest.mark.parametrize(("role", "days", "status"), [(Role.INGEST, 1, 403), (Role.READ, -1, 401), (None, 1, 401)])
def test_a_token_that_opens_nothing_is_refused(
    client: Client, storage: Storage, role: Role | None, days: float, status: int
) -> None:
    """A host's token, an expired one and an unknown one do not sign in, and the form says why."""
    text = token(storage, role, days) if role else "kvy_unknown"
    answer = client.post("/ui/sign-in", data={"token": text})
    assert (answer.status_code, "set-cookie" in answer.headers) == (status, False)
    assert 'role="alert"' in answer.text
    assert text not in answer.text


@pytest.mark.parametrize(
    ("wanted", "safe"),
    [
        ("/ui/advice?x=1", "/ui/advice?x=1"),
        ("https://evil.example/ui", "/ui"),
        ("//evil.example/ui", "/ui"),
        ("/\\evil.example", "/ui"),
        ("/ui\\..\\evil", "/ui"),
        ("/observations", "/ui"),
        (None, "/ui"),
    ],
)
def test_signing_in_leads_to_our_own_pages_only(wanted: str | None, safe: str) -> None:
    """Where to go after signing in is never another site, however it is spelled."""
    assert safe_next(wanted) == safe


def test_a_pair_with_nothing_left_to_fit_still_has_a_page(client: Client, storage: Storage) -> None:
    """When all starts are retracted the pair, its list entry and its history remain, without advice."""
    with storage.read() as unit:
        starts = [str(kept.observation.id) for kept in unit.observations.of_pair(next(iter(unit.pairs.names())).id)]
    for start in starts:
        assert client.post(f"/ui/observations/{start}/retraction", data={"reason": "test"}).status_code == 303
    for path in ("/ui", f"/ui/pairs/{pair(storage)}", f"/ui/observations/{starts[0]}", "/ui/advice"):
        assert client.get(path).status_code == 200
    assert client.get(f"/ui/pairs/{pair(storage)}").text.count('class="retracted') == len(starts)
    fragment = client.get(f"/ui/pairs/{pair(storage)}/advice?target_tokens=1000")
    assert fragment.status_code < 500


def test_a_start_without_a_fraction_is_listed(client: Client) -> None:
    """A start that failed before its flags were known is in the history and breaks no page."""
    gpu = {"gpu": "NVIDIA L4", "gpu_count": 1}
    body = {"hardware": gpu, "model": {"name": "m"}, "engine": {"name": "vllm"}, "outcome": "failed"}
    posted = client.post("/observations", json=body).json()
    for path in (f"/ui/pairs/{posted['pair_id']}", f"/ui/observations/{posted['id']}", "/ui"):
        assert client.get(path).status_code == 200


@pytest.mark.parametrize("name", ["%00", "a%00b.js", "x" * 5_000, "%ff", "nothing.js"])
def test_a_static_file_that_cannot_be_is_not_there(client: Client, name: str) -> None:
    """A name that no file system takes is a 404 like any other that is not there."""
    assert client.get(f"/ui/static/{name}").status_code == 404


@pytest.mark.parametrize(
    "wanted",
    ["/ui\r\nX: y", "/ui\n", "/ui\0", "/ui/\0", "/ui\u2028", "/uievil", "/ui/../../evil", "/ui/%2e%2E/evil", "/ui/a b"],
)
def test_signing_in_leads_to_our_own_pages_alone(client: Client, storage: Storage, wanted: str) -> None:
    """A next that is not a plain path at or below /ui leads to /ui."""
    form = {"token": token(storage, Role.READ), "next": wanted}
    answer = client.post("/ui/sign-in", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui")
    assert safe_next(wanted) == "/ui"


@pytest.mark.parametrize("wanted", ["/ui", "/ui/", "/ui?search=a%20b", "/ui/advice", "/ui/pairs/1?target_tokens=5"])
def test_signing_in_leads_back_to_the_page_that_was_asked_for(wanted: str) -> None:
    """Our own pages, with their queries, are gone back to."""
    assert safe_next(wanted) == wanted


def test_a_pair_that_cannot_be_fitted_is_listed_beside_the_others(client: Client, storage: Storage) -> None:
    """The list of pairs answers, and says at that pair that it could not be fitted."""
    other = {**worked_case()[0], "id": None, "model": {"name": "other"}}
    assert client.post("/observations", json=other).status_code == 201
    fits, broken = client.app.state.services.fits, pair(storage)
    made = fits.of_pair

    def of_pair(unit: Any, each: Any, *more: Any) -> Any:
        if str(each.id) == broken:
            raise ZeroDivisionError
        return made(unit, each, *more)

    fits.of_pair = of_pair
    answer = client.get("/ui")
    assert answer.status_code == 200
    assert (answer.text.count("could not be fitted"), "other" in answer.text, MODEL in answer.text) == (1, True, True)
