"""SGLang's summary by its keys, several pools, caps, limits and what a data-parallel rank resolved."""

from __future__ import annotations

import itertools

import pytest

from kvyield.engines import Start, read_starts

STAMP = "[2026-05-30 12:00:0{} TP{}]"
ARGS = (
    "[2026-05-30 12:00:00] server_args=ServerArgs(model_path='m/m', mem_fraction_static=0.9, max_running_requests=64, "
    "chunked_prefill_size=16384, max_total_tokens={cap}, tp_size=8, dp_size={dp}, enable_dp_attention={attention})"
)
SUMMARY = {
    "max_total_num_tokens": "218484",
    "chunked_prefill_size": "8192",
    "max_prefill_tokens": "16384",
    "max_running_requests": "8",
    "context_len": "200000",
    "available_gpu_mem": "4.20 GB",
}
WIRE = {
    "chunked_prefill_size": ("chunked_prefill_size", 8192),
    "max_running_requests": ("max_running_requests", 8),
    "context_len": ("context_length", 200_000),
}
CALCULATION = (
    "[2026-09-11 23:46:11 TP0 EP0] DSV4 memory calculation: bytes_per_full_token=1670.75, available_bytes=8.84 GB, "
    "c128_state_fixed=0.00 GB, swa_fixed=0.30 GB, full_token=5491200"
)
SIZES = "[2026-09-11 23:46:11 TP0 EP0] DSV4 pool sizes: full={}, swa=13312, c4=1372800, c128=42900, c4_state=1664"
KV = "[TP{}] KV Cache is allocated. dtype: torch.bfloat16, #tokens: {}, K size: {} GB, V size: {} GB"


def only(lines: list[str]) -> Start:
    (start,) = read_starts(lines, engine="sglang")
    return start


def values(start: Start) -> dict[str, object]:
    return {name: item.value for name, item in start.measurements.items()}


def flags(start: Start) -> dict[str, object]:
    return {name: item.value for name, item in start.flags.items()}


def summary(keys: tuple[str, ...], separator: str = ", ") -> str:
    return f"{STAMP.format(9, 0)} " + separator.join(f"{key}={SUMMARY[key]}" for key in keys)


@pytest.mark.parametrize("left_out", [(), *itertools.combinations(list(SUMMARY)[1:], 1), *itertools.combinations(
    list(SUMMARY)[1:], 4)])  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_the_summary_is_read_by_its_keys(left_out: tuple[str, ...], turned: bool) -> None:
    """Whichever keys are there, in any order: what is there is read, what is not stays unknown, and it is ready."""
    keys = tuple(key for key in SUMMARY if key not in left_out)
    start = only([summary(keys[::-1] if turned else keys)])
    assert start.outcome == "ready"
    assert values(start)["pool_tokens"] == 218_484
    assert values(start).get("free_at_ready_gib") == (None if "available_gpu_mem" in left_out else 4.2)
    assert flags(start) == {wire: value for key, (wire, value) in WIRE.items() if key not in left_out}


@pytest.mark.parametrize("separator", [", ", ",", " ", " | "])
def test_an_abridged_summary_is_read_too(separator: str) -> None:
    """Whoever shortens the line keeps its keys."""
    start = only([summary(("max_total_num_tokens", "context_len", "available_gpu_mem"), separator)])
    assert values(start) == {"pool_tokens": 218_484, "free_at_ready_gib": 4.2}
    assert flags(start) == {"context_length": 200_000}


def test_a_ranks_own_sizing_is_no_summary() -> None:
    """A count that one rank projects says nothing of readiness."""
    line = "[TP1] KV pool sizing: available_bytes=5083410432 (4.734 GiB), cell_size=14143, page_size=64 -> "
    (start,) = read_starts([line + "max_total_num_tokens=359424"], engine="sglang")
    assert "pool_tokens" not in start.measurements
    assert start.outcome == "unfinished"


def test_a_capped_pool_keeps_both_counts_and_what_the_cap_leaves_in_use() -> None:
    """The second pool sizes are the cap's; the KV cache is what the capped tokens take, not what was available."""
    lines = [CALCULATION, SIZES.format(5_491_200), SIZES.format(2_999_808)]
    final = "[2026-09-11 23:46:49 TP0 EP0] max_total_num_tokens=2999808, context_len=1048576, available_gpu_mem=7.68 GB"
    for told in (lines, [*lines, final]):
        start = only(told)
        found = values(start)
        assert (found["pool_tokens"], found["uncapped_pool_tokens"]) == (2_999_808, 5_491_200)
        assert (found["kv_cache_gib"], found["swa_pool_tokens"]) == (pytest.approx(4.6677), 13_312)
        assert start.contradictions == []


def test_a_pool_that_no_cap_binds_has_one_count() -> None:
    """Without a second count, or a cap above the pool, what is available is what the pool takes."""
    start = only([ARGS.format(cap=9_000_000, dp=1, attention=False), CALCULATION, SIZES.format(5_491_200)])
    assert values(start)["pool_tokens"] == 5_491_200
    assert values(start)["kv_cache_gib"] == 8.84
    assert "uncapped_pool_tokens" not in start.measurements


def test_a_cap_that_was_given_shows_by_the_count_before_it() -> None:
    """The engine's calculation above the given cap, and a final count at it, are a capped pool."""
    final = "[2026-09-11 23:46:49 TP0 EP0] max_total_num_tokens=2999808, context_len=1048576"
    capped = only([ARGS.format(cap=3_000_000, dp=1, attention=False), CALCULATION, final])
    assert values(capped)["uncapped_pool_tokens"] == 5_491_200
    unknown = only([CALCULATION, final])
    assert "uncapped_pool_tokens" not in unknown.measurements


def test_a_draft_has_as_many_tokens_and_another_count_is_another_pool() -> None:
    """Sliding window first, full attention second, a draft third: the full pool is the pool, both are its GiB."""
    target = [KV.format(0, 774_980, 8.87, 8.87), KV.format(0, 968_726, 11.09, 11.09)]
    start = only([*target, KV.format(0, 968_726, 0.5, 0.5)])
    assert values(start) == {
        "pool_tokens": 968_726,
        "swa_pool_tokens": 774_980,
        "kv_cache_gib": 39.92,
        "draft_kv_cache_gib": 1.0,
    }
    named = "[TP0] SWAKVPool mem usage: 39.91 GB, swa size: 774980, full size: 968726"
    assert values(only([*target, named, KV.format(0, 968_726, 0.5, 0.5)])) == {
        "pool_tokens": 968_726,
        "swa_pool_tokens": 774_980,
        "kv_cache_gib": 39.91,
        "draft_kv_cache_gib": 1.0,
    }
    plain = only([KV.format(0, 968_726, 11.09, 11.09), KV.format(0, 968_726, 0.5, 0.5)])
    assert values(plain) == {"pool_tokens": 968_726, "kv_cache_gib": 22.18, "draft_kv_cache_gib": 1.0}


@pytest.mark.parametrize(
    "line",
    [
        "[TP0] Use Sliding window memory pool. full_layer_tokens=63987, swa_layer_tokens=51189",
        "[TP0] Use sliding window memory pool. full_layer_tokens=63987, swa_layer_tokens=51189",
        "[TP0] Post-capture KV sizing: full_layer_tokens=63987, swa_layer_tokens=51189",
    ],
)
def test_the_counts_of_both_kinds_of_layers_are_read(line: str) -> None:
    """The older and the newer wording, and that after the graphs."""
    assert values(only([line])) == {"pool_tokens": 63_987, "swa_pool_tokens": 51_189}


def test_a_limit_that_refuses_prompts_is_kept() -> None:
    """A prefill node takes the less of both pools, and says so only when a prompt is too long."""
    pool = (
        "[2026-05-06 09:15:41 TP7] Initialize DeepSeekV4TokenToKVPool with max_num_reqs=8 swa_size=18432 c4_size=46592"
    )
    ready = "[2026-05-06 09:16:20] The server is fired up and ready to roll!"
    limit = (
        "[2026-05-06 09:18:02 TP7] Input length (20011 tokens) exceeds the maximum allowed length ({} tokens). Use a"
    )
    start = only([CALCULATION, pool, ready, limit.format(18_425), limit.format(18_430)])
    assert values(start)["swa_pool_tokens"] == 18_432
    assert values(start)["longest_prompt_tokens"] == 18_425
    assert start.outcome == "ready"


@pytest.mark.parametrize(("dp", "attention", "rank"), [(8, True, "DP7 TP7"), (2, False, "DP0 TP0")])
def test_a_data_parallel_ranks_share_is_not_the_flag(dp: int, attention: bool, rank: str) -> None:
    """What was given stays the flag; what the rank resolved is a fact of its own."""
    final = (
        f"[2026-05-06 09:15:50 {rank}] max_total_num_tokens=186368, chunked_prefill_size=2048, max_running_requests=8"
    )
    start = only([ARGS.format(cap=None, dp=dp, attention=attention), final])
    assert (flags(start)["max_running_requests"], flags(start)["chunked_prefill_size"]) == (64, 16_384)
    assert start.facts["max_running_requests_per_rank"].value == 8
    assert start.facts["chunked_prefill_size_per_rank"].value == 2048
    unseen = only([final])
    assert "max_running_requests" not in unseen.flags


def test_without_data_parallelism_the_resolved_value_is_the_flag() -> None:
    """The scheduler may take fewer requests than were asked for."""
    final = "[2026-05-06 09:15:50 TP0] max_total_num_tokens=186368, chunked_prefill_size=8192, max_running_requests=48"
    start = only([ARGS.format(cap=None, dp=1, attention=False), final])
    assert (flags(start)["max_running_requests"], flags(start)["chunked_prefill_size"]) == (48, 8192)


def test_the_drafts_weights_are_told_apart() -> None:
    """The second model that loads is the draft; on unified memory its figure may be negative, and is then unknown."""
    load = "[TP0] Load weight end. elapsed=4.1 s, type=M, quant=fp8, avail mem={} GB, mem usage={} GB."
    begin = "[TP0] Load weight begin. avail mem={} GB"
    start = only([begin.format(14.97), load.format(4.59, 10.38), begin.format(4.59), load.format(1.72, 2.87)])
    assert (values(start)["weights_gib"], values(start)["draft_weights_gib"]) == (13.25, 2.87)
    odd = only([begin.format(14.97), load.format(4.59, 10.38), begin.format(4.59), load.format(6.45, -1.86)])
    assert "draft_weights_gib" not in odd.measurements


def test_a_total_that_the_framework_was_asked_for_is_the_gpus() -> None:
    """Where nvidia-smi tells no memory, SGLang asks torch and says what it found."""
    line = (
        "[2026-09-11 23:34:02] Failed to get GPU memory capacity from nvidia-smi. Falling back to "
        "torch.cuda.mem_get_info(). Reported total GPU memory per device (MiB): [124610], using min: 124610 MiB."
    )
    start = only([line, ARGS.format(cap=None, dp=1, attention=False), SIZES.format(5_491_200)])
    assert values(start)["device_memory_gib"] == pytest.approx(121.69, abs=0.001)
    assert flags(start)["mem_fraction_static"] == 0.9


def test_a_count_that_divides_the_pool_may_be_a_ranks_share() -> None:
    """Under context parallelism a rank's line holds its share, the draft's the whole: nothing is made of the share."""
    final = "[TP0] max_total_num_tokens=124916, context_len=131072"
    start = only([KV.format(0, 31_229, 0.18, 0.18), KV.format(0, 124_916, 0.02, 0.02), final])
    assert values(start) == {"pool_tokens": 124_916}


@pytest.mark.parametrize(
    ("lines", "least"),
    [
        (["{start} Raise --mem-fraction-static above 0.942 (minimum viable = 1 - available/pre = 0.9411)."], 0.9411),
        (["{start} Raise --mem-fraction-static above 0.942"], 0.942),
        (
            ["{start}", "Raise --mem-fraction-static above 0.942", "(minimum viable = 1 - available/pre = 0.9411)."],
            0.9411,
        ),
    ],
)
def test_a_refusal_names_the_least_fraction_wherever_its_line_was_broken(lines: list[str], least: float) -> None:
    """The four digits of the engine's own arithmetic win over the suggestion, which is rounded up."""
    begin = "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.94."
    start = only(["[TP0] Load weight begin. avail mem=93.60 GB", *(line.format(start=begin) for line in lines)])
    assert start.outcome == "refused"
    assert start.failure["minimum_fraction"].value == least
    assert flags(start)["mem_fraction_static"] == 0.94


@pytest.mark.parametrize(
    "sizes", ["K size: 29.70 GB, V size: 29.70 GB", "K 29.70 GB, V 29.70 GB", "K: 29.70 GB, V: 29.70 GB"]
)
@pytest.mark.parametrize("words", ["KV Cache is allocated.", "KV Cache allocated."])
def test_an_abridged_pool_line_is_read(words: str, sizes: str) -> None:
    """Reports shorten the line of the pool; a death after it keeps the pool."""
    start = only(
        [
            "[2026-09-15 10:00:10] Load weight begin. avail mem=77.24 GB",
            "[2026-09-15 10:00:15] Load weight end. type=Qwen3ForCausalLM, avail mem=76.05 GB, mem usage=1.18 GB.",
            f"[2026-09-15 10:00:15] {words} #tokens: 556202, {sizes}",
            "[2026-09-15 10:00:15] Memory pool end. avail mem=12.14 GB",
            "torch.AcceleratorError: CUDA error: out of memory",
            "[2026-09-15 10:00:41] Received sigquit from a child process. It usually means the child failed.",
        ]
    )
    assert start.outcome == "oom_startup"
    assert (values(start)["pool_tokens"], values(start)["kv_cache_gib"]) == (556202, 59.4)


@pytest.mark.parametrize(("new", "prompt"), [(256, None), (200, 200)])
def test_a_full_chunk_of_a_data_parallel_rank_is_no_prompt(new: int, prompt: int | None) -> None:
    """The rank's chunk is its share of the flag: a batch of that length may be the start of any prompt."""
    start = only(
        [
            ARGS.format(cap=None, dp=16, attention=True),
            "[2026-05-30 18:55:21 DP4 TP4] KV Cache is allocated. #tokens: 327111, KV size: 21.41 GB",
            "[2026-05-30 18:56:32 DP4 TP4] max_total_num_tokens=327111, chunked_prefill_size=256, "
            "max_running_requests=16, context_len=65536",
            "[2026-05-30 18:56:40] The server is fired up and ready to roll!",
            f"[2026-05-30 19:00:29 DP4 TP4] Prefill batch. #new-seq: 1, #new-token: {new}, #cached-token: 0, "
            "token usage: 0.05, #running-req: 3, #queue-req: 2",
            "[2026-05-30 19:00:30 DP4 TP4] TpModelWorkerClient hit an exception: Traceback (most recent call last):",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.00 GiB. GPU 4 has a total capacity of "
            "79.11 GiB of which 5.90 GiB is free. Including non-PyTorch memory, this process has 73.19 GiB in use.",
        ]
    )
    assert start.outcome == "oom_runtime"
    told = start.failure.get("prompt_tokens")
    assert (told.value if told else None) == prompt
