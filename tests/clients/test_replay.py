"""Reading old logs again with a newer reader: nothing is stored twice, and nothing that is new is taken for known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal
from uuid import UUID

import msgspec
import pytest

import _stand_in_service as faults
from _samples_client import sample
from _stand_in_service import StandIn
from kvyield import Client, ConflictError, Observation, Verification
from kvyield._errors import ServiceFailedError
from kvyield._ids import start_id
from kvyield._replay import KEPT, SETTLED, UNSETTLED, post_start
from kvyield._transfer import Limits
from kvyield.delivery import Delivery, deliver_batch, spool_observations, spool_verification
from kvyield.spool import Spool

ONE, TWO = UUID(int=1), UUID(int=2)


@pytest.fixture
def client(service: StandIn) -> Iterator[Client]:
    with Client(service.url, limits=Limits(retries=0)) as opened:
        yield opened


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


def changed(observation: Observation, **changes: object) -> Observation:
    """The same start as another reader sees it, under the id that follows from it."""
    other = msgspec.structs.replace(observation, **changes)
    other.id = start_id(other)
    return other


def richer() -> Observation:
    """What a reader that finds more makes of ``sample()``."""
    found = sample()
    flags = {**found.flags, "page_size": 64, "port": 30000, "random_seed": 1234}
    measured = msgspec.structs.replace(found.measurements, free_at_ready_gib=6.1, startup_seconds=360.0)
    engine = msgspec.structs.replace(found.engine, version="0.5.12.post1")
    return changed(found, flags=flags, measurements=measured, engine=engine, host="gpu-01", log_excerpt="more")


def one_by_one(found: list[Observation], spool: Spool, client: Client) -> list[Delivery]:
    return spool_observations(found, spool).send(client)


@pytest.mark.parametrize("way", [one_by_one, deliver_batch])
@pytest.mark.parametrize("order", [1, -1])
def test_a_newer_reader_stores_nothing_twice(
    service: StandIn, spool: Spool, client: Client, way: Callable[..., list[Delivery]], order: int
) -> None:
    """A start that a newer or older reader posts again is known, kept as it was, and the note says so."""
    first, second = [sample(), richer()][::order]
    assert first.id == second.id
    assert [one.result for one in way([first], spool, client)] == ["stored"]
    [again] = way([second], spool, client)
    assert (again.result, again.reason, again.stored_id) == ("known", KEPT, first.id)
    [same] = way([first], spool, client)
    assert (same.result, same.reason) == ("known", None)
    assert len(service.stored) == 1
    assert spool.items() == []


@pytest.mark.parametrize(
    "difference",
    [
        {"host": "gpu-02"},
        {"flags": {"mem_fraction_static": 0.94}},
        {"flags": {"mem_fraction_static": 0.92, "port": 30001}},
        {"measurements": msgspec.structs.replace(sample().measurements, pool_tokens=192_407)},
    ],
    ids=["host", "fraction", "port", "pool"],
)
@pytest.mark.parametrize("way", [one_by_one, deliver_batch])
def test_two_servers_of_one_second_stay_two(
    service: StandIn, spool: Spool, client: Client, way: Callable[..., list[Delivery]], difference: dict[str, object]
) -> None:
    """Starts of one second that differ in host, fraction, port or pool are both stored, however often they come."""
    one, other = richer(), changed(richer(), **difference)
    assert one.id == other.id
    for expected in ("stored", "known"):
        assert {delivery.result for delivery in way([one, other], spool, client)} == {expected}
    newer = changed(other, log_excerpt="a reader that finds more")
    [again] = way([newer], spool, client)
    assert (again.result, again.reason) == ("known", KEPT)
    assert len(service.stored) == 2


@pytest.mark.parametrize(
    "difference",
    [
        {"observed_at": datetime.fromisoformat("2026-05-30T22:00:24+00:00")},
        {"outcome": "oom_runtime"},
        {"model": msgspec.structs.replace(sample().model, name="other")},
        {"hardware": msgspec.structs.replace(sample().hardware, gpu_count=4)},
    ],
    ids=["second", "outcome", "model", "hardware"],
)
def test_another_start_has_another_id(difference: dict[str, object]) -> None:
    """Another second, end, model or hardware is another start from the beginning."""
    assert changed(sample(), **difference).id != sample().id


def test_the_id_tells_the_time_to_the_second() -> None:
    """A reader that finds a finer stamp makes the same id, of version 7, with the start's time in front."""
    finer = changed(sample(), observed_at=sample().observed_at + timedelta(milliseconds=417))  # type: ignore[operator]  # it has a time
    assert finer.id == sample().id
    assert finer.id is not None
    assert (finer.id.version, finer.id.int >> 80) == (7, 1_780_178_423_000)


def test_without_a_time_every_value_counts() -> None:
    """A log without times identifies no start, so only the same content is the same start."""
    bare = changed(sample(), observed_at=None)
    assert bare.id == changed(sample(), observed_at=None).id
    assert bare.id != changed(richer(), observed_at=None).id


def test_verifications_reach_a_start_that_is_stored(service: StandIn, client: Client) -> None:
    """A start that comes with a verification after it was stored without leaves the verification there."""
    post_start(client, sample())
    verified = changed(sample(), verifications=[Verification(prompt_tokens=60_010, passed=True)])
    receipt = post_start(client, verified)
    assert (receipt.created, receipt.id) == (False, sample().id)
    [stored] = service.stored.values()
    assert [one["prompt_tokens"] for one in stored["verifications"]] == [60_010]


def test_a_start_that_a_watch_posted_is_tied_to_what_it_followed(service: StandIn, client: Client) -> None:
    """A report that names the recommendation ties it to the start that is stored without; nothing is stored anew."""
    watched = post_start(client, sample())
    receipt = post_start(client, changed(sample(), recommendation_id=ONE))
    assert (receipt.id, receipt.created, receipt.note) == (watched.id, False, SETTLED)
    assert service.settled == {str(ONE): str(watched.id)}
    assert len(service.stored) == 1


@pytest.mark.parametrize("code", [404, 409, 422])
def test_a_recommendation_that_stays_open_is_said(service: StandIn, client: Client, code: int) -> None:
    """When the service does not accept that (unknown, tied to another start, of another pair), the note says why."""
    post_start(client, sample())
    service.faults += [faults.status(409), lambda handler: handler._get(), faults.status(code)]
    note = post_start(client, changed(sample(), recommendation_id=ONE)).note or ""
    assert note.startswith(UNSETTLED)
    assert f"HTTP {code}" in note


def test_a_settlement_waits_while_the_service_is_away(service: StandIn, client: Client) -> None:
    """A service that fails at the settlement is asked again later: the start is not taken for delivered."""
    post_start(client, sample())
    service.faults += [faults.status(409), lambda handler: handler._get(), *[faults.status(503)] * 9]
    with pytest.raises(ServiceFailedError):
        post_start(client, changed(sample(), recommendation_id=ONE))


def test_an_id_that_a_caller_chose_still_conflicts(client: Client) -> None:
    """Whoever names observations by hand is told of a conflict; nothing is guessed."""
    post_start(client, msgspec.structs.replace(sample(), id=TWO))
    with pytest.raises(ConflictError):
        post_start(client, msgspec.structs.replace(richer(), id=TWO))


def test_what_another_token_stored_does_not_swallow_a_start(service: StandIn, client: Client) -> None:
    """A stored start that this token may not read counts as another's: this one is stored beside it."""
    post_start(client, sample())
    service.faults += [faults.status(409), faults.status(403)]
    assert post_start(client, richer()).created
    assert len(service.stored) == 2


def test_a_conflict_while_the_service_goes_away_waits(service: StandIn, spool: Spool, client: Client) -> None:
    """When the service goes away while a conflict is looked at, the observation waits in the spool."""
    post_start(client, sample())
    service.faults += [lambda handler: handler._post(), faults.status(503)]
    assert [one.result for one in deliver_batch([richer()], spool, client)] == ["spooled"]
    assert spool.pending_count() == 1
    assert [one.result for one in spool_observations([richer()], spool).send(client)] == ["known"]
    assert spool.items() == []


@pytest.mark.parametrize(("answer", "passed"), [("right", True), ("not_checked", True), ("wrong", False)])
def test_an_older_service_takes_verifications_as_it_knew_them(
    service: StandIn, client: Client, spool: Spool, answer: Literal["right", "wrong", "not_checked"], passed: bool
) -> None:
    """One that refuses ``answer`` as unknown gets verifications without it, in a start and alone; nothing is lost."""
    fault = {"pointer": "/answer", "detail": "answer is not known here"}
    body = json.dumps({"title": "Invalid", "status": 422, "detail": "one fault", "errors": [fault]}).encode()
    check = Verification(prompt_tokens=60_010, passed=True, answer=answer)
    service.faults.append(faults.body(body, code=422))
    start = changed(sample(), verifications=[check])
    [stored] = spool_observations([start], spool).send(client)
    service.faults.append(faults.body(body, code=422))
    assert stored.stored_id is not None
    [added] = spool_verification(stored.stored_id, check, spool).send(client)
    assert (stored.result, added.result, spool.items()) == ("stored", "stored", [])
    refusal = {"index": 0, "status": 422, "problem": json.loads(body)}
    service.faults += [faults.body(json.dumps({"items": [refusal]}).encode()), faults.body(body, code=422)]
    batched = changed(sample(5), verifications=[check])
    assert [one.result for one in deliver_batch([batched], spool, client)] == ["stored"]
    row = next(iter(service.stored.values()))
    assert [(one["passed"], one.get("answer")) for one in row["verifications"]] == [(passed, None)] * 2
