"""Sending one prompt and reading the streamed answer, by whichever route the engine has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvyield._engine_http import EngineHttp
from kvyield.verify._server import Server

RouteName = Literal["generate", "completions", "chat"]
ROUTES: Mapping[str, tuple[RouteName, ...]] = {
    "sglang": ("generate", "completions", "chat"),
    "vllm": ("completions", "chat"),
    "openai": ("completions", "chat"),
}
"""In order of preference: plain text needs no chat template, and ``/generate`` always tells cached tokens."""

NOT_THERE = (404, 405, 501)


@dataclass
class Reading:
    """What is known of one prompt's answer so far; kept as it is when the answer breaks off."""

    text: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    first_token_seconds: float | None = None
    elapsed_seconds: float | None = None


def ask(
    http: EngineHttp,
    server: Server,
    route: RouteName,
    prompt: str,
    reading: Reading,
    *,
    completion_tokens: int,
    timeout_seconds: float,
    on_first_token: Callable[[float], None] | None = None,
) -> None:
    """Sends ``prompt`` and fills in ``reading`` as the answer comes. Raises EngineError when it does not come whole."""
    path, body = _request(server, route, prompt, completion_tokens)
    began = time.monotonic()
    try:
        for event in http.events(path, body, timeout_seconds=timeout_seconds):
            _take(reading, event, route, increments=server.streams_increments)
            if reading.first_token_seconds is None and reading.text:
                reading.first_token_seconds = time.monotonic() - began
                if on_first_token:
                    on_first_token(reading.first_token_seconds)
    finally:
        reading.elapsed_seconds = time.monotonic() - began


def _request(server: Server, route: RouteName, prompt: str, tokens: int) -> tuple[str, dict[str, Any]]:
    if route == "generate":
        options = {"temperature": 0, "max_new_tokens": tokens}
        return "/generate", {"text": prompt, "sampling_params": options, "stream": True}
    body: dict[str, Any] = {"model": server.model, "max_tokens": tokens, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    if route == "completions":
        return "/v1/completions", {**body, "prompt": prompt}
    if server.kind != "openai":
        body["chat_template_kwargs"] = {"enable_thinking": False, "thinking": False}
    return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": prompt}]}


def _take(reading: Reading, event: Mapping[str, Any], route: RouteName, *, increments: bool) -> None:
    if route == "generate":
        text = event.get("text")
        if isinstance(text, str):
            reading.text = reading.text + text if increments else text
        _take_counts(reading, event.get("meta_info"))
        return
    reading.text += "".join(_pieces(event))
    usage = event.get("usage")
    _take_counts(reading, usage)
    if isinstance(usage, Mapping):
        _take_counts(reading, usage.get("prompt_tokens_details"))


def _pieces(event: Mapping[str, Any]) -> Iterator[str]:
    """Text of a streamed or whole answer, a thinking model's thoughts included: they show what was read."""
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        inner = (choice.get("delta") or choice.get("message") or choice) if isinstance(choice, Mapping) else {}
        for field in ("reasoning_content", "reasoning", "content", "text"):
            if isinstance(inner, Mapping) and isinstance(inner.get(field), str):
                yield inner[field]


def _take_counts(reading: Reading, table: object) -> None:
    if not isinstance(table, Mapping):
        return
    for field in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        value = table.get(field)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            setattr(reading, field, value)
