"""What answers at an address: which engine, which model, and the longest prompt that it takes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvyield._engine_http import EngineError, EngineHttp, EngineRefusedError, EngineUnreachableError

Kind = Literal["sglang", "vllm", "openai"]
SGLANG_RESERVED_TOKENS = 7
COUNT_SECONDS = 60.0
MOST_GPUS = 64
PROXY_WITHOUT_SERVER = (502, 503, 504)
FLUSH_SECONDS = 30.0


@dataclass(frozen=True)
class Server:
    """A running engine. Tokens are per data-parallel rank; None is not told. ``gpus`` are device numbers it uses."""

    kind: Kind
    model: str
    version: str | None = None
    context_tokens: int | None = None
    pool_tokens: int | None = None
    streams_increments: bool = False
    gpus: tuple[int, ...] | None = None

    @property
    def longest_prompt_tokens(self) -> int | None:
        """The longest prompt that the engine takes, or None when it does not tell.

        SGLang: min(context length, pool) - 7, by its ``max_req_input_len`` and the test against it. vLLM: the context
        length less the one token that has to be answered.
        """
        if self.kind == "sglang":
            known = [limit for limit in (self.context_tokens, self.pool_tokens) if limit is not None]
            return min(known) - SGLANG_RESERVED_TOKENS if known else None
        return self.context_tokens - 1 if self.context_tokens is not None else None

    def refusal(self, prompt_tokens: int) -> str | None:
        """Why a prompt of this many tokens would be refused and what to do, or None when it would not be."""
        longest = self.longest_prompt_tokens
        if longest is None or prompt_tokens <= longest:
            return None
        if self.kind != "sglang":
            return (
                f"the longest prompt that this server takes is {longest:,} tokens: its context length of "
                f"{self.context_tokens:,} less one token for the answer. Ask for at most {longest}, or restart it with "
                "a longer --max-model-len"
            )
        needed = prompt_tokens + SGLANG_RESERVED_TOKENS
        return (
            f"the longest prompt that this server takes is {longest:,} tokens: min(context length "
            f"{_figure(self.context_tokens)}, pool {_figure(self.pool_tokens)}) - {SGLANG_RESERVED_TOKENS}. "
            f"Ask for at most {longest}, or restart it so that {self._short_of(needed)} at least {needed:,} tokens"
        )

    def _short_of(self, needed: int) -> str:
        pool_is_short = self.pool_tokens is not None and self.pool_tokens < needed
        if not pool_is_short:
            return "--context-length is"
        if self.context_tokens is not None and self.context_tokens < needed:
            return "both the pool (a larger fraction; --context-length does not grow it) and --context-length are"
        return "the pool (a larger fraction; --context-length does not grow it) is"


def _figure(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens:,}"


def find_server(http: EngineHttp, model: str | None = None) -> Server:
    """Asks an address what it is. ``model`` replaces the first model that it lists. Raises EngineError."""
    reply = http.get("/v1/models")
    if reply.status in (401, 403):
        raise EngineRefusedError(
            reply.status, "the server wants its API key: give it with --server-key or KVYIELD_SERVER_KEY"
        )
    listed = reply.table().get("data")
    first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
    name = model or first.get("id")
    if not isinstance(name, str):
        raise EngineRefusedError(
            reply.status, f"GET /v1/models lists no model (HTTP {reply.status}): is this an engine?"
        )
    context = _whole_number(first.get("max_model_len"))
    info = _server_info(http) if first.get("owned_by") != "vllm" else {}
    if "mem_fraction_static" in info:
        return _sglang(name, context, info)
    version = http.get("/version").table().get("version") if first.get("owned_by") == "vllm" else None
    if isinstance(version, str):
        return Server("vllm", name, version, context, _vllm_pool(http))
    return Server("openai", name, context_tokens=context)


def _server_info(http: EngineHttp) -> dict[str, Any]:
    for path in ("/server_info", "/get_server_info"):
        reply = http.get(path)
        if reply.is_success and reply.table():
            return reply.table()
    return {}


def _sglang(name: str, context: int | None, info: Mapping[str, Any]) -> Server:
    version = info.get("version")
    return Server(
        kind="sglang",
        model=name,
        version=version if isinstance(version, str) else None,
        context_tokens=context or _whole_number(info.get("context_length")),
        pool_tokens=_whole_number(info.get("max_total_num_tokens")),
        streams_increments=bool(info.get("incremental_streaming_output") or info.get("stream_output")),
        gpus=_gpus(info),
    )


def _gpus(info: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The device numbers of a server on one host; several nodes are not told apart."""
    ranks = (_whole_number(info.get("tp_size")) or 1) * (_whole_number(info.get("pp_size")) or 1)
    if (_whole_number(info.get("nnodes")) or 1) > 1:
        return None
    if not info.get("enable_dp_attention"):
        ranks *= _whole_number(info.get("dp_size")) or 1
    if ranks > MOST_GPUS:
        return None
    first, step = _whole_number(info.get("base_gpu_id")) or 0, _whole_number(info.get("gpu_id_step")) or 1
    return tuple(first + step * rank for rank in range(ranks))


def _vllm_pool(http: EngineHttp) -> int | None:
    text = http.get("/metrics").body.decode(errors="replace")
    found = re.search(r'^vllm:cache_config_info\{[^}\n]*kv_cache_size_tokens="(\d+)"', text, re.MULTILINE)
    return int(found.group(1)) if found else None


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def token_counter(http: EngineHttp, server: Server) -> Callable[[str], int] | None:
    """The engine's own count of a text's tokens (``/tokenize``), or None when it has none."""

    def count(text: str) -> int:
        body = {"model": server.model, "prompt": text}
        reply = http.post("/tokenize", body, timeout_seconds=COUNT_SECONDS)
        counted = _whole_number(reply.table().get("count")) if reply.is_success else None
        if counted is None:
            raise EngineRefusedError(reply.status, f"POST /tokenize gave no count (HTTP {reply.status})")
        return counted

    try:
        count("a")
    except EngineUnreachableError:
        raise
    except EngineError:
        return None
    return count


def flush_cache(
    http: EngineHttp,
    server: Server,
    *,
    wait_seconds: float = FLUSH_SECONDS,
    on_wait: Callable[[str], None] = lambda _: None,
) -> str | None:
    """Empties the prefix cache, waiting for other requests to end; ``on_wait`` receives a message about the wait.

    Returns why that failed, or None. Raises EngineError when the server cannot be asked.
    """
    path = {"sglang": "/flush_cache", "vllm": "/reset_prefix_cache"}.get(server.kind)
    if path is None:
        return "this server has no way to empty its prefix cache"
    ends = time.monotonic() + wait_seconds
    is_told = False
    while True:
        reply = http.post(path, None, timeout_seconds=max(wait_seconds, 1.0))
        if reply.is_success and reply.table().get("success") is not False:
            return None
        if reply.status in (404, 405) and server.kind == "vllm":
            return "the prefix cache was not emptied: vLLM does it only with VLLM_SERVER_DEV_MODE=1"
        if reply.status != 400 or time.monotonic() > ends:
            waited = f" after {wait_seconds:.0f} s of waiting for other requests" if reply.status == 400 else ""
            return f"the prefix cache was not emptied{waited} (POST {path}: HTTP {reply.status})"
        if not is_told:
            on_wait(f"other requests are running: waiting up to {wait_seconds:.0f} s for them to end")
            is_told = True
        time.sleep(0.2)


def is_alive(http: EngineHttp, grace_seconds: float) -> bool:
    """Whether the server still answers, looked at until it does not or ``grace_seconds`` are over."""
    ends = time.monotonic() + grace_seconds
    while True:
        try:
            if http.get("/v1/models", timeout_seconds=5.0).status in PROXY_WITHOUT_SERVER:
                return False
        except EngineUnreachableError:
            return False
        except EngineError:
            return True
        if time.monotonic() >= ends:
            return True
        time.sleep(0.1)
