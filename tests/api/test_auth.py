"""Tokens and roles: who may post, who may ask, who may manage."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import TestClient

from _storages import fresh_storage
from api.conftest import Client
from api.samples import NAMES, VERIFICATION, start
from kvyield_server.api import auth, services, tokens
from kvyield_server.app import create_app
from kvyield_server.errors import ForbiddenError, StorageUnavailableError
from kvyield_server.settings import Settings
from kvyield_server.storage.records import ApiToken, Role
from kvyield_server.storage.uow import Storage
from kvyield_server.usecases.tokens import new_token

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FAR = datetime(2999, 1, 1, tzinfo=UTC)
Header = dict[str, str]


@pytest.fixture
def login(storage: Storage) -> Callable[..., Header]:
    """Makes a token and returns the header that sends it."""

    def make(role: Role, *, name: str = "t", expires_at: datetime | None = FAR, revoked: bool = False) -> Header:
        token, text = new_token(name, [role], now=NOW, expires_at=expires_at)
        storage.write(lambda uow: uow.tokens.add(token)).result()
        if revoked:
            storage.write(lambda uow: uow.tokens.revoke(token.id, NOW)).result()
        return {"Authorization": f"Bearer {text}"}

    return make


READS = ["/observations", "/pairs", "/recommend", "/calibration", "/metrics", "/export/observations.ndjson"]
OPEN = ["/health/live", "/health/ready", "/schema/openapi.json", "/problems"]


def test_without_tokens_loopback_is_open(client: Client) -> None:
    """Until the first token is made, a service on loopback serves everybody on that machine."""
    assert client.get("/observations").status_code == 200


@pytest.mark.parametrize("path", READS)
def test_once_a_token_exists_every_caller_needs_one(client: Client, login: Callable[..., Header], path: str) -> None:
    """No token and an unknown one answer 401, even when all tokens are revoked by now."""
    login(Role.READ, revoked=True)
    for headers in (
        {},
        {"Authorization": "Bearer kvy_nope"},
        {"Authorization": "Basic x"},
        {"Authorization": "Bearer"},
    ):
        answer = client.get(path, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", OPEN)
def test_health_schema_and_problems_stay_open(client: Client, login: Callable[..., Header], path: str) -> None:
    """Probes and documentation need no token."""
    login(Role.READ)
    assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"revoked": True}, "revoked"), ({"expires_at": NOW + timedelta(days=1)}, "expired")],
)
def test_a_dead_token_opens_nothing(
    client: Client, login: Callable[..., Header], changes: dict[str, Any], word: str
) -> None:
    """A revoked or expired token answers 401 and says which."""
    answer = client.get("/pairs", headers=login(Role.ADMIN, **changes))
    assert answer.status_code == 401
    assert word in answer.json()["detail"]


CALLS = [
    ("POST", "/observations", {Role.INGEST, Role.ADMIN}),
    ("POST", "/observations/batch", {Role.INGEST, Role.ADMIN}),
    ("POST", f"/observations/{start()['id']}/verifications", {Role.INGEST, Role.ADMIN}),
    ("POST", f"/observations/{start()['id']}/retraction", {Role.ADMIN}),
    ("GET", "/observations", {Role.INGEST, Role.READ, Role.ADMIN}),
    ("GET", "/pairs", {Role.INGEST, Role.READ, Role.ADMIN}),
    ("POST", "/predictions", {Role.READ, Role.ADMIN}),
    ("GET", "/recommend", {Role.READ, Role.ADMIN}),
    ("POST", "/recommendations", {Role.READ, Role.ADMIN}),
    ("GET", "/calibration", {Role.READ, Role.ADMIN}),
    ("GET", "/export/observations.ndjson", {Role.ADMIN}),
    ("GET", "/export/observations.csv", {Role.ADMIN}),
]


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0]} {call[1][:30]}")
def test_each_role_does_what_it_may(
    client: Client, login: Callable[..., Header], call: tuple[str, str, set[Role]], role: Role
) -> None:
    """A role outside the allowed ones answers 403, before the body is looked at; one inside does not."""
    method, path, allowed = call
    answer = client.request(method, path, headers=login(role), content=b"{}" if method == "POST" else None)
    assert (answer.status_code == 403) == (role not in allowed)
    if answer.status_code == 403:
        assert role.value in answer.json()["detail"]


def test_an_ingest_token_reads_its_own_pairs_only(client: Client, login: Callable[..., Header]) -> None:
    """What another token posted is not shown, and is forbidden by id, also within an own pair; its fits are fine."""
    mine, other = login(Role.INGEST, name="mine"), login(Role.INGEST, name="other")
    own = client.post("/observations", json=start(1), headers=mine).json()
    beside = client.post("/observations", json=start(2), headers=other).json()
    foreign = client.post("/observations", json=start(id=None, model={"name": "m"}), headers=other).json()
    assert [item["id"] for item in client.get("/observations", headers=mine).json()["items"]] == [own["id"]]
    assert [pair["id"] for pair in client.get("/pairs", headers=mine).json()["items"]] == [own["pair_id"]]
    shared = client.get(f"/observations?pair_id={own['pair_id']}", headers=mine).json()["items"]
    assert [item["id"] for item in shared] == [own["id"]]
    assert client.get(f"/pairs/{own['pair_id']}/fits", headers=mine).status_code == 200
    for path in (
        f"/observations/{foreign['id']}",
        f"/observations/{beside['id']}",
        f"/observations?pair_id={foreign['pair_id']}",
        f"/pairs/{foreign['pair_id']}",
        f"/pairs/{foreign['pair_id']}/fits",
        f"/pairs/{foreign['pair_id']}/curve",
    ):
        assert client.get(path, headers=mine).status_code == 403
    for each in (foreign, beside):
        way = f"/observations/{each['id']}/verifications"
        assert client.post(way, json=VERIFICATION, headers=mine).status_code == 403


def test_an_ingest_token_ties_advice_to_its_own_starts_only(client: Client, login: Callable[..., Header]) -> None:
    """A host's token ties advice to a start that it posted, and to no other's."""
    mine, other, asker = (login(Role.INGEST, name="a"), login(Role.INGEST, name="b"), login(Role.READ, name="c"))
    asked = {**NAMES, "target_tokens": 200_000}
    client.post("/observations", json=start(3), headers=other)
    way = client.post("/recommendations", json=asked, headers=asker).headers["location"] + "/settlement"
    own, foreign = (
        client.post("/observations", json=start(number), headers=headers).json()["id"]
        for number, headers in ((1, mine), (2, other))
    )
    assert client.post(way, json={"observation_id": foreign}, headers=mine).status_code == 403
    assert client.post(way, json={"observation_id": own}, headers=mine).json()["observation_id"] == own


def test_the_last_use_is_noted(client: Client, storage: Storage, login: Callable[..., Header]) -> None:
    """Using a token writes down when."""
    client.get("/pairs", headers=login(Role.READ))
    until = time.monotonic() + 10
    while time.monotonic() < until:  # it is written after the answer
        with storage.read() as uow:
            (token,) = uow.tokens.list()
        if token.last_used_at is not None:
            return
    pytest.fail("the last use was not written down")


def test_the_text_of_a_token_is_nowhere(storage: Storage) -> None:
    """Only a hash is kept."""
    token, text = new_token("t", [Role.READ], now=NOW, expires_at=None)
    assert text not in repr(token)
    assert len(text) > 40


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gpu-01.example"])
def test_other_addresses_need_a_token_to_start(storage: Storage, login: Callable[..., Header], host: str) -> None:
    """Served beyond loopback the service refuses to start until a valid token exists."""
    login(Role.READ, revoked=True)
    with pytest.raises(ForbiddenError, match="token create"):
        create_app(Settings(host=host), storage)
    login(Role.READ)
    assert isinstance(create_app(Settings(host=host), storage), Litestar)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_starts_without_tokens(storage: Storage, host: str) -> None:
    """Every spelling of loopback is loopback."""
    assert isinstance(create_app(Settings(host=host), storage), Litestar)


def test_retraction_says_who(client: Client, storage: Storage, login: Callable[..., Header]) -> None:
    """The audit log names the token that retracted."""
    admin = login(Role.ADMIN, name="ann")
    client.post("/observations", json=start(), headers=admin)
    client.post(f"/observations/{start()['id']}/retraction", json={"reason": "r"}, headers=admin)
    with storage.read() as uow:
        (entry,) = uow.audit.page(None, 10).items
    assert (entry.actor, entry.action, entry.subject) == ("ann", "retract", start()["id"])


def test_asking_needs_names(client: Client, login: Callable[..., Header]) -> None:
    """A reader who asks about nothing known gets a 404, not a 403."""
    answer = client.post("/predictions", json={"selector": NAMES, "flags": [{}]}, headers=login(Role.READ))
    assert answer.status_code == 404


def test_one_token_with_two_roles_posts_and_asks(client: Client, storage: Storage) -> None:
    """A GPU host needs one token; it then reads what others posted too, and manages nothing."""
    token, text = new_token("host", [Role.INGEST, Role.READ], now=NOW, expires_at=FAR)
    other, others = new_token("other", [Role.INGEST], now=NOW, expires_at=FAR)
    for each in (token, other):
        storage.write(lambda uow, each=each: uow.tokens.add(each)).result()
    mine, theirs = ({"Authorization": f"Bearer {it}"} for it in (text, others))
    for number, headers in ((1, mine), (2, theirs)):
        assert client.post("/observations", json=start(number), headers=headers).status_code == 201
    asked = {**NAMES, "target_tokens": 150_000}
    assert client.get("/recommend", params=asked, headers=mine).status_code == 200
    assert len(client.get("/observations", headers=mine).json()["items"]) == 2
    assert len(client.get("/observations", headers=theirs).json()["items"]) == 1
    retraction = f"/observations/{start(1)['id']}/retraction"
    answer = client.post(retraction, json={"reason": "r"}, headers=mine)
    assert answer.status_code == 403
    assert "ingest, read; this needs admin" in answer.json()["detail"]


class Failing:
    """A storage whose database can go away, and come back."""

    def __init__(self) -> None:
        self.storage = fresh_storage()
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        if self.is_away and name in ("read", "write", "ping", "stamp", "migration_current"):
            return self._away
        return getattr(self.storage, name)

    def _away(self, *_: object) -> None:
        raise StorageUnavailableError("The database is away.")


def test_metrics_are_told_while_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that was used before is known for a day without the database, if it has not expired; another is not."""
    storage = Failing()
    soon = datetime.now(UTC) + timedelta(hours=2)
    used, unused, brief = (
        new_token(name, [Role.READ], now=NOW, expires_at=until)
        for name, until in (("used", None), ("unused", None), ("brief", soon))
    )
    for token, _ in (used, unused, brief):
        storage.write(lambda uow, token=token: uow.tokens.add(token)).result()
    with TestClient(create_app(Settings(), storage)) as client:

        def scrape(made: tuple[ApiToken, str]) -> tuple[int, bool]:
            answer = client.get("/metrics", headers={"Authorization": f"Bearer {made[1]}"})
            return answer.status_code, "kvyield_database_up 0.0" in answer.text

        assert [scrape(used), scrape(brief)] == [(200, False), (200, False)]
        storage.is_away = True
        assert [scrape(used), scrape(brief), scrape(unused)] == [(200, True), (200, True), (503, False)]
        assert client.get("/metrics").status_code == 401
        assert client.get("/pairs", headers={"Authorization": f"Bearer {used[1]}"}).status_code == 503
        monkeypatch.setattr(auth, "utc_now", lambda: soon)
        assert scrape(brief) == (401, False)
        now = time.monotonic()
        monkeypatch.setattr(tokens.time, "monotonic", lambda: now + tokens.KNOWN_SECONDS + 60)
        assert scrape(used) == (503, False)
        storage.is_away = False
        storage.write(lambda uow: uow.tokens.revoke(used[0].id, NOW)).result()
        assert scrape(used) == (401, False)


def test_an_open_service_tells_metrics_while_the_database_is_away() -> None:
    """Where no token was ever made, the database is not asked for one."""
    storage = Failing()
    with TestClient(create_app(Settings(), storage)) as client:
        storage.is_away = True
        answer = client.get("/metrics")
        assert (answer.status_code, "kvyield_database_up 0.0" in answer.text) == (200, True)
        assert client.get("/pairs").status_code == 503


def test_a_database_that_hangs_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where connections hang instead of failing, a scrape is answered within its time, and posts get a 503 in time."""
    monkeypatch.setattr(services, "LOOK_SECONDS", 0.2)
    released = Event()

    class Hanging(Failing):
        def ping(self) -> None:
            if self.is_away:
                released.wait(20)
            self.storage.ping()

    storage = Hanging()
    token, text = new_token("t", [Role.ADMIN], now=NOW, expires_at=None)
    storage.write(lambda uow: uow.tokens.add(token)).result()
    headers = {"Authorization": f"Bearer {text}", "Host": "kv.example"}
    with TestClient(create_app(Settings(), storage), base_url="http://127.0.0.1:8321") as client:
        assert "kvyield_database_up 1.0" in client.get("/metrics", headers=headers).text
        storage.is_away = True
        for _ in range(3):
            began = time.monotonic()
            answer = client.get("/metrics", headers=headers)
            assert (answer.status_code, "kvyield_database_up 0.0" in answer.text) == (200, True)
            assert time.monotonic() - began < 5
        assert client.get("/health/ready").status_code == 503
        assert client.get("/pairs", headers={"Authorization": "Bearer kvy_other"}).status_code == 503
        storage.is_away = False
        released.set()
        assert "kvyield_database_up 1.0" in client.get("/metrics", headers=headers).text


def test_remembered_tokens_are_bounded(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens used longest ago are forgotten first."""
    monkeypatch.setattr(tokens, "MOST_KNOWN", 2)
    made = [new_token(f"t{number}", [Role.READ], now=NOW, expires_at=None) for number in range(3)]
    for token, _ in made:
        storage.write(lambda uow, token=token: uow.tokens.add(token)).result()
    known = tokens.KnownTokens(storage)
    for which in (0, 1, 0, 2):
        found = known.find(made[which][1]).token
        assert found is not None
        assert found.name == f"t{which}"
    assert [known.remembered(text) is not None for _, text in made] == [True, False, True]
