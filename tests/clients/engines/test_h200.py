"""The 110 starts of SGLang 0.5.17 and vLLM 0.26.0 on one H200, against what was measured beside them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvyield.engines import Start, read_starts

ARGUMENTS = {
    "--context-length": "context_length",
    "--max-running-requests": "max_running_requests",
    "--chunked-prefill-size": "chunked_prefill_size",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--max-total-tokens": "max_total_tokens",
    "--page-size": "page_size",
    "--attention-backend": "attention_backend",
    "--cuda-graph-max-bs": "cuda_graph_max_bs",
}
RESOLVED_FRACTION = {"c6_sgl_q8_fNone": 0.91, "c7_sgl_mla_fNone": 0.91}


def only_start(log: bytes) -> Start:
    starts = list(read_starts(log.splitlines(keepends=True)))
    assert len(starts) == 1
    return starts[0]


def measured(start: Start, name: str) -> Any:
    item = start.measurements.get(name)
    return item.value if item else None


def flag(start: Start, name: str) -> Any:
    item = start.flags.get(name)
    return item.value if item else None


def test_every_memory_figure_of_sglang_is_the_measured_one(h200):
    """Pool, T, A, pool end, free at ready, weights, graphs and KV GiB of all 76 SGLang starts equal the truth."""
    cases = [case for case in h200 if case.known["engine"] == "sglang"]
    assert len(cases) == 76
    for case in cases:
        start, log = only_start(case.log), case.known["log"]
        kv = log["kv_size"] if "kv_size" in log else 2 * log["kv_k"] if "kv_k" in log else None
        expected = {
            "pool_tokens": case.known["pool_tokens"],
            "free_before_load_gib": log["load_begin"],
            "free_after_load_gib": log["load_end"],
            "free_at_pool_end_gib": log.get("pool_end"),
            "free_at_ready_gib": log.get("avail_final"),
            "weights_gib": log["load_mem"],
            "graph_gib": round(sum(log["graph_mem"]), 2) if "graph_mem" in log else None,
            "kv_cache_gib": kv,
        }
        for name, value in expected.items():
            assert measured(start, name) == pytest.approx(value, abs=1e-9), (case.name, name)


def test_every_memory_figure_of_vllm_is_the_measured_one(h200):
    """Pool, KV GiB, weights and graphs of all 34 vLLM starts equal the truth, and the lines' own arithmetic agrees."""
    cases = [case for case in h200 if case.known["engine"] == "vllm"]
    assert len(cases) == 34
    for case in cases:
        start, log = only_start(case.log), case.known["log"]
        assert measured(start, "pool_tokens") == case.known["pool_tokens"], case.name
        assert measured(start, "kv_cache_gib") == log["v_avail_kv"], case.name
        assert measured(start, "weights_gib") == log["v_load"], case.name
        assert measured(start, "graph_gib") == log.get("v_graph"), case.name
        assert start.contradictions == [], case.name
        assert start.facts["engine_version"].value == "0.26.0"


def test_outcomes_are_told_apart(h200):
    """108 starts are ready, one ran out of memory while allocating its pool, one was refused, and both say why."""
    for case in h200:
        start = only_start(case.log)
        assert (start.outcome == "ready") == case.known["ready"], case.name
    by_name = {case.name: only_start(case.log) for case in h200 if not case.known["ready"]}
    starved, refused = by_name["c7_sgl_q8_fine0.99"], by_name["c8_vllm_q8_f0.2"]
    assert (starved.outcome, starved.failure["phase"].value) == ("oom_startup", "pool")
    assert str(starved.failure["message"].value).startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to")
    assert measured(starved, "device_memory_gib") == 139.8
    assert (refused.outcome, refused.failure["phase"].value) == ("refused", "pool")
    assert refused.failure["available_kv_cache_gib"].value == 10.77


def test_vllm_flags_are_those_given(h200):
    """All arguments of the 34 vLLM starts are in the flags, and the default fraction is the resolved 0.92."""
    for case in h200:
        if case.known["engine"] != "vllm":
            continue
        start = only_start(case.log)
        for name, value in case.known["arguments"].items():
            assert flag(start, name) == value, (case.name, name)
        assert flag(start, "gpu_memory_utilization") == (case.known["fraction"] or 0.92), case.name
        assert flag(start, "tensor_parallel_size") == 1
        assert flag(start, "speculative_config") is None
        assert "speculative_config" in start.flags


def test_sglang_flags_that_the_log_holds_are_right_and_the_others_absent(h200):
    """Context, requests and chunk are the final line's; a log trimmed before the fraction has none."""
    for case in h200:
        if case.known["engine"] != "sglang":
            continue
        start, log = only_start(case.log), case.known["log"]
        if case.known["ready"]:
            assert flag(start, "context_length") == log["ctx"], case.name
            assert flag(start, "max_running_requests") == log["max_running"], case.name
            assert flag(start, "chunked_prefill_size") == log["chunk"], case.name
            is_fp8 = "fp8_e4m3" in " ".join(case.known["arguments"])
            assert flag(start, "kv_cache_dtype") == ("fp8_e4m3" if is_fp8 else "bfloat16"), case.name
        held = b"mem_fraction_static=" in case.log
        assert flag(start, "mem_fraction_static") == (case.known["fraction"] if held else None), case.name
        assert ("mem_fraction_static" in start.flags) == held, case.name


def test_every_flag_is_read_from_a_whole_arguments_line(h200):
    """With the arguments' line whole, as servers print it, fraction and arguments of all 73 trimmed logs come out."""
    whole = next(case.log for case in h200 if case.name == "c5_sgl_srv_q8_080_c8192")
    line = next(line for line in whole.decode().splitlines() if "server_args=" in line)
    restored = 0
    for case in h200:
        if case.known["engine"] != "sglang" or b"mem_fraction_static=" in case.log:
            continue
        given = arguments_of(case.known["arguments"])
        fraction = case.known["fraction"] or RESOLVED_FRACTION[case.name]
        begin = case.log.index(b"SERVER_ARGS ")
        whole_line = with_values(line, given | {"mem_fraction_static": fraction}).encode()
        start = only_start(case.log[:begin] + whole_line + case.log[case.log.index(b"\n", begin) :])
        assert flag(start, "mem_fraction_static") == fraction, case.name
        for name, value in given.items():
            assert flag(start, name) == value, (case.name, name)
        assert flag(start, "disable_radix_cache") is False
        assert flag(start, "speculative_algorithm") is None
        restored += 1
    assert restored == 73


def arguments_of(line: list[str]) -> dict[str, Any]:
    pairs = dict(zip(line, [*line[1:], ""], strict=False))
    found = {ARGUMENTS[name]: value for name, value in pairs.items() if name in ARGUMENTS}
    return {name: int(value) if value.isdecimal() else value for name, value in found.items()}


def with_values(line: str, values: dict[str, Any]) -> str:
    for name, value in values.items():
        line = (
            re.sub(rf"\b{name}=[^,]*,", f"{name}={value!r},", line, count=1)
            if f" {name}=" in line
            else line[:-1] + f", {name}={value!r})"
        )
    return line


def test_server_starts_have_the_time_to_fired_up(h200):
    """A server's start-up ends with its ready line, not with the final line of its scheduler."""
    case = next(case for case in h200 if case.name == "c5_sgl_srv_mla_080_c8192")
    start = only_start(case.log)
    assert measured(start, "startup_seconds") == 36.0
    assert str(start.observed_at) == "2026-11-29 12:18:29+00:00"
