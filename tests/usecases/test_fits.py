"""Fits and answers are made once per state of the evidence, and never from older evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from uuid6 import uuid7

from _storages import fresh_storage
from kvyield_server.api.services import Answers
from kvyield_server.domain.facts.observation import (
    Engine,
    EngineName,
    Hardware,
    Measurements,
    Model,
    Observation,
    Outcome,
)
from kvyield_server.storage.uow import Storage
from kvyield_server.usecases.deployments import subject_of
from kvyield_server.usecases.fits import FitCache
from kvyield_server.usecases.record import Arrival, record
from kvyield_server.usecases.refit import refit
from kvyield_server.usecases.select import Selector

NOON = datetime(2026, 5, 30, 12, tzinfo=UTC)
GPU, MODEL = "NVIDIA H200", "m"
SELECTOR = Selector(gpu=GPU, gpu_count=1, model=MODEL, engine=EngineName.SGLANG)


class CountingExecutor(ThreadPoolExecutor):
    """Counts what is submitted."""

    def __init__(self) -> None:
        super().__init__(1)
        self.count = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.count += 1
        return super().submit(fn, *args, **kwargs)


@pytest.fixture
def executor() -> Iterator[CountingExecutor]:
    """An executor that is shut down in the end."""
    with CountingExecutor() as executor:
        yield executor


def post(storage: Storage, fraction: float, *, gpu: str = GPU, **hardware: Any) -> Observation:
    """Record a start whose pool is a straight line in the fraction."""
    pool, free = round(1_000_000 * (fraction - 0.2)), 141 * (1 - fraction)
    start = Observation(
        id=uuid7(),
        observed_at=NOON + timedelta(seconds=fraction * 1000),
        hardware=Hardware(gpu=gpu, gpu_count=1, **hardware),
        model=Model(name=MODEL, facts={"num_hidden_layers": 36} if gpu == GPU else {}),
        engine=Engine(name=EngineName.SGLANG, version="0.5.12"),
        outcome=Outcome.READY,
        flags={"mem_fraction_static": fraction, "tp_size": 1},
        measurements=Measurements(pool_tokens=pool, free_at_ready_gib=free),
    )
    storage.write(record([Arrival(start, str(start.id), None, NOON, "loopback")])).result()
    return start


def test_a_fit_is_made_once_per_revision(executor: CountingExecutor) -> None:
    """Asking again costs nothing; new evidence, on this hardware or another with the model, makes a new fit."""
    storage, fits = fresh_storage(), FitCache(executor)

    def ask() -> int:
        with storage.read() as uow:
            pair = uow.pairs.find(GPU, 1, MODEL)
            assert pair is not None
            fits.of_pair(uow, pair)
        return executor.count

    post(storage, 0.7)
    assert (ask(), ask()) == (1, 1)
    post(storage, 0.8)
    assert (ask(), ask()) == (2, 2)
    post(storage, 0.8, gpu="NVIDIA H100")
    assert (ask(), ask()) == (3, 3)


def test_simultaneous_askers_share_one_fit(executor: CountingExecutor) -> None:
    """Eight askers at once make one computation."""
    storage, fits = fresh_storage(), FitCache(executor)
    post(storage, 0.7)

    def ask(_: int) -> object:
        with storage.read() as uow:
            pair = uow.pairs.find(GPU, 1, MODEL)
            assert pair is not None
            return fits.of_pair(uow, pair)

    with ThreadPoolExecutor(8) as askers:
        results = list(askers.map(ask, range(8)))
    assert executor.count == 1
    assert all(result is results[0] for result in results)


def test_answers_are_known_until_something_is_committed() -> None:
    """A question is answered once per stamp; another stamp forgets all, and the oldest go when there are too many."""
    made: list[int] = []
    answers = Answers(size=2)

    def make(number: int) -> Any:
        made.append(number)
        return object()

    for number in (1, 2, 3, 3, 1):
        answers.get("now", number, lambda number=number: make(number))
    assert made == [1, 2, 3, 1]
    first = answers.get("now", 3, lambda: make(3))
    assert answers.get("later", 3, lambda: make(3)) is not first
    assert answers.get("now", 3, lambda: make(3)) is not first


def test_what_takes_longer_than_the_stamp_is_not_kept() -> None:
    """An answer that was begun before a commit is given to who asked, and to nobody after."""
    answers = Answers()
    began = answers.get("now", 1, lambda: answers.get("later", 2, lambda: "new") and "old")
    assert began == "old"
    assert answers.get("later", 1, lambda: "new") == "new"


def test_a_start_learns_what_others_of_its_pair_said(executor: CountingExecutor) -> None:
    """Memory of the GPU and facts of the model that one start told hold for all starts of the pair."""
    storage, fits = fresh_storage(), FitCache(executor)
    post(storage, 0.6, memory_gib=140.0)
    post(storage, 0.7)
    with storage.read() as uow:
        subject = subject_of(uow, fits, SELECTOR)
    starts = subject.deployment({}).starts
    assert {start.hardware.memory_gib for start in starts} == {140.0}
    assert all(start.model.facts == {"num_hidden_layers": 36} for start in starts)


def test_refit_brings_the_fleet_up_to_date() -> None:
    """A refit yields a line per deployment, and leaves no row of the fleet to be looked at."""
    storage = fresh_storage()
    for fraction in (0.6, 0.7):
        post(storage, fraction)
    with storage.read() as uow:
        assert uow.fleet.stale_count() == 1
    (line,) = list(refit(storage))
    assert line.startswith("1 x NVIDIA H200, m: ")
    with storage.read() as uow:
        assert uow.fleet.stale_count() == 0
