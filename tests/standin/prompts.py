"""The endpoints that take a prompt: what they accept, and what they stream back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from standin.state import Answer, State, token_ids, tokens_of

PATHS = {
    "sglang": ("/generate", "/v1/completions", "/v1/chat/completions"),
    "vllm": ("/v1/completions", "/v1/chat/completions"),
    "openai": ("/v1/chat/completions",),
}


class RefusedError(Exception):
    """The engine answers with a status and its own words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Asked:
    """A prompt as it came in."""

    path: str
    text: str
    completion_tokens: int
    streamed: bool
    usage_wanted: bool


def asked(path: str, body: Mapping[str, Any]) -> Asked:
    """Reads a request body. Raises RefusedError when the prompt is not text."""
    options = body.get("sampling_params", body)
    limit = options.get("max_new_tokens") or options.get("max_tokens") or options.get("max_completion_tokens") or 16
    if path.endswith("/chat/completions"):
        text = "".join(f"<|{m['role']}|>{m['content']}" for m in body["messages"]) + "<|assistant|>"
    else:
        text = body.get("text", body.get("prompt"))
    if not isinstance(text, str):
        raise RefusedError(400, "the prompt must be text")
    usage = bool((body.get("stream_options") or {}).get("include_usage"))
    return Asked(path, text, int(limit), bool(body.get("stream")), usage)


def tokenized(state: State, body: Mapping[str, Any]) -> dict[str, object]:
    """What ``/tokenize`` answers."""
    tokens = tokens_of(body["prompt"])
    count = round(len(tokens) * state.config.faults.tokenize_factor)
    return {"tokens": token_ids(tokens), "count": count, "max_model_len": state.config.context_length}


def check_length(state: State, tokens: int, completion_tokens: int) -> None:
    """Raises RefusedError with the engine's own words when the prompt is too long for it."""
    config = state.config
    limit = config.faults.refuse_over_tokens
    if config.engine == "sglang":
        _check_sglang(tokens, completion_tokens, config.context_length, limit or state.max_input_tokens)
        return
    longest = limit or config.context_length
    if tokens + completion_tokens > longest:
        raise RefusedError(
            400,
            f"This model's maximum context length is {longest} tokens. However, you requested {completion_tokens} "
            f"output tokens and your prompt contains {tokens} input tokens, for a total of "
            f"{tokens + completion_tokens} tokens.",
        )


def _check_sglang(tokens: int, completion_tokens: int, context: int, max_input: int) -> None:
    if tokens >= context:
        raise RefusedError(
            400, f"The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."
        )
    if tokens + completion_tokens > context:
        raise RefusedError(
            400,
            f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested a "
            f"total of {tokens + completion_tokens} tokens: {tokens} tokens from the input messages and "
            f"{completion_tokens} tokens for the completion.",
        )
    if tokens >= max_input:
        raise RefusedError(
            400,
            f"Input length ({tokens} tokens) exceeds the maximum allowed length ({max_input} tokens). Use a shorter "
            "input or enable --allow-auto-truncate.",
        )


def events(state: State, request: Asked, answer: Answer) -> Iterator[dict[str, Any]]:
    """The events of a streamed answer, one a token and, where it was asked for, one with the usage."""
    for piece in state.run(answer):
        yield event(state, request, answer, answer.text if request.path == "/generate" else piece, last=False)
    if request.path != "/generate" and request.usage_wanted and not state.config.faults.no_usage:
        yield {"model": state.config.model, "choices": [], "usage": usage(state, answer)}


def event(state: State, request: Asked, answer: Answer, text: str, *, last: bool) -> dict[str, Any]:
    """One event of a stream, or with ``last`` the whole answer."""
    if request.path == "/generate":
        meta = {"id": f"{answer.key:032x}", "finish_reason": {"type": "stop"} if last else None, "e2e_latency": 0.1}
        meta |= {} if state.config.faults.no_usage else _meta(answer)
        return {"text": text, "meta_info": meta}
    chat = request.path.endswith("/chat/completions")
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if last else None}
    choice |= {("message" if last else "delta"): {"role": "assistant", "content": text}} if chat else {"text": text}
    body: dict[str, Any] = {"model": state.config.model, "choices": [choice]}
    if last and not state.config.faults.no_usage:
        body["usage"] = usage(state, answer)
    return body


def _meta(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "cached_tokens": answer.cached_tokens,
    }


def usage(state: State, answer: Answer) -> dict[str, object]:
    """OpenAI's usage object; cached tokens only when the engine was started to report them."""
    details = {"cached_tokens": answer.cached_tokens} if state.config.cache_report else None
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": details,
    }
