"""What a running engine's own endpoints tell about its start.

They complete what the log told and are checked against it: the log wins, and a contradiction is reported.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping

from kvyield.engines._endpoint_facts import (
    Found,
    lmdeploy_metrics,
    process_start,
    sglang_info,
    sglang_metrics,
    vllm_metrics,
)
from kvyield.engines._metrics import Sample, samples
from kvyield.engines._start import EngineName, Scalar, Start

Get = Callable[[str], tuple[int, bytes]]

SAME_GIB = 0.011
SAME_SHARE = 0.0005
_UNSAID = (None, "auto", "")
_TRT_POOL = ("maxNumBlocks", "tokensPerBlock")


def read_endpoints(get: Get, start: Start | None = None) -> Start:
    """Complete ``start``, or begin one when there is no log, from the endpoints of the running engine.

    ``get`` takes a path and returns status and body; what is not there or cannot be read is passed over. Memory
    is GiB. Raises ValueError when there is no ``start`` and nothing tells which engine answers; what ``get``
    raises passes through."""
    info_path, info = _first_table(get, "/server_info", "/get_server_info")
    metrics_body = _body(get, "/metrics")
    series = list(samples(metrics_body))
    engine = start.engine if start else _engine_of(info, series, get)
    merged = copy.deepcopy(start) if start else Start(engine=engine, outcome="ready")
    found = Found()
    if engine == "sglang":
        sglang_info(info, f"GET {info_path}", found)
        sglang_metrics(series, found)
    elif engine == "vllm":
        vllm_metrics(series, found)
    elif engine == "lmdeploy":
        lmdeploy_metrics(series, found)
    else:
        _trt_metrics(metrics_body, found)
    _model(get, engine, found)
    _version(get, engine, found)
    process_start(series, found)
    _merge(merged, found)
    if start is None and found.process_at is not None:
        merged.observed_at, merged.process = found.process_at, "GET /metrics, process_start_time_seconds"
    return merged


def _body(get: Get, path: str) -> bytes:
    status, body = get(path)
    return body if status == 200 else b""


def _table(get: Get, path: str) -> Mapping[str, object]:
    return _parsed(_body(get, path))


def _parsed(body: bytes) -> Mapping[str, object]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _first_table(get: Get, *paths: str) -> tuple[str, Mapping[str, object]]:
    for path in paths:
        table = _table(get, path)
        if table:
            return path, table
    return paths[0], {}


def _engine_of(info: Mapping[str, object], series: list[Sample], get: Get) -> EngineName:
    if "mem_fraction_static" in info or "internal_states" in info:
        return "sglang"
    prefixes = {sample.name.partition(":")[0] for sample in series}
    engines: tuple[EngineName, ...] = ("sglang", "vllm", "lmdeploy")
    for engine in engines:
        if engine in prefixes:
            return engine
    if "vllm_config" in info or _owner(get) == "vllm":
        return "vllm"
    if _owner(get) == "sglang" or _table(get, "/get_model_info").get("model_path"):
        return "sglang"
    raise ValueError("nothing at this address shows which engine it is")


def _owner(get: Get) -> str:
    return str(_card(get).get("owned_by", "")).lower()


def _card(get: Get) -> Mapping[str, object]:
    data = _table(get, "/v1/models").get("data")
    cards = [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []
    own = [card for card in cards if not card.get("parent")]
    return own[0] if own else {}


def _model(get: Get, engine: str, found: Found) -> None:
    card = _card(get)
    flag, length = {"sglang": "context_length", "vllm": "max_model_len"}.get(engine), card.get("max_model_len")
    if flag and isinstance(length, int):
        found.flag(flag, length, "GET /v1/models, max_model_len")
    found.fact("served_model_name", card.get("id"), "GET /v1/models, id")
    if engine == "sglang":
        path, table = _first_table(get, "/model_info", "/get_model_info")
        found.fact("model_name", table.get("model_path"), f"GET {path}, model_path")
    root = card.get("root")
    if root != card.get("id") or engine == "vllm":
        found.fact("model_name", root, "GET /v1/models, root")


def _version(get: Get, engine: str, found: Found) -> None:
    if engine != "sglang" and "engine_version" not in found.facts:
        found.version(_table(get, "/version").get("version"), "GET /version")


def _trt_metrics(body: bytes, found: Found) -> None:
    """TensorRT-LLM answers ``/metrics`` with a JSON list of iterations, each with its pool's blocks."""
    try:
        iterations = json.loads(body)
    except (ValueError, RecursionError):
        return
    for iteration in reversed(iterations if isinstance(iterations, list) else []):
        stats = iteration.get("kvCacheStats") if isinstance(iteration, dict) else None
        sizes = [stats.get(name) for name in _TRT_POOL] if isinstance(stats, dict) else []
        blocks, tokens = sizes if len(sizes) == 2 else (None, None)
        if isinstance(blocks, int) and isinstance(tokens, int):
            found.measure("pool_tokens", blocks * tokens, "GET /metrics, kvCacheStats: maxNumBlocks × tokensPerBlock")
            return


def _merge(start: Start, found: Found) -> None:
    for group, new in (
        (start.flags, found.flags),
        (start.measurements, found.measurements),
        (start.facts, found.facts),
    ):
        for name, value in new.items():
            known = group.get(name)
            if known is None or known.value in _UNSAID or known.source == "default":
                if known is None or value.value not in _UNSAID:
                    group[name] = value
            elif value.value not in _UNSAID and name not in _NAMES and not _same(known.value, value.value):
                start.contradictions.append(
                    f"{name}: {known.value} ({known.source}) against {value.value} ({value.source})"
                )
    if start.outcome == "unfinished" and (found.flags or found.measurements):
        start.outcome = "ready"


_NAMES = frozenset({"model_name", "served_model_name"})
"""Written in several ways for one model: no contradiction."""


def _same(first: Scalar, second: Scalar) -> bool:
    if isinstance(first, bool) or isinstance(second, bool) or not isinstance(first, int | float):
        return first == second
    if not isinstance(second, int | float):
        return False
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    return abs(first - second) <= max(SAME_GIB, SAME_SHARE * abs(first))
