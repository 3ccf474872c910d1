"""The ledger: what is added comes back as it was, in a stable order, and is marked but never lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Failure,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
    Verification,
)
from kvyield_server.domain.records import StoredObservation
from kvyield_server.errors import ConflictError, InvalidError, NotFoundError
from kvyield_server.storage.records import ObservationFilter, PageKey
from kvyield_server.storage.uow import Storage, UnitOfWork
from kvyield_server.storage.values import new_id
from storage.samples import full_start, minutes, recording, start

PROMPT = Verification(prompt_tokens=60010, passed=True, elapsed_seconds=45.9)


def get(storage: Storage, observation: Observation) -> StoredObservation:
    with storage.read() as unit:
        found = unit.observations.get(observation.id)
    assert found is not None
    return found


def listed(storage: Storage, **wanted: Any) -> list[Observation]:
    with storage.read() as unit:
        page = unit.observations.page(ObservationFilter(**wanted), None, 100)
    assert page.next_key is None
    return [row.observation for row in page.items]


def verifying(observation: Observation, verification: Verification) -> Callable[[UnitOfWork], bool]:
    return lambda unit: unit.observations.add_verification(observation.id, verification)


@pytest.mark.parametrize("make", [start, full_start])
def test_an_observation_comes_back_as_it_was(storage: Storage, make: Callable[[], Observation]) -> None:
    """Every field survives: floats to the last bit, times to the microsecond, null flags, lists within facts."""
    observation = make()
    pair_id = storage.write(recording(observation, "digest", received_at=minutes(9))).result()
    expected = StoredObservation(
        observation=observation, pair_id=pair_id, received_at=minutes(9), content_digest="digest"
    )
    assert get(storage, observation) == expected
    with storage.read() as unit:
        found = {observation.id: observation.id}, {"digest": observation.id}
        assert unit.observations.known([], ["digest", "other"]) == found
        assert unit.observations.known([observation.id, new_id()], []) == found
        assert unit.observations.page(ObservationFilter(), None, 1).items == (expected,)


def test_unknown_observations_are_none(storage: Storage) -> None:
    """Looking for what is not there answers None."""
    with storage.read() as unit:
        assert unit.observations.get(new_id()) is None
        assert unit.observations.known([new_id()], ["none"]) == ({}, {})


def test_an_id_is_stored_once(storage: Storage) -> None:
    """A second observation with the same id is a conflict, and the first stays as it was."""
    first = start()
    storage.write(recording(first, "a")).result()
    again = storage.write(recording(replace(first, host="other"), "b"))
    assert isinstance(again.exception(), ConflictError)
    assert get(storage, first).observation == first


def test_a_content_is_stored_once(storage: Storage) -> None:
    """A second observation with the same digest is a conflict, and it is not counted."""
    pair_id = storage.write(recording(start(), "same")).result()
    assert isinstance(storage.write(recording(start(), "same")).exception(), ConflictError)
    with storage.read() as unit:
        pair = unit.pairs.get(pair_id)
    assert pair is not None
    assert pair.observation_count == 1


def test_an_observation_needs_its_pair(storage: Storage) -> None:
    """An observation of a pair that is not stored is refused."""
    orphan = StoredObservation(observation=start(), pair_id=new_id(), received_at=minutes(9), content_digest="digest")
    future = storage.write(lambda unit: unit.observations.add([orphan], []))
    assert isinstance(future.exception(), NotFoundError)


@pytest.mark.parametrize(
    "fields",
    [
        {"measurements": Measurements(kv_cache_gib=float("nan"))},
        {"flags": {"mem_fraction_static": float("inf")}},
        {"log_excerpt": "a\0b"},
        {"flags": {"name": "\ud800"}},
        {"failure": Failure(message="\0")},
    ],
    ids=["nan", "infinity", "nul", "surrogate", "nested"],
)
def test_what_one_database_cannot_hold_all_refuse(storage: Storage, fields: dict[str, Any]) -> None:
    """NaN, infinities, NUL and lone surrogates are invalid everywhere, so that data can always move."""
    assert isinstance(storage.write(recording(start(**fields))).exception(), InvalidError)
    assert listed(storage) == []


@pytest.mark.parametrize(
    "wanted",
    [
        {"gpu": "H200"},
        {"model": "other"},
        {"engine": EngineName.VLLM},
        {"outcome": Outcome.OOM_STARTUP},
        {"host": "gpu-02"},
        {"since": minutes(10)},
        {"gpu": "H200", "host": "gpu-02", "outcome": Outcome.OOM_STARTUP},
    ],
    ids="-".join,
)
def test_each_filter_finds_its_own(storage: Storage, wanted: dict[str, Any]) -> None:
    """A filter keeps what matches it exactly; several filters all hold."""
    odd = start(
        minutes(10),
        hardware=Hardware(gpu="H200", gpu_count=8),
        model=Model(name="other"),
        engine=Engine(name=EngineName.VLLM),
        outcome=Outcome.OOM_STARTUP,
        host="gpu-02",
        flags={},
    )
    for observation in (start(host="gpu-01"), odd, start(minutes(5))):
        storage.write(recording(observation)).result()
    assert listed(storage, **wanted) == [odd]


def test_a_period_holds_its_beginning_and_not_its_end(storage: Storage) -> None:
    """Periods that touch share no observation and lose none."""
    starts = [start(minutes(count)) for count in range(4)]
    for each in starts:
        storage.write(recording(each)).result()
    assert listed(storage, since=minutes(1), until=minutes(3)) == [starts[2], starts[1]]


def test_pages_hold_every_row_once(storage: Storage) -> None:
    """Pages of any size give all rows newest first, also where many share one time."""
    starts = [start(minutes(count // 3)) for count in range(10)]
    for each in starts:
        storage.write(recording(each)).result()
    expected = sorted(starts, key=lambda each: (each.observed_at, each.id), reverse=True)
    for size in (1, 3, 10, 11):
        assert paged(storage, size) == expected


@pytest.mark.parametrize("size", [1, 4, 50])
@pytest.mark.parametrize("sort", ["observed_at", "-observed_at", "received_at", "-received_at"])
@pytest.mark.parametrize("wanted", [{}, {"gpu": "even"}, {"gpu": "even", "model": "m"}])
def test_sorted_pages_hold_every_row_once(storage: Storage, sort: str, size: int, wanted: dict[str, Any]) -> None:
    """By start or by arrival, either way, of all or of some pairs, also where many share one time."""
    for number in range(12):
        gpu = Hardware(gpu=("even", "odd")[number % 2], gpu_count=1 + number % 4)
        each = start(minutes(7 * number % 12 // 3), hardware=gpu, model=Model(name="m"))
        storage.write(recording(each)).result()
    seen: list[StoredObservation] = []
    key: PageKey | None = None
    while key is not None or not seen:
        with storage.read() as unit:
            page = unit.observations.page(ObservationFilter(**wanted), key, size, sort=sort)
        seen += page.items
        key = page.next_key
        if key is None:
            break
    keys = [
        (row.received_at if "received" in sort else row.observation.observed_at, row.observation.id) for row in seen
    ]
    assert keys == sorted(set(keys), reverse=sort.startswith("-"))
    assert len(keys) == (6 if wanted else 12)


def paged(storage: Storage, size: int, meanwhile: Callable[[], object] = lambda: None) -> list[Observation]:
    seen: list[Observation] = []
    key: PageKey | None = None
    while True:
        with storage.read() as unit:
            page = unit.observations.page(ObservationFilter(), key, size)
        seen += [row.observation for row in page.items]
        key = page.next_key
        if key is None:
            return seen
        meanwhile()


def test_pages_are_stable_while_rows_arrive(storage: Storage) -> None:
    """Newer rows that arrive between two pages shift nothing: no row comes twice, none is missed."""
    starts = [start(minutes(count)) for count in range(9)]
    for each in starts:
        storage.write(recording(each)).result()
    seen = paged(storage, 2, lambda: storage.write(recording(start(minutes(60)))).result())
    assert seen == starts[::-1]
    assert all(newer.observed_at > older.observed_at for newer, older in pairwise(seen))


def test_retraction_marks_and_leaves_out(storage: Storage) -> None:
    """A retracted observation is still listed with its reason, but is out of the pair's evidence and summary."""
    kept, bad = start(minutes(1)), start(minutes(2), engine=Engine(name=EngineName.VLLM))
    pair_id = storage.write(recording(kept)).result()
    storage.write(recording(bad)).result()
    marked = storage.write(lambda unit: unit.observations.retract(bad.id, "wrong log", minutes(3))).result()
    assert (marked.retracted_at, marked.retraction_reason) == (minutes(3), "wrong log")
    assert get(storage, bad) == marked
    assert listed(storage) == [bad, kept]
    assert listed(storage, include_retracted=False) == [kept]
    with storage.read() as unit:
        assert [row.observation for row in unit.observations.of_pair(pair_id)] == [kept]
        assert [row.observation for row in unit.observations.of_pair(pair_id, include_retracted=True)] == [bad, kept]
        pair = unit.pairs.get(pair_id)
    assert pair is not None
    assert (pair.observation_count, pair.last_observed_at, pair.engines) == (1, minutes(1), (EngineName.SGLANG,))
    assert pair.revision == 3


def test_a_pair_can_lose_all_its_evidence(storage: Storage) -> None:
    """Once all is retracted, the pair is empty but still there."""
    only = start()
    pair_id = storage.write(recording(only)).result()
    storage.write(lambda unit: unit.observations.retract(only.id, "test", minutes(1))).result()
    with storage.read() as unit:
        pair = unit.pairs.get(pair_id)
    assert pair is not None
    assert (pair.observation_count, pair.last_observed_at, pair.engines) == (0, None, ())


def test_the_first_retraction_stays(storage: Storage) -> None:
    """A second retraction changes neither reason nor time nor revision."""
    bad = start()
    storage.write(recording(bad)).result()
    first = storage.write(lambda unit: unit.observations.retract(bad.id, "first", minutes(1))).result()
    second = storage.write(lambda unit: unit.observations.retract(bad.id, "second", minutes(2))).result()
    assert second == first == get(storage, bad)


def test_verifications_are_appended_in_order(storage: Storage) -> None:
    """Verifications come back in the order in which they were sent, and change the pair's revision."""
    observation = start(verifications=(PROMPT,))
    pair_id = storage.write(recording(observation)).result()
    more = [replace(PROMPT, prompt_tokens=tokens) for tokens in (200000, 100000)]
    for each in more:
        assert storage.write(verifying(observation, each)).result()
    assert get(storage, observation).observation.verifications == (PROMPT, *more)
    with storage.read() as unit:
        pair = unit.pairs.get(pair_id)
        assert pair is not None
        assert pair.revision == 3
        assert unit.observations.of_pair(pair_id)[0].observation.verifications == (PROMPT, *more)


def test_a_verification_may_be_sent_again(storage: Storage) -> None:
    """An equal verification is not kept twice: a spool may replay it any number of times."""
    observation = start(verifications=(PROMPT,))
    storage.write(recording(observation)).result()
    assert storage.write(lambda unit: unit.observations.add_verification(observation.id, PROMPT)).result() is False
    assert get(storage, observation).observation.verifications == (PROMPT,)


def test_marks_on_unknown_observations_are_errors(storage: Storage) -> None:
    """Nothing can be said of an observation that is not stored."""
    retraction = storage.write(lambda unit: unit.observations.retract(new_id(), "reason", minutes(0)))
    verification = storage.write(lambda unit: unit.observations.add_verification(new_id(), PROMPT))
    assert isinstance(retraction.exception(), NotFoundError)
    assert isinstance(verification.exception(), NotFoundError)


def test_evidence_of_a_pair_comes_without_logs(storage: Storage) -> None:
    """All observations of a pair are read without their log excerpts, which no fit needs."""
    observation = start(log_excerpt="long")
    pair_id = storage.write(recording(observation)).result()
    with storage.read() as unit:
        (row,) = unit.observations.of_pair(pair_id)
    assert row.observation == replace(observation, log_excerpt=None)
    assert get(storage, observation).observation.log_excerpt == "long"


@pytest.mark.parametrize("most", [50, 1])
def test_starts_of_a_gpu_or_model_are_those_of_all_their_pairs(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Newest first over all pairs and page by page, be the pairs few and asked one by one or too many for that."""
    monkeypatch.setattr("kvyield_server.storage.observations.MOST_PAIRS", most)
    gpus, models = ("NVIDIA L4", "NVIDIA H200"), ("one", "two", "three")
    made = [
        start(
            minutes(number), hardware=Hardware(gpu=gpus[number % 2], gpu_count=1), model=Model(name=models[number % 3])
        )
        for number in range(12)
    ]
    for each in made:
        storage.write(recording(each)).result()
    newest = made[::-1]
    assert listed(storage, gpu="NVIDIA L4") == [each for each in newest if each.hardware.gpu == "NVIDIA L4"]
    assert listed(storage, model="two") == [each for each in newest if each.model.name == "two"]
    assert listed(storage, model="two", gpu="NVIDIA L4") == [made[10], made[4]]
    assert listed(storage, model="two", since=minutes(3), until=minutes(8)) == [made[7], made[4]]
    assert listed(storage, model="none") == []
    found, key = list[Observation](), None
    while len(found) < 6:
        with storage.read() as unit:
            page = unit.observations.page(ObservationFilter(gpu="NVIDIA H200"), key, 2)
        found, key = [*found, *(row.observation for row in page.items)], page.next_key
    assert (found, key) == ([each for each in newest if each.hardware.gpu == "NVIDIA H200"], None)
