"""Logs written from the engines' formats, every version era, read back to what was put in."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvyield.engines import read_starts
from kvyield.engines._literals import call_fields, dict_fields

gib = st.integers(1, 30_000).map(lambda hundredths: hundredths / 100)
tokens = st.integers(100, 10_000_000)
ERAS = ("0.4.3", "0.4.6", "0.5.5", "0.5.10", "0.5.15", "0.5.23")
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@dataclass
class Sglang:
    """One start of SGLang, as numbers, written in the words of an era."""

    era: str
    fraction: float
    ranks: int
    before: list[float]
    after: list[float]
    draft_after: list[float] | None
    pool: int
    kv: float
    draft_kv: float
    is_latent: bool
    pool_end: list[float]
    ready: float
    requests: int
    context: int
    chunk: int
    api_key: str = "sk-secret-1234"
    lines: list[str] = field(default_factory=list)

    @property
    def number(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.era.split("."))

    def say(self, rank: int | None, text: str) -> None:
        order = "TP{0}" if self.number < (0, 5, 5) else "TP{0} EP{0}" if self.number < (0, 5, 10) else "EP{0} TP{0}"
        tagged = rank is not None and (self.ranks > 1 or self.number < (0, 4, 6))
        tags = " " + order.format(rank) if tagged else ""
        self.lines.append(f"[2026-05-30 22:{10 + len(self.lines) // 60:02d}:{len(self.lines) % 60:02d}{tags}] {text}")

    def write(self) -> list[str]:
        self._arguments()
        for rank in range(self.ranks):
            self.say(rank, f"Load weight begin. avail mem={self.before[rank]:.2f} GB")
        for rank in range(self.ranks):
            self._loaded(rank, "TargetForCausalLM", self.before[rank], self.after[rank])
        early = self.number >= (0, 5, 15)
        if early:
            self._draft_weights()
        self._target_pool()
        if not early:
            self._draft_weights()
        self._draft_pool()
        self._final()
        return self.lines

    def _arguments(self) -> None:
        values: dict[str, Any] = {
            "model_path": "org/model, it's (v2)", "api_key": self.api_key, "mem_fraction_static": self.fraction,
            "context_length": None, "kv_cache_dtype": "auto", "tp_size": self.ranks, "pp_size": 1, "dp_size": 1,
            "speculative_algorithm": "EAGLE" if self.draft_after else None, "cuda_graph_bs": [1, 2, 4], "page_size": 1,
        }  # fmt: skip
        if self.number >= (0, 5, 23):
            self.say(None, f"server_args={values!r}")
        else:
            listed = ", ".join(f"{name}={value!r}" for name, value in values.items())
            self.say(
                None,
                f"server_args=ServerArgs({listed}, graph=CudaGraphConfig(decode=Phase(bs=[1, 2]), kind=<Kind.A: 1>))",
            )

    def _loaded(self, rank: int, kind: str, before: float, after: float) -> None:
        middle = {
            "0.4.3": "dtype=torch.bfloat16, ",
            "0.4.6": "dtype=torch.bfloat16, ",
            "0.5.5": "dtype=torch.bfloat16, ",
        }
        elapsed = "elapsed=3.20 s, " if self.number >= (0, 5, 10) else ""
        usage = "" if self.era == "0.4.3" else f", mem usage={before - after:.2f} GB."
        self.say(
            rank, f"Load weight end. {elapsed}type={kind}, {middle.get(self.era, '')}avail mem={after:.2f} GB{usage}"
        )

    def _draft_weights(self) -> None:
        if self.draft_after is None:
            return
        for rank in range(self.ranks):
            self.say(rank, f"Load weight begin. avail mem={self.after[rank]:.2f} GB")
            self._loaded(rank, "DraftForCausalLM", self.after[rank], self.draft_after[rank])

    def _pool(self, gib: float) -> str:
        counted = "" if self.era == "0.4.3" else f"#tokens: {self.pool}, "
        dtype = "dtype: torch.bfloat16, " if self.number >= (0, 5, 15) else ""
        sizes = f"KV size: {gib:.2f} GB" if self.is_latent else f"K size: {gib / 2:.2f} GB, V size: {gib / 2:.2f} GB"
        return f"KV Cache is allocated. {dtype}{counted}{sizes}" + ("." if self.era == "0.4.3" else "")

    def _target_pool(self) -> None:
        for rank in range(self.ranks):
            if (0, 5, 5) <= self.number < (0, 5, 15):
                self.say(rank, "Using KV cache dtype: torch.bfloat16")
            self.say(rank, self._pool(self.kv))
            self.say(rank, f"Memory pool end. avail mem={self.pool_end[rank]:.2f} GB")

    def _draft_pool(self) -> None:
        if self.draft_after is None:
            return
        for rank in range(self.ranks):
            self.say(rank, self._pool(self.draft_kv))
            self.say(rank, f"Memory pool end. avail mem={self.pool_end[rank]:.2f} GB")

    def _final(self) -> None:
        available = "" if self.number < (0, 5, 1) else f", available_gpu_mem={self.ready:.2f} GB"
        said_by = range(self.ranks) if self.number < (0, 5, 1) else range(1)
        for rank in said_by:
            self.say(
                rank,
                f"max_total_num_tokens={self.pool}, chunked_prefill_size={self.chunk}, max_prefill_tokens=16384, "
                f"max_running_requests={self.requests}, context_len={self.context}{available}",
            )
        self.say(None, "The server is fired up and ready to roll!")


@st.composite
def sglang_starts(draw: st.DrawFn) -> Sglang:
    ranks = draw(st.integers(1, 4))
    column = st.lists(gib, min_size=ranks, max_size=ranks)
    return Sglang(
        era=draw(st.sampled_from(ERAS)),
        fraction=draw(st.integers(100, 990)) / 1000,
        ranks=ranks,
        before=draw(column),
        after=draw(column),
        draft_after=draw(st.none() | column),
        pool=draw(tokens),
        kv=draw(st.integers(1, 9000)) / 50,
        draft_kv=draw(st.integers(1, 400)) / 50,
        is_latent=draw(st.booleans()),
        pool_end=draw(column),
        ready=draw(gib),
        requests=draw(st.integers(1, 4096)),
        context=draw(st.integers(1024, 10**7)),
        chunk=draw(st.sampled_from([-1, 2048, 8192])),
    )


@quick
@given(case=sglang_starts())
def test_sglang_of_every_era_reads_back(case):
    """Every figure of a generated SGLang start is read back, minima over ranks, target apart from draft."""
    lines = case.write()
    (start,) = read_starts(lines)
    found = {name: item.value for name, item in start.measurements.items()}
    loads_first = case.number >= (0, 5, 15) and case.draft_after is not None
    assert start.outcome == "ready"
    assert found["pool_tokens"] == case.pool
    assert found["free_before_load_gib"] == min(case.before)
    assert found["free_after_load_gib"] == min(case.draft_after if loads_first and case.draft_after else case.after)
    assert found["free_at_pool_end_gib"] == min(case.pool_end)
    assert abs(float(str(found["kv_cache_gib"])) - case.kv) < 0.011
    assert ("draft_kv_cache_gib" in found) == (case.draft_after is not None)
    if case.draft_after is not None:
        assert abs(float(str(found["draft_kv_cache_gib"])) - case.draft_kv) < 0.011
    assert found["free_at_ready_gib"] == (case.ready if case.number >= (0, 5, 1) else min(case.pool_end))
    flags = {name: item.value for name, item in start.flags.items()}
    assert flags["mem_fraction_static"] == case.fraction
    assert (flags["context_length"], flags["max_running_requests"]) == (case.context, case.requests)
    assert (flags["chunked_prefill_size"], flags["tp_size"]) == (case.chunk, case.ranks)
    assert flags["cuda_graph_bs"] == "[1,2,4]"
    assert start.facts["model_name"].value == "org/model, it's (v2)"
    assert found["startup_seconds"] == len(lines) - 1


@quick
@given(case=sglang_starts())
def test_no_secret_leaves_a_start(case):
    """An API key in the arguments' line is in no value, source, excerpt or message."""
    died = "[2026-05-30 23:00:00] RuntimeError: api_key='sk-secret-1234' Bearer sk-secret-1234"
    for start in read_starts([*case.write(), died]):
        assert "sk-secret" not in repr(start)


VLLM_TAGS = ("", "(EngineCore_DP0 pid=282) ", "(Worker_TP0 pid=9) ", "(VllmWorker rank=0 pid=3) ")


@quick
@given(
    total=st.integers(20, 200), share=st.integers(500, 980), weights=st.integers(1, 1500).map(lambda x: x / 100),
    peak=st.integers(0, 200),
    other=st.integers(0, 50), estimate=st.integers(0, 100), pool=tokens, length=st.integers(100, 10**6),
    regime=st.sampled_from(["sum", "estimate", "consumed"]), tag=st.sampled_from(VLLM_TAGS), one_line=st.booleans(),
)  # fmt: skip
def test_vllm_of_every_regime_reads_back(
    *, total, share, weights, peak, other, estimate, pool, length, regime, tag, one_line
):
    """The pool, its GiB, the fraction and the parts of each of vLLM's three accountings are read back and agree."""
    fraction, requested = share / 1000, round(total * share / 1000, 2)
    peak_gib, other_gib, graphs = peak / 100, other / 100, estimate / 100
    available = round(requested - weights - peak_gib - other_gib - (graphs if regime == "estimate" else 0), 2)
    if available <= 0:
        return
    parts = f"{weights} GiB for weight, {peak_gib} GiB for peak activation, {other_gib} GiB for non-torch memory"
    if regime == "consumed":
        consumed = round(weights + other_gib, 2)
        parts = f"{consumed} GiB for consumed memory (weights + non-torch), {peak_gib} GiB for peak activation"
    concurrency = f"Maximum concurrency for {length:,} tokens per request: {pool / length:.2f}x"
    size = f"GPU KV cache size: {pool:,} tokens"
    messages = [
        f"non-default args: "
        f"{{'model': 'org/model', 'gpu_memory_utilization': {fraction}, 'max_model_len': {length}, 'port': 1}}",
        "Initializing a V1 LLM engine (v0.27.1) with config: model='org/model', speculative_config=None, max_seq_len="
        f"{length}, served_model_name=a/b-c, tensor_parallel_size=1, pipeline_parallel_size=1, "
        f"data_parallel_size=1, quantization=None",
        f"Model loading took {weights} GiB memory and 1.2 seconds",
        f"Estimated CUDA graph memory: {graphs:.2f} GiB total",
        f"Available KV cache memory: {available} GiB",
        *([f"{size}, {concurrency}"] if one_line else [size, concurrency]),
        f"Free memory on device ({total - 0.5}/{total} GiB) on startup. Desired GPU memory utilization is "
        f"({fraction}, {requested} GiB). "
        f"Actual usage is {parts}, and 0.5 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with "
        f"`--kv-cache-memory=1` (0.0 GiB) to fit into requested memory, or `--kv-cache-memory=2` (0.0 GiB) to "
        f"fully utilize gpu memory. "
        f"Current kv cache memory in use is {available} GiB.",
        "init engine (profile, create kv cache, warmup model) took 9.00 s",
    ]
    (start,) = read_starts([f"{tag}INFO 11-29 12:00:{n:02d} [a.py:{n}] {text}" for n, text in enumerate(messages)])
    found = {name: item.value for name, item in start.measurements.items()}
    assert (start.outcome, found["pool_tokens"], found["kv_cache_gib"]) == ("ready", pool, available)
    assert (found["weights_gib"], found["device_memory_gib"], found["free_before_load_gib"]) == (
        weights,
        total,
        total - 0.5,
    )
    assert start.flags["gpu_memory_utilization"].value == fraction
    assert start.flags["max_model_len"].value == length
    assert start.contradictions == []
    assert start.facts["engine_version"].value == "0.27.1"


def test_a_contradiction_in_a_line_is_reported():
    """When the suggestion line's own terms do not leave what it says is in use, that is said and nothing is changed."""
    line = (
        "Free memory on device (139.29/139.8 GiB) on startup. Desired GPU memory utilization is (0.8, 111.84 "
        "GiB). Actual usage is 15.34 "
        "GiB for weight, 1.66 GiB for peak activation, 0.22 GiB for non-torch memory, and 0.0 GiB for CUDAGraph "
        "memory. Replace it with "
        "`--kv-cache-memory=1` (1 GiB) or `--kv-cache-memory=2` (1 GiB). Current kv cache memory in use is 54.62 GiB."
    )
    (start,) = read_starts([line, "Available KV cache memory: 54.62 GiB"])
    assert len(start.contradictions) == 1
    assert start.measurements["kv_cache_gib"].value == 54.62


@quick
@given(
    total=gib, share=st.integers(10, 99), kv=gib, blocks=st.integers(1, 10**6), size=st.sampled_from([8, 16, 32, 64]),
    word=st.sampled_from(["cuda", "CUDA", "GPU"]),
)  # fmt: skip
def test_the_first_vllm_engine_reads_back(*, total, share, kv, blocks, size, word):
    """V0's three-line summary and its blocks are read back; the block size is the one that its concurrency implies."""
    lines = [
        f"INFO 05-30 11:25:45 worker.py:267] the current vLLM instance can use total_gpu_memory ({total:.2f}GiB) x "
        f"gpu_memory_utilization (0.{share:02d}) = 7.28GiB",
        "INFO 05-30 11:25:45 worker.py:267] model weights take 2.89GiB; non_torch_memory takes 0.01GiB; PyTorch "
        "activation peak memory "
        f"takes 2.02GiB; the rest of the memory reserved for KV Cache is {kv:.2f}GiB.",
        f"INFO 05-30 11:25:45 executor_base.py:110] # {word} blocks: {blocks}, # CPU blocks: 9362",
        f"INFO 05-30 11:25:45 executor_base.py:115] Maximum concurrency for 512 tokens per request: "
        f"{blocks * size / 512:.2f}x",
    ]
    (start,) = read_starts(lines)
    assert start.measurements["pool_tokens"].value == blocks * (
        size if blocks * 8 / 512 > 0.1 else start.measurements["pool_tokens"].value // blocks
    )
    assert start.measurements["kv_cache_gib"].value == kv
    assert start.flags["gpu_memory_utilization"].value == share / 100
    assert start.flags["max_model_len"].value == 512


@quick
@given(blocks=st.integers(1, 10**6), size=st.sampled_from([32, 64]), fraction=st.integers(10, 99))
def test_lmdeploy_and_tensorrt_read_back(blocks, size, fraction):
    """The other engines' pool lines are read back; of TensorRT-LLM's two allocations the last counts."""
    share = fraction / 100
    config = f"CacheConfig(max_batches=128, block_size={size}, num_gpu_blocks={blocks}, cache_max_entry_count={share})"
    (lmdeploy,) = read_starts(
        ["2026-05-30 11:25:45,267 - lmdeploy - INFO - base.py:1 - Building CacheEngine with config:", config]
    )
    assert lmdeploy.measurements["pool_tokens"].value == blocks * size
    assert lmdeploy.flags["cache_max_entry_count"].value == share
    lines = [
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.00 GiB for max tokens in paged KV cache (4096).",
        "[05/30/2026-11:25:45] [TRT-LLM] [RANK 0] [I] Peak memory during memory usage profiling (torch + "
        "non-torch): 20.00 GiB, "
        f"available KV cache memory when calculating max tokens: 50.00 GiB, fraction is set {share}, kv size per "
        f"token is 131072. device "
        "total memory 79.15 GiB, temporary kv cache memory during profiling 1.00 GiB",
        f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated 49.98 GiB for max tokens in paged KV cache "
        f"({blocks * size}).",
    ]
    (tensorrt,) = read_starts(lines)
    assert tensorrt.measurements["pool_tokens"].value == blocks * size
    assert tensorrt.measurements["kv_cache_gib"].value == 49.98
    assert tensorrt.measurements["device_memory_gib"].value == 79.15
    assert tensorrt.flags["free_gpu_memory_fraction"].value == share


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(fields=st.dictionaries(st.from_regex(r"[a-z_]{1,12}", fullmatch=True), values, min_size=1, max_size=6))
def test_printed_arguments_read_back_as_they_were(fields):
    """Whatever Python prints of scalars, lists and dicts, as a call or a dict, is read back without evaluating it."""
    printed = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    called, listed = call_fields(printed + ")"), dict_fields(repr(fields))
    assert called.complete
    assert listed.complete
    assert json.dumps(called.values) == json.dumps(fields)
    assert json.dumps(listed.values) == json.dumps(fields)
