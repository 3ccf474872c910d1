"""The running stand-in: tokens, prefix cache, answers."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from standin.config import Config
from standin.logs import Log, oom_lines, prefill_line
from standin.memory import Memory, OutOfMemoryError, Plan

_TOKEN = re.compile(r" ?[A-Za-z]{1,6}|\d|\n+|[^\sA-Za-z\d]| ")


def tokens_of(text: str) -> list[str]:
    """The stand-in's tokens: pieces of words of up to six letters, single digits, signs; one token opens every text."""
    return ["<s>", *_TOKEN.findall(text)]


def token_ids(tokens: Sequence[str]) -> list[int]:
    """A number for each token."""
    return [zlib.crc32(token.encode()) % 150_000 for token in tokens]


@dataclass
class Answer:
    """One prompt with what came of it, filled in as it runs."""

    prompt_tokens: int
    cached_tokens: int
    pieces: list[str]
    key: int
    completion_tokens: int = 0
    text: str = ""


@dataclass
class State:
    """A started engine. Its faults may be replaced while it runs."""

    config: Config
    plan: Plan
    memory: Memory
    log: Log
    control: TextIO | None = None
    running: int = 0
    flushes: int = 0
    prompts: int = 0
    _prefixes: list[list[str]] = field(default_factory=list)
    _keys: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _chunk: threading.Lock = field(default_factory=threading.Lock)

    @property
    def context_tokens(self) -> int:
        """The context length, which is at most the pool for vLLM."""
        return self.config.context_length

    @property
    def max_input_tokens(self) -> int:
        """SGLang's ``max_req_input_len``: a prompt of this many tokens is already refused."""
        return min(self.config.context_length - 1, self.plan.pool_tokens - 1) - 5

    def admit(self, text: str, completion_tokens: int) -> Answer:
        """Counts a prompt, looks it up in the prefix cache and decides what will be said."""
        tokens = tokens_of(text)
        faults = self.config.faults
        with self._lock:
            cached = self._cached(tokens) if faults.cached_tokens is None else faults.cached_tokens
            self._prefixes = [*self._prefixes[-7:], tokens]
            self.prompts += 1
            key = next(self._keys)
        pieces = _answer_pieces(text, wrong=faults.wrong_answer)[:completion_tokens]
        return Answer(len(tokens), min(cached, len(tokens) - 1), pieces, key)

    def run(self, answer: Answer) -> Iterator[str]:
        """Prefills and then yields the answer's tokens. Raises OutOfMemoryError; the process may die, as told."""
        faults = self.config.faults
        with self._lock:
            self.running += 1
        try:
            with self.memory.prompt(answer.key):
                self._prefill(answer)
                time.sleep(faults.slow_seconds)
                for piece in answer.pieces:
                    time.sleep(self.config.decode_seconds_per_token)
                    answer.completion_tokens += 1
                    answer.text += piece
                    yield piece
                    if faults.hang_midway:
                        threading.Event().wait()
        finally:
            with self._lock:
                self.running -= 1

    def flush(self) -> bool:
        """Empties the prefix cache; False while requests are pending."""
        with self._lock:
            if self.running or self.config.faults.flush_busy > 0:
                self.config.faults.flush_busy -= 1
                return False
            self._prefixes.clear()
            self.flushes += 1
        self.memory.flush()
        return True

    def die_of_memory(self) -> None:
        """Logs the engine's last words and ends the process, as a scheduler that ran out of GPU memory does."""
        self.log.write(*oom_lines(self.config))
        os._exit(1)

    def _prefill(self, answer: Answer) -> None:
        faults, chunk = self.config.faults, self.config.chunk_tokens
        if self.prompts == 1:
            time.sleep(self.config.first_prompt_seconds)
        if faults.hang:
            threading.Event().wait()
        for start in range(answer.cached_tokens, answer.prompt_tokens, chunk):
            done = min(start + chunk, answer.prompt_tokens)
            if faults.oom_at_tokens is not None and done >= faults.oom_at_tokens:
                raise OutOfMemoryError("as asked")
            self.memory.grow(answer.key, done)
            if faults.die_at_tokens is not None and done >= faults.die_at_tokens:
                os._exit(1)
            self._work(start, done)
            usage = done / max(1, self.plan.pool_tokens)
            cached = answer.cached_tokens if start == answer.cached_tokens else 0
            self.log.write(prefill_line(self.config, new=done - start, cached=cached, usage=usage))

    def _work(self, start: int, done: int) -> None:
        config = self.config
        seconds = (done - start) / config.prefill_tokens_per_second
        seconds += (done * done - start * start) * config.prefill_seconds_per_square
        with contextlib.nullcontext() if config.prompts_at_once else self._chunk:
            time.sleep(seconds)

    def _cached(self, tokens: list[str]) -> int:
        longest = 0
        for known in self._prefixes:
            same = sum(
                1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(known, tokens, strict=False))
            )
            longest = max(longest, same)
        page = 16 if self.config.engine == "vllm" else self.config.page_tokens
        return longest // page * page


def _answer_pieces(text: str, *, wrong: bool) -> list[str]:
    """The only number in the text, digit by digit, as a good reader would give it; otherwise something else."""
    number = re.search(r"\d{3,}", text)
    if number is None or wrong:
        return [" I", " do", " not", " know", "."]
    return [" ", *number.group(), "."]
