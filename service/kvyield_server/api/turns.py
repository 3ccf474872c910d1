"""Turns: questions that wait together are answered together, so that each costs a share of one trip to a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Turns(Generic[Asked, Answer]):
    """Answers in the executor, one turn at a time; who asks meanwhile is answered in the next turn.

    An answer is made after its question came, never before. Belongs to one event loop.
    """

    def __init__(self, executor: Executor, answer: Callable[[Sequence[Asked]], Sequence[Answer]]) -> None:
        self._executor = executor
        self._answer = answer
        self._waiting: list[tuple[Asked, asyncio.Future[Answer]]] = []
        self._is_running = False

    async def ask(self, question: Asked) -> Answer:
        """Return the answer to a question; raise what answering raised."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((question, future))
        if not self._is_running:
            self._run(loop)
        return await future

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        turn, self._waiting = self._waiting, []
        self._is_running = bool(turn)
        if turn:
            made = loop.run_in_executor(self._executor, self._answer, [question for question, _ in turn])
            made.add_done_callback(lambda done: self._told(loop, turn, done))

    def _told(
        self,
        loop: asyncio.AbstractEventLoop,
        turn: Sequence[tuple[Asked, asyncio.Future[Answer]]],
        done: asyncio.Future[Sequence[Answer]],
    ) -> None:
        self._run(loop)
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        answers = done.result() if error is None else ()
        for index, (_, future) in enumerate(turn):
            if future.done():  # the asker went away
                continue
            if error is None:
                future.set_result(answers[index])
            else:
                future.set_exception(error)


async def answered(future: Future[Answer]) -> Answer:
    """Return what another thread's future holds; who stops waiting stops nothing.

    ``asyncio.wrap_future`` does the same and leaves a cycle behind, which keeps the result until a collection.
    """
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    hand_on(future, answer)
    return await answer


def hand_on(future: Future[Answer], answer: asyncio.Future[Answer]) -> None:
    """Let a loop's future have what another thread's comes to hold."""
    loop = answer.get_loop()

    def told(done: Future[Answer]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(_pass_on, done, answer)

    future.add_done_callback(told)


def _pass_on(done: Future[Answer], answer: asyncio.Future[Answer]) -> None:
    if answer.done():  # the caller went away
        return
    error = done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)
