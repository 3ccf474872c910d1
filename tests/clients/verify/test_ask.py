"""Reading streamed answers in the shapes that engines send them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from kvyield import ConfigError
from kvyield._engine_http import (
    EngineAnswerError,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnreachableError,
    open_engine,
)
from kvyield.verify._ask import Reading, RouteName, ask
from kvyield.verify._server import Kind, Server

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    """A server that gives ``answer`` to every POST."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def sends(body: bytes, content_type: str = "text/event-stream", status: int = 200, length: int | None = None) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("content-type", content_type)
        handler.send_header("content-length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def stream(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\r\n\r\n" for event in events) + b"data: [DONE]\n\n"


def read(answer: Answer, route: RouteName = "chat", kind: Kind = "openai", *, increments: bool = False) -> Reading:
    reading = Reading()
    with served(answer) as url, open_engine(url) as http:
        server = Server(kind, "m", streams_increments=increments)
        ask(http, server, route, "hello", reading, completion_tokens=4, timeout_seconds=5)
    return reading


@pytest.mark.parametrize(("increments", "texts"), [(False, ["12", "1234"]), (True, ["12", "34"]), (True, ["1", "1"])])
def test_sglangs_text_is_the_whole_or_what_is_new_as_the_server_is_set(increments: bool, texts: list[str]) -> None:
    """Cumulative text replaces, incremental text adds, whatever the digits look like."""
    meta = {"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 0}
    events = [{"text": text, "meta_info": meta} for text in texts]
    reading = read(sends(stream(*events)), "generate", "sglang", increments=increments)
    assert reading.text == ("".join(texts) if increments else texts[-1])
    assert (reading.prompt_tokens, reading.completion_tokens, reading.cached_tokens) == (9, 2, 0)


def test_a_thinking_models_thoughts_count_as_its_answer() -> None:
    """Reasoning that names the number shows that the context was read; null fields are nothing."""
    events = [
        {"choices": [{"delta": {"role": "assistant", "content": None, "reasoning_content": "the number is 12"}}]},
        {"choices": [{"delta": {"content": "34"}}]},
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": None}},
    ]
    reading = read(sends(stream(*events)))
    assert (reading.text, reading.prompt_tokens, reading.cached_tokens) == ("the number is 1234", 7, None)


def test_cached_tokens_are_read_from_the_usage_details() -> None:
    """OpenAI's place for cached tokens is inside the usage."""
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}
    assert read(sends(stream({"choices": [{"text": "x"}], "usage": usage})), "completions").cached_tokens == 3


def test_a_server_that_does_not_stream_is_read_whole() -> None:
    """A plain JSON answer is one event."""
    body = json.dumps({"choices": [{"message": {"content": "1234"}}], "usage": {"prompt_tokens": 3}}).encode()
    assert read(sends(body, "application/json")).text == "1234"


@pytest.mark.parametrize(
    "events", [[{"choices": "no"}], [{"choices": [None]}], [{"choices": [{"delta": "x"}]}], [{"x": 1}]]
)
def test_strange_events_are_not_text(events: list[Any]) -> None:
    """What has not the shape of an answer adds nothing, and breaks nothing."""
    assert read(sends(stream(*events))).text == ""


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', 400, "too long"),
        (b'{"object": "error", "message": "too long"}', 400, "too long"),
        (b'{"detail": "Not Found"}', 404, "Not Found"),
        (b"Bad Gateway", 502, "Bad Gateway"),
        (b"", 503, "gave no reason"),
    ],
)
def test_an_error_status_carries_the_engines_own_words(body: bytes, status: int, words: str) -> None:
    """SGLang's, vLLM's, FastAPI's and a proxy's errors are read alike."""
    with pytest.raises(EngineRefusedError, match=words) as caught:
        read(sends(body, "application/json", status))
    assert caught.value.status == status


def test_an_error_that_comes_as_an_event_is_an_error() -> None:
    """A stream that begins with 200 may still fail; its code is kept."""
    events = [{"choices": [{"text": "1"}]}, {"error": {"message": "EngineCore died", "code": 500}}]
    with pytest.raises(EngineRefusedError, match="EngineCore died"):
        read(sends(stream(*events)), "completions")


def test_a_connection_that_breaks_midway_is_unreachable() -> None:
    """Less than was announced is not an answer."""
    with pytest.raises(EngineUnreachableError):
        read(sends(stream({"choices": []}), length=10_000))


def test_garbage_and_endless_lines_are_unreadable_answers() -> None:
    """Neither is kept in memory nor escapes as another error."""
    with pytest.raises(EngineAnswerError, match="not a JSON object"):
        read(sends(b"data: <html>\n\n"))
    with pytest.raises(EngineAnswerError, match="longer than 4 MiB"):
        read(sends(b"data: " + b" " * (5 * 2**20)))


def test_a_drip_of_events_is_bounded_as_a_whole() -> None:
    """A server that sends something every moment without end is left after the time allowed."""
    over = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.end_headers()
        while not over.wait(0.02):
            handler.wfile.write(b": still there\n\n")

    reading = Reading()
    with served(drip) as url, open_engine(url) as http:
        with pytest.raises(EngineTimeoutError, match="no whole answer within"):
            ask(http, Server("openai", "m"), "chat", "x", reading, completion_tokens=1, timeout_seconds=0.3)
        over.set()
    assert 0.3 <= (reading.elapsed_seconds or 0) < 1


@pytest.mark.parametrize("address", ["127.0.0.1:30000", "", "ftp://host", "http://"])
def test_what_is_no_address_is_a_setting_that_is_wrong(address: str) -> None:
    """A typing error in the address is not taken for a server that is away."""
    with pytest.raises(ConfigError):
        open_engine(address)
