"""What each engine's endpoints hold, under the wire's names. Only listed fields are taken, so that no secret can
pass.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone

from kvyield.engines._engine import UNTAGGED
from kvyield.engines._literals import shortest_float32
from kvyield.engines._metrics import Sample
from kvyield.engines._sglang_flags import MEMORY_FLAGS as SGLANG_FLAGS
from kvyield.engines._start import Scalar, Sourced

_VLLM_LABELS = {
    "gpu_memory_utilization": "gpu_memory_utilization",
    "block_size": "block_size",
    "cache_dtype": "kv_cache_dtype",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "enable_prefix_caching": "enable_prefix_caching",
    "cpu_offload_gb": "cpu_offload_gb",
    "swap_space": "swap_space",
    "mamba_cache_mode": "mamba_cache_mode",
}
_LMDEPLOY_LABELS = (
    "cache_max_entry_count",
    "tp",
    "dp",
    "session_len",
    "max_batch_size",
    "quant_policy",
    "cache_block_seq_len",
)
_WORDS = {"None": None, "True": True, "False": False}


@dataclass
class Found:
    """What endpoints told; the first word on each thing stays."""

    flags: dict[str, Sourced] = field(default_factory=dict)
    measurements: dict[str, Sourced] = field(default_factory=dict)
    facts: dict[str, Sourced] = field(default_factory=dict)
    process_at: datetime | None = None

    def flag(self, name: str, value: object, source: str) -> None:
        """Keep a flag; nested values become compact JSON text."""
        if isinstance(value, list | dict):
            value = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        if value is None or isinstance(value, bool | int | float | str):
            known = self.flags.get(name)
            if known is None or known.value is None:
                plain = shortest_float32(value) if isinstance(value, float) else value
                self.flags[name] = Sourced(plain, source)

    def measure(self, name: str, value: object, source: str) -> None:
        """Keep a measurement that is a number and not negative."""
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
            self.measurements.setdefault(name, Sourced(value, source))

    def fact(self, name: str, value: object, source: str) -> None:
        """Keep a name or a version."""
        if isinstance(value, str) and value:
            self.facts.setdefault(name, Sourced(value, source))

    def version(self, value: object, source: str) -> None:
        """Keep the engine's version, unless it is a source build's without tags."""
        if isinstance(value, str) and not UNTAGGED.fullmatch(value):
            self.fact("engine_version", value, source)


def process_start(series: Iterable[Sample], found: Found) -> None:
    """When the process behind ``/metrics`` began, to the second, where Prometheus' client tells it of one process."""
    times = [sample.value for sample in series if sample.name == "process_start_time_seconds" and not sample.labels]
    if len(times) == 1:
        with suppress(ValueError, OverflowError, OSError):  # no time that a calendar has
            found.process_at = datetime.fromtimestamp(round(times[0]), timezone.utc)


def sglang_info(info: Mapping[str, object], where: str, found: Found) -> None:
    """``/server_info`` of any era: arguments at the top, each data-parallel rank's state in ``internal_states``."""
    states = [state for state in _list(info.get("internal_states")) if isinstance(state, dict)]
    _effective_requests(info, states, where, found)
    for name, value in info.items():
        if name in SGLANG_FLAGS:
            found.flag(name, value, f"{where}, {name}")
    _sglang_memory(info, states, where, found)
    for name, fact in (
        ("model_path", "model_name"),
        ("served_model_name", "served_model_name"),
    ):
        found.fact(fact, info.get(name), f"{where}, {name}")
    found.version(info.get("version"), f"{where}, version")
    found.fact("model_revision", info.get("revision"), f"{where}, revision")


def _effective_requests(info: Mapping[str, object], states: list[dict[str, object]], where: str, found: Found) -> None:
    """The requests that the scheduler takes; of several data-parallel ranks each tells its share, not the flag."""
    name = "effective_max_running_requests_per_dp"
    values = [value for state in states if isinstance(value := state.get(name), int)]
    ranks = info.get("dp_size")
    if values and not (isinstance(ranks, int) and ranks > 1):
        found.flag("max_running_requests", min(values), f"{where}, {name}")


def _sglang_memory(info: Mapping[str, object], states: list[dict[str, object]], where: str, found: Found) -> None:
    usages = [usage for state in states if isinstance(usage := state.get("memory_usage"), dict)]
    tokens = [*_numbers(usage.get("token_capacity") for usage in usages), *_numbers([info.get("max_total_num_tokens")])]
    if tokens:
        found.measure("pool_tokens", int(min(tokens)), f"{where}, max_total_num_tokens")
    for key, name, best in (
        ("startup_available", "free_at_ready_gib", min),
        ("kvcache", "kv_cache_gib", min),
        ("weight", "weights_gib", max),
    ):
        values = _numbers(usage.get(key) for usage in usages)
        if values:
            found.measure(name, best(values), f"{where}, memory_usage.{key}")
    graphs = [graph for usage in usages if (graph := _graphs(usage.get("graph", usage.get("cuda_graph")))) is not None]
    if graphs:
        found.measure("graph_gib", max(graphs), f"{where}, memory_usage.graph")


def _graphs(value: object) -> float | None:
    """One figure in older versions, one a phase in newer ones."""
    numbers = _numbers(value.values() if isinstance(value, dict) else [value])
    return round(sum(numbers), 4) if numbers else None


def sglang_metrics(series: Iterable[Sample], found: Found) -> None:
    """``/metrics`` with ``--enable-metrics``: the least over ranks of pool and free memory."""
    grouped = _by_name(series, "sglang:")
    for name, wire, best in (
        ("max_total_num_tokens", "pool_tokens", min),
        ("startup_available_gpu_memory_gb", "free_at_ready_gib", min),
        ("kv_cache_memory_usage_gb", "kv_cache_gib", min),
        ("weight_memory_usage_gb", "weights_gib", max),
    ):
        values = [sample.value for sample in grouped.get(name, ()) if sample.value > 0]
        if values:
            value = best(values)
            found.measure(wire, int(value) if wire.endswith("_tokens") else value, f"GET /metrics, sglang:{name}")
    for sample in grouped.get("cache_config_info", ()):
        page, pages = sample.labels.get("page_size", ""), sample.labels.get("num_pages", "")
        if page.isdecimal() and pages.isdecimal():
            found.flag("page_size", int(page), "GET /metrics, sglang:cache_config_info, page_size")
            found.measure("pool_tokens", int(page) * int(pages), "GET /metrics, sglang:cache_config_info")


def vllm_metrics(series: Iterable[Sample], found: Found) -> None:
    """``vllm:cache_config_info``: every cache setting as a label, the pool's size among them in newer versions."""
    infos = _by_name(series, "vllm:").get("cache_config_info", [])
    if not infos:
        return
    where = "GET /metrics, vllm:cache_config_info"
    for label, flag in _VLLM_LABELS.items():
        if label in infos[0].labels:
            found.flag(flag, _plain(infos[0].labels[label]), f"{where}, {label}")
    tokens = [sample.labels["kv_cache_size_tokens"] for sample in infos if "kv_cache_size_tokens" in sample.labels]
    numbers = [int(value) for value in tokens if value.isdecimal()]
    if numbers:
        found.measure("pool_tokens", min(numbers), f"{where}, kv_cache_size_tokens")
    elif _is_plain(infos[0].labels) and len(infos) == 1:
        blocks, size = infos[0].labels.get("num_gpu_blocks", ""), infos[0].labels.get("block_size", "")
        if blocks.isdecimal() and size.isdecimal():
            found.measure("pool_tokens", int(blocks) * int(size), f"{where}, num_gpu_blocks × block_size")


def _is_plain(labels: Mapping[str, str]) -> bool:
    """True when nothing shows several groups of layers, for which blocks × block size would not be the pool."""
    several = ("sliding_window", "mamba_block_size", "mamba_cache_dtype", "mamba_cache_mode")
    return all(labels.get(name, "None") in ("None", "", "auto", "none") for name in several)


def lmdeploy_metrics(series: Iterable[Sample], found: Found) -> None:
    """``lmdeploy:backend_config``: the engine's config as labels; there is no pool size."""
    for sample in _by_name(series, "lmdeploy:").get("backend_config", []):
        for label in _LMDEPLOY_LABELS:
            if label in sample.labels:
                found.flag(label, _plain(sample.labels[label]), f"GET /metrics, lmdeploy:backend_config, {label}")


def _by_name(series: Iterable[Sample], prefix: str) -> dict[str, list[Sample]]:
    grouped: dict[str, list[Sample]] = {}
    for sample in series:
        if sample.name.startswith(prefix):
            name = sample.name.removeprefix(prefix)
            grouped.setdefault("backend_config" if name == "backend_config_info" else name, []).append(sample)
    return grouped


def _plain(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    return float(text) if re.fullmatch(r"[+-]?(?:\d{1,18}\.\d{0,18}|\.\d{1,18})(?:[eE][+-]?\d{1,2})?", text) else text


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _numbers(values: Iterable[object]) -> list[float]:
    return [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
