"""Carrying out a verification: find, count, warm up, flush, send, watch memory, judge."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kvyield._engine_http import EngineError, EngineHttp, EngineRefusedError, EngineTimeoutError
from kvyield.gpu import FreeReader, GpuError, MemorySampler, MemorySamples
from kvyield.verify._ask import NOT_THERE, ROUTES, Reading, RouteName, ask
from kvyield.verify._order import OnProgress, Order, Progress, Report, Stage
from kvyield.verify._pace import estimate_seconds, ramp
from kvyield.verify._prompt import Prompt, Rate, build_prompt, fit_prompt, is_close
from kvyield.verify._result import Outcome, Sent, Verified, is_out_of_memory, not_sent, summary, to_wire
from kvyield.verify._server import Server, find_server, flush_cache, is_alive, token_counter

WARM_UP_TOKENS = 2048
LONG_GAP_SECONDS = 0.25
UNDER = 0.9985
"""Prompts made by a measured rate aim this far below, inside the 0.5 %, so that none exceeds the server's limit."""


def _say_nothing(_step: Progress) -> None:
    pass


def verify(
    http: EngineHttp,
    order: Order,
    *,
    reader: FreeReader | None = None,
    progress: OnProgress = _say_nothing,
    last_words: Callable[[], str] = lambda: "",
) -> Report:
    """Sends the ordered prompts to the engine and reports each as a verification; nothing is raised for a bad server.

    ``reader`` reads the cards that the engine runs on; without it no memory figures are given. ``last_words`` gives
    what the engine's log says since the verification began: it tells running out of memory from another death.
    """
    run = _Run(http, order, reader, progress, last_words)
    try:
        server = run.find()
    except EngineError as error:
        return Report(None, (not_sent(order.prompt_tokens, order.concurrent, str(error)),))
    refusal = server.refusal(order.prompt_tokens)
    if refusal:
        return Report(server, (not_sent(order.prompt_tokens, order.concurrent, refusal),))
    return Report(server, tuple(run.results(server)), tuple(run.notes))


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
        self._pace: list[tuple[int, float]] = []
        self._rate = Rate()
        self._count: Callable[[str], int] | None = None
        self._route: RouteName | None = order.route
        self._first_free: tuple[float, ...] = ()
        self.notes: list[str] = []

    def find(self) -> Server:
        server = find_server(self._http, self._order.model)
        limit = server.longest_prompt_tokens
        takes = f", takes prompts up to {limit:,} tokens" if limit else ""
        self._say("found", f"{server.kind} {server.version or ''} serving {server.model}{takes}".replace("  ", " "))
        return server

    def results(self, server: Server) -> Iterator[Verified]:
        self._note_first_free()
        failed = self._warm_up(server)
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
        """Sends a short prompt: it settles the route, gives the pace, and the tokens a word where none are counted."""
        tokens = min(WARM_UP_TOKENS, self._order.prompt_tokens // 2)
        prompt = build_prompt(self._rate.words(tokens), self._next_seed())
        self._say("warm_up", "sending a short prompt to learn the pace")
        sent = Sent(prompt, Reading(), tokens)
        try:
            self._count = token_counter(self._http, server)
            self._ask_by_any_route(server, sent)
            if self._count is None:
                self._learn_rate(server, prompt, sent.reading.prompt_tokens)
        except EngineError as error:
            sent.error = error
            return self._judged(self._order.prompt_tokens, [sent], None, during="the warm-up prompt: ")
        if sent.reading.prompt_tokens:
            self._measured(sent)
        return None

    def _learn_rate(self, server: Server, prompt: Prompt, prompt_tokens: int | None) -> None:
        """Without ``/tokenize``, a second prompt without filler tells the frame and the chat template apart."""
        frame = Sent(build_prompt(0, self._next_seed()), Reading(), WARM_UP_TOKENS)
        self._ask_by_any_route(server, frame)
        if prompt_tokens and frame.reading.prompt_tokens:
            self._rate = Rate(frame_tokens=frame.reading.prompt_tokens).through(prompt.words, prompt_tokens)
        else:
            self._note("this server tells no token counts: the prompt's length is an estimate")

    def _ask_by_any_route(self, server: Server, sent: Sent) -> None:
        routes = (self._route,) if self._route else ROUTES[server.kind]
        for route in routes:
            try:
                self._ask(server, route, sent, self._order.timeout_seconds or 120.0)
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
        return self._judged(tokens, sent, samples)

    def _sent(self, server: Server, tokens: int) -> tuple[list[Sent], MemorySamples | None]:
        sent = self._prompts(tokens)
        fault = flush_cache(self._http, server)
        if fault:
            self._note(fault)
        expected = estimate_seconds(self._pace, tokens * len(sent))
        about = f", about {expected:.0f} s" if expected and expected >= 1 else ""
        self._say("sending", f"{len(sent)} x {sent[0].counted_tokens or tokens:,} tokens{about}", expected)
        timeout = self._order.timeout_seconds or max(120.0, 60.0 + 5 * (expected or 60.0))
        with self._sampling() as sampler:
            self._send_all(server, sent, timeout)
        samples = self._with_first_free(sampler.stop()) if sampler else None
        if len(sent) == 1 and not sent[0].error:
            self._measured(sent[0])
        return sent, samples

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

    def _completion_tokens(self, server: Server, sent: Sent) -> int:
        """As ordered, or what the context length leaves beside the prompt."""
        if server.context_tokens is None:
            return self._order.completion_tokens
        room = server.context_tokens - (sent.counted_tokens or sent.asked_tokens)
        return max(1, min(self._order.completion_tokens, room))

    def _judged(self, tokens: int, sent: Sequence[Sent], samples: MemorySamples | None, during: str = "") -> Verified:
        fault = summary(sent)
        outcome, message = self._outcome([item.error for item in sent if item.error], samples)
        error = f"{during}{fault}" + (f"; {message}" if message else "") if fault else None
        if samples and samples.longest_gap_seconds > LONG_GAP_SECONDS:
            self._note(f"memory was not read for up to {samples.longest_gap_seconds:.1f} s: a short dip may be missed")
        if samples and samples.error:
            self._note(f"{samples.failed_readings} memory readings failed: {samples.error}")
        return Verified(to_wire(tokens, sent, samples, error), outcome, message)

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
            return "oom_runtime", f"the server ran out of GPU memory and died{low}"
        return "failed", f"the server died{low}; its log says why"

    @contextlib.contextmanager
    def _sampling(self) -> Iterator[MemorySampler | None]:
        if self._reader is None:
            yield None
            return
        with MemorySampler(self._reader) as sampler:
            yield sampler

    def _note_first_free(self) -> None:
        """Free memory before anything was sent: the warm-up prompt takes some that the engine then keeps."""
        if self._reader is not None:
            with contextlib.suppress(GpuError):
                self._first_free = tuple(self._reader.read())

    def _with_first_free(self, samples: MemorySamples) -> MemorySamples:
        first, self._first_free = self._first_free, ()
        return replace(samples, first_gib=first) if first else samples

    def _note_pool(self, server: Server) -> None:
        each = self._order.prompt_tokens + self._order.completion_tokens
        if server.pool_tokens and each * self._order.concurrent > server.pool_tokens and self._order.concurrent > 1:
            fit = server.pool_tokens // each
            self._note(f"the pool holds {server.pool_tokens:,} tokens: only {fit} of these prompts run at a time")

    def _measured(self, sent: Sent) -> None:
        seconds = sent.reading.first_token_seconds or sent.reading.elapsed_seconds
        if sent.prompt_tokens and seconds:
            self._pace.append((sent.prompt_tokens, seconds))

    def _next_seed(self) -> int:
        self._seed += 1
        return self._seed

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self._say("note", text)

    def _say(self, stage: Stage, text: str, seconds: float | None = None) -> None:
        self._progress(Progress(stage, text, self._step, len(self._steps), seconds))
