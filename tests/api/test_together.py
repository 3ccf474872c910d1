"""What waits together is done together, and fails apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from api.conftest import Client
from api.samples import NAMES, start
from kvyield_server.api.intake import Intake
from kvyield_server.api.turns import Turns
from kvyield_server.errors import InvalidError, StorageUnavailableError
from kvyield_server.storage.memory import MemoryStorage
from kvyield_server.usecases.record import Arrival, Recorded
from storage.samples import start as observed

NOW = datetime(2026, 6, 1, tzinfo=UTC)


class Fragile(MemoryStorage):
    """A storage that refuses any write in which one start is bad, as a database does with a value it cannot hold."""

    def write(self, job: Callable[[Any], Any]) -> Future[Any]:
        def checked(uow: Any) -> Any:
            result = job(uow)
            for outcome in result if isinstance(result, list) else [result]:
                if outcome.stored.observation.host == "bad":
                    raise InvalidError([("", "cannot be held")])
            return result

        return super().write(checked)


def arrivals(*hosts: str) -> list[Arrival]:
    """Return starts of hosts."""
    made = [observed(host=host) for host in hosts]
    return [Arrival(each, str(each.id), None, NOW) for each in made]


def names(outcomes: Sequence[Any]) -> list[str]:
    """Return hosts of what was recorded, and kinds of errors."""
    return [str(it.stored.observation.host) if isinstance(it, Recorded) else type(it).__name__ for it in outcomes]


def test_one_bad_start_fails_alone() -> None:
    """Of starts that share a write, also in a batch, only the one at fault is refused."""

    async def post() -> list[Any]:
        intake = Intake(Fragile())
        single = await asyncio.gather(*map(intake.take, arrivals("a", "bad", "b")), return_exceptions=True)
        return [*single, *await intake.take_all(arrivals("c", "bad", "d"))]

    assert names(asyncio.run(post())) == ["a", "InvalidError", "b", "c", "InvalidError", "d"]


class Counting(MemoryStorage):
    """A storage that takes its time, and notes how many starts each write held."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self._thread = ThreadPoolExecutor(1)

    def write(self, job: Callable[[Any], Any]) -> Future[Any]:
        def noted() -> Any:
            time.sleep(0.01)
            result = super(Counting, self).write(job).result()
            self.sizes.append(len(result) if isinstance(result, list) else 1)
            return result

        return self._thread.submit(noted)


def test_many_that_wait_are_written_by_halves_and_each_is_answered() -> None:
    """One comes alone at once; of the rest at least 16 and at most 64 go together, and known ones are told so."""
    storage = Counting()
    made = arrivals(*(f"gpu-{number}" for number in range(100)))

    async def post() -> list[Recorded]:
        intake = Intake(storage)
        first = await asyncio.gather(*map(intake.take, made))
        again = await asyncio.gather(*map(intake.take, made))
        return [*first, *again]

    outcomes = asyncio.run(post())
    assert [outcome.is_new for outcome in outcomes] == [True] * 100 + [False] * 100
    assert [outcome.stored.observation.host for outcome in outcomes[:100]] == [f"gpu-{number}" for number in range(100)]
    assert storage.sizes[:6] == [1, 49, 25, 16, 9, 1]


def test_a_lost_database_is_told_to_all() -> None:
    """When the write may not be on disk, nobody is told that it is."""

    async def post() -> list[Any]:
        storage = MemoryStorage()
        storage.close()
        intake = Intake(storage)
        with pytest.raises(StorageUnavailableError):
            await intake.take_all(arrivals("a"))
        return await asyncio.gather(*map(intake.take, arrivals("a", "b")), return_exceptions=True)

    assert names(asyncio.run(post())) == ["StorageUnavailableError"] * 2


def test_questions_that_wait_share_a_turn() -> None:
    """Who asks during a turn is answered in the next, together with all others; an error goes to its own turn."""
    turns_made: list[list[int]] = []

    def answer(asked: Sequence[int]) -> list[int]:
        turns_made.append(list(asked))
        if 7 in asked:
            raise ValueError("seven")
        return [2 * each for each in asked]

    async def ask() -> list[Any]:
        with ThreadPoolExecutor(1) as executor:
            turns = Turns(executor, answer)
            first = await asyncio.gather(*(turns.ask(number) for number in range(5)))
            with pytest.raises(ValueError, match="seven"):
                await turns.ask(7)
            return [*first, await turns.ask(8)]

    assert asyncio.run(ask()) == [0, 2, 4, 6, 8, 16]
    assert turns_made == [[0], [1, 2, 3, 4], [7], [8]]


def test_an_unchanged_answer_is_not_sent_again(client: Client) -> None:
    """With its ETag an answer is 304 without a body; any commit that changes it makes it 200 again."""
    for number in (1, 2):
        client.post("/observations", json=start(number))
    query = {**NAMES, "target_tokens": 200000}
    for path, params in (("/recommend", query), ("/observations", {}), ("/pairs", {})):
        first = client.get(path, params=params)
        etag = first.headers["etag"]
        for header in (etag, f'"x", W/{etag}', "*"):
            again = client.get(path, params=params, headers={"If-None-Match": header})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        client.post("/observations", json=start(3, id=None, host=path))
        assert client.get(path, params=params, headers={"If-None-Match": etag}).status_code == 200
