"""Carrying out a verification: find, count, warm up, measure the pace, flush, send, watch memory, judge."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kvyield._engine_http import EngineError, EngineHttp, EngineRefusedError, EngineTimeoutError
from kvyield.gpu import FreeReader, GpuError, MemorySampler, MemorySamples
from kvyield.verify._ask import NOT_THERE, ROUTES, Reading, RouteName, ask
from kvyield.verify._order import OnProgress, OnResult, Order, Progress, Report, Stage
from kvyield.verify._pace import estimate_seconds, is_suspicious, lengths_to_measure, ramp
from kvyield.verify._prompt import Prompt, Rate, build_prompt, fit_prompt, is_answered, is_close
from kvyield.verify._result import (
    Outcome,
    Sent,
    Verified,
    answer_of,
    is_out_of_memory,
    refusal_of,
    summary,
    to_wire,
    wrong_answer,
)
from kvyield.verify._server import Server, find_server, flush_cache, is_alive, token_counter

WARM_UP_TOKENS = 2048
WARM_UP_SECONDS = 300.0
"""A fresh server's first prompt may compile kernels for minutes."""
LONG_GAP_SECONDS = 0.25
UNDER = 0.9985
"""Prompts made by a measured rate aim this far below, inside the 0.5 %, so that none exceeds the server's limit."""


class _RefusedError(Exception):
    """The prompt was not sent, or the engine did not take it."""


def _say_nothing(_step: Progress) -> None:
    pass


def _ignore(_result: Verified) -> None:
    pass


def verify(
    http: EngineHttp,
    order: Order,
    *,
    server: Server | None = None,
    reader: FreeReader | None = None,
    progress: OnProgress = _say_nothing,
    on_result: OnResult = _ignore,
    last_words: Callable[[], str] = lambda: "",
) -> Report:
    """Sends the ordered prompts to the engine and reports each as a verification; nothing is raised for a bad server.

    ``server`` is what `find_server` found before; None asks again. ``reader`` reads the GPUs that the engine runs on;
    without it no memory figures are given. ``on_result`` receives each result at once. ``last_words`` gives what the
    engine's log says since the verification began: it tells running out of memory from another crash.
    """
    run = _Run(http, order, reader, progress, last_words)
    try:
        server = run.found(server or find_server(http, order.model))
    except EngineError as error:
        return Report(None, refusal=str(error))
    refusal = server.refusal(order.prompt_tokens)
    if refusal:
        return Report(server, refusal=refusal)
    results: list[Verified] = []
    try:
        for result in run.results(server):
            results.append(result)
            on_result(result)
    except _RefusedError as error:
        refusal = str(error)
    return Report(server, tuple(results), tuple(run.notes), refusal)


class _Run:
    def __init__(
        self,
        http: EngineHttp,
        order: Order,
        reader: FreeReader | None,
        progress: OnProgress,
        last_words: Callable[[], str],
    ) -> None:
        self._http = http
        self._order = order
        self._reader = reader
        self._progress = progress
        self._last_words = last_words
        self._seed = secrets.randbits(62) if order.seed is None else order.seed
        self._steps = ramp(order.prompt_tokens) if order.ramp else [order.prompt_tokens]
        self._step = 0
        self._pace: list[tuple[int, float]] = list(order.pace)
        self._decode_seconds = 0.0
        self._rate = Rate()
        self._count: Callable[[str], int] | None = None
        self._route: RouteName | None = order.route
        self._first_free: tuple[float, ...] = ()
        self.notes: list[str] = []

    def found(self, server: Server) -> Server:
        limit = server.longest_prompt_tokens
        takes = f", takes prompts up to {limit:,} tokens" if limit else ""
        self._say("found", f"{server.kind} {server.version or ''} serving {server.model}{takes}".replace("  ", " "))
        return server

    def results(self, server: Server) -> Iterator[Verified]:
        self._note_first_free()
        failed = self._warm_up(server) or self._measure_pace(server)
        if failed:
            yield failed
            return
        self._note_pool(server)
        for tokens in self._steps:
            self._step += 1
            verified = self._verified(server, tokens)
            self._say("done", verified.verification.error or "passed", verified.verification.elapsed_seconds)
            yield verified
            if not verified.passed:
                return

    def _warm_up(self, server: Server) -> Verified | None:
        """Sends a short prompt: it finds the route, compiles kernels, and tells the tokens a word where none count.

        Its time is not kept: a fresh server's first prompt takes many times what the next one does.
        """
        tokens = min(WARM_UP_TOKENS, self._order.prompt_tokens // 2)
        prompt = build_prompt(self._rate.words(tokens), self._next_seed())
        timeout = self._order.timeout_seconds or WARM_UP_SECONDS
        self._say("warm_up", "sending a short prompt to warm up")
        sent = Sent(prompt, Reading(), tokens)
        try:
            self._count = token_counter(self._http, server)
            self._ask_by_any_route(server, sent, timeout)
            if self._count is None:
                self._learn_rate(server, prompt, sent.reading.prompt_tokens, timeout)
        except EngineError as error:
            sent.error = error
            return self._judged([sent], None, during="the warm-up prompt: ")
        return None

    def _learn_rate(self, server: Server, prompt: Prompt, prompt_tokens: int | None, timeout: float) -> None:
        """Without ``/tokenize``, a second prompt without filler tells the frame and the chat template apart."""
        frame = Sent(build_prompt(0, self._next_seed()), Reading(), WARM_UP_TOKENS)
        self._ask_by_any_route(server, frame, timeout)
        if prompt_tokens and frame.reading.prompt_tokens:
            self._rate = Rate(frame_tokens=frame.reading.prompt_tokens).through(prompt.words, prompt_tokens)
        else:
            self._note("this server reports no token counts: the prompt's length is an estimate")

    def _measure_pace(self, server: Server) -> Verified | None:
        """Sends one prompt of each length that tells the pace, the longest once more when it took suspiciously long."""
        lengths = [one for one in lengths_to_measure(self._pace, self._steps[-1]) if one < self._steps[0]]
        for tokens in lengths:
            failed = self._measured(server, tokens)
            if failed:
                return failed
        return self._measured(server, lengths[-1]) if lengths and is_suspicious(self._pace) else None

    def _measured(self, server: Server, tokens: int) -> Verified | None:
        expected = estimate_seconds(self._pace, tokens)
        self._say("pace", f"sending {tokens:,} tokens to learn the pace", expected)
        sent = Sent(build_prompt(self._rate.words(tokens), self._next_seed()), Reading(), tokens)
        with self._sampling() as sampler:
            self._send_all(server, [sent], self._timeout(expected))
        if sent.error:
            samples = sampler.stop() if sampler else None
            return self._judged([sent], samples, during=f"a prompt of {tokens:,} tokens to learn the pace: ")
        self._learn(sent)
        return None

    def _ask_by_any_route(self, server: Server, sent: Sent, timeout: float) -> None:
        routes = (self._route,) if self._route else ROUTES[server.kind]
        for route in routes:
            try:
                self._ask(server, route, sent, timeout)
            except EngineRefusedError as error:
                if error.status not in NOT_THERE or route == routes[-1]:
                    raise
                continue
            self._route = route
            return

    def _verified(self, server: Server, tokens: int) -> Verified:
        sent, samples = self._sent(server, tokens)
        reported = sent[0].reading.prompt_tokens
        if reported and not is_close(reported, tokens) and not any(item.error for item in sent):
            self._note(f"the prompt had {reported:,} tokens instead of {tokens:,}: corrected and sent once more")
            self._count, self._rate = None, self._rate.through(sent[0].prompt.words, reported)
            sent, samples = self._sent(server, tokens)
        return self._judged(sent, samples)

    def _sent(self, server: Server, tokens: int) -> tuple[list[Sent], MemorySamples | None]:
        sent = self._prompts(tokens)
        is_flushed = self._flush(server)
        expected = self._expected_seconds(tokens)
        about = f", about {expected:.0f} s" if expected and expected >= 1 else ""
        self._say("sending", f"{len(sent)} x {sent[0].counted_tokens or tokens:,} tokens{about}", expected)
        with self._sampling() as sampler:
            self._send_all(server, sent, self._timeout(expected))
        samples = self._from_ready(sampler.stop(), is_flushed=is_flushed) if sampler else None
        if len(sent) == 1 and not sent[0].error:
            self._learn(sent[0])
        return sent, samples

    def _flush(self, server: Server) -> bool:
        """Empties the prefix cache; with it SGLang gives back what its allocator kept of earlier prompts."""
        try:
            fault = flush_cache(
                self._http,
                server,
                wait_seconds=self._order.flush_seconds,
                on_wait=lambda text: self._say("waiting", text),
            )
        except EngineError as error:
            raise _RefusedError(f"the server stopped answering before the prompt was sent: {error}") from error
        if fault:
            self._note(fault)
        return fault is None

    def _expected_seconds(self, tokens: int) -> float | None:
        prefill = estimate_seconds(self._pace, tokens, self._order.concurrent)
        return None if prefill is None else prefill + self._decode_seconds

    def _timeout(self, expected: float | None) -> float:
        return self._order.timeout_seconds or max(120.0, 60.0 + 5 * (expected or 60.0))

    def _prompts(self, tokens: int) -> list[Sent]:
        made: list[Sent] = []
        for _ in range(self._order.concurrent):
            self._say("counting", f"making prompt {len(made) + 1} of {self._order.concurrent}")
            made.append(self._prompt(tokens, made[0].prompt.words if made else None))
        return made

    def _prompt(self, tokens: int, words: int | None) -> Sent:
        if self._count is not None:
            with contextlib.suppress(EngineError):
                prompt, counted = fit_prompt(tokens, self._next_seed(), self._count, words)
                return Sent(prompt, Reading(), tokens, counted)
            self._count = None
        words = self._rate.words(int(tokens * UNDER))
        return Sent(build_prompt(words, self._next_seed()), Reading(), tokens)

    def _send_all(self, server: Server, sent: Sequence[Sent], timeout: float) -> None:
        """Sends all at once, in daemon threads: an interrupt ends the wait, and with the process the connections."""

        def send(item: Sent) -> None:
            try:
                self._ask(server, self._route or ROUTES[server.kind][0], item, timeout)
            except EngineError as error:
                item.error = error

        threads = [threading.Thread(target=send, args=(item,), daemon=True) for item in sent]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _ask(self, server: Server, route: RouteName, sent: Sent, timeout: float) -> None:
        ask(
            self._http,
            server,
            route,
            sent.prompt.text,
            sent.reading,
            completion_tokens=self._completion_tokens(server, sent),
            timeout_seconds=timeout,
            on_first_token=lambda seconds: self._say("first_token", "first token", seconds),
        )

    def _is_cut(self, sent: Sequence[Sent]) -> bool:
        """Whether a wrong answer filled all the room that the context length left it: it may have been right."""
        wrong = [item for item in sent if not is_answered(item.prompt, item.reading.text)]
        return all(
            item.room is not None
            and item.room < self._order.completion_tokens
            and (item.reading.completion_tokens is None or item.reading.completion_tokens >= item.room)
            for item in wrong
        )

    def _completion_tokens(self, server: Server, sent: Sent) -> int:
        """As ordered, or what the context length leaves beside the prompt."""
        if server.context_tokens is None:
            return self._order.completion_tokens
        sent.room = max(1, server.context_tokens - (sent.counted_tokens or sent.asked_tokens))
        return min(self._order.completion_tokens, sent.room)

    def _judged(self, sent: Sequence[Sent], samples: MemorySamples | None, during: str = "") -> Verified:
        """The result of prompts that the engine took. Raises _RefusedError when it took none."""
        refusal = refusal_of(sent)
        if refusal:
            raise _RefusedError(f"{during}{refusal}")
        fault = summary(sent)
        outcome, message = self._outcome([item.error for item in sent if item.error], samples)
        error = f"{during}{fault}" + (f"; {message}" if message else "") if fault else None
        answer = answer_of(sent, is_checked=self._order.check_answer)
        if answer == "wrong" and self._is_cut(sent):
            answer = "not_checked"
            self._note("the context length leaves no room for the answer after the prompt: it was not checked")
        if answer == "wrong":
            self._note(wrong_answer(sent) or "wrong answer")
        if samples and samples.longest_gap_seconds > LONG_GAP_SECONDS:
            self._note(f"memory was not read for up to {samples.longest_gap_seconds:.1f} s: a short dip may be missed")
        if samples and samples.error:
            self._note(f"{samples.failed_readings} memory readings failed: {samples.error}")
        return Verified(to_wire(sent, samples, error, answer), outcome, message)

    def _outcome(self, errors: Sequence[Exception], samples: MemorySamples | None) -> tuple[Outcome | None, str | None]:
        """Whether the start ended by this: out of GPU memory only where the engine's own words say so."""
        if any(is_out_of_memory(str(error)) for error in errors):
            return "oom_runtime", "the server ran out of GPU memory"
        if not errors or all(isinstance(error, EngineRefusedError) and error.status < 500 for error in errors):
            return None, None
        grace = 0.0 if all(isinstance(error, EngineTimeoutError) for error in errors) else self._order.grace_seconds
        if is_alive(self._http, grace):
            return None, "the server still answers"
        lowest = samples.lowest_free_gib if samples else None
        low = f" (lowest free memory seen: {lowest:.2f} GiB)" if lowest is not None else ""
        if is_out_of_memory(self._last_words()):
            return "oom_runtime", f"the server ran out of GPU memory{low}"
        return "failed", f"the server crashed{low}; its log says why"

    @contextlib.contextmanager
    def _sampling(self) -> Iterator[MemorySampler | None]:
        if self._reader is None:
            yield None
            return
        with MemorySampler(self._reader) as sampler:
            yield sampler

    def _note_first_free(self) -> None:
        """Free memory before anything was sent: the warm-up prompt takes some that vLLM then keeps."""
        if self._reader is not None:
            with contextlib.suppress(GpuError):
                self._first_free = tuple(self._reader.read())

    def _from_ready(self, samples: MemorySamples, *, is_flushed: bool) -> MemorySamples:
        """Free memory before the prompt is what was read after the flush.

        An engine that could not flush keeps what the prompts before took: then the reading before them counts, where it
        is higher, since the need is counted from what is free at ready.
        """
        if is_flushed or len(self._first_free) != len(samples.first_gib):
            return samples
        pairs = zip(self._first_free, samples.first_gib, strict=True)
        return replace(samples, first_gib=tuple(max(pair) for pair in pairs))

    def _note_pool(self, server: Server) -> None:
        each = self._order.prompt_tokens + self._order.completion_tokens
        if server.pool_tokens and each * self._order.concurrent > server.pool_tokens and self._order.concurrent > 1:
            fit = server.pool_tokens // each
            self._note(f"the pool holds {server.pool_tokens:,} tokens: only {fit} of these prompts run at a time")

    def _learn(self, sent: Sent) -> None:
        first, whole = sent.reading.first_token_seconds, sent.reading.elapsed_seconds
        seconds = first or whole
        if sent.prompt_tokens and seconds:
            self._pace.append((sent.prompt_tokens, seconds))
        if first and whole:
            self._decode_seconds = whole - first

    def _next_seed(self) -> int:
        self._seed += 1
        return self._seed

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self._say("note", text)

    def _say(self, stage: Stage, text: str, seconds: float | None = None) -> None:
        self._progress(Progress(stage, text, self._step, len(self._steps), seconds))
