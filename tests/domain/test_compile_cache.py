"""vLLM's compile cache: five real starts of one deployment on an H200, whose cold and warm pools lie 0.5 GiB apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.door import advise, predict
from domain.ledgers import VLLM, start
from kvyield_server.domain.advice.plan import restart_plan
from kvyield_server.domain.facts.observation import Hardware, Model, Observation

QWEN3_8B = {
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 131_072,
    "vocab_size": 151_936,
    "torch_dtype": "bfloat16",
}
MEASURED = {
    (0.80, "cold"): (691_952, 95.03, 26.101),
    (0.829, "cold"): (721_472, 99.08, 22.015),
    (0.80, "warm"): (695_616, 95.53, 25.612),
    (0.829, "warm"): (725_136, 99.58, 21.542),
    (0.90, "warm"): (797_408, 109.51, 11.628),
    (0.97, "warm"): (868_672, 119.30, 1.847),
}


def ledger(*kinds: tuple[float, str]) -> list[Observation]:
    """The real starts of these fractions and cache states, in this order."""
    return [_start(number, fraction, state) for number, (fraction, state) in enumerate(kinds, 1)]


def _start(number: int, fraction: float, state: str) -> Observation:
    pool, kv_gib, free = MEASURED[fraction, state]
    return start(
        number,
        fraction,
        pool,
        hardware=Hardware(gpu="NVIDIA H200", gpu_count=1, memory_gib=139.8),
        model=Model(name="Qwen/Qwen3-8B", facts=QWEN3_8B),
        engine=VLLM,
        flags={
            "tensor_parallel_size": 1,
            "max_model_len": 131_072,
            "max_num_batched_tokens": 8192,
            "compile_cache": state,
        },
        kv_cache_gib=kv_gib,
        device_memory_gib=139.8,
        free_before_load_gib=139.29,
        weights_gib=15.31,
        graph_gib=1.0,
        free=free,
    )


@pytest.mark.parametrize("next_state", ["cold", "warm"])
def test_after_one_cold_start_the_next_may_be_either(next_state: str) -> None:
    """Pool and free memory hold the cold start and the warm one: a container may or may not keep its cache."""
    told = predict(ledger((0.80, "cold")), {"gpu_memory_utilization": 0.829})
    pool, _, free = MEASURED[0.829, next_state]
    assert told.pool_tokens is not None
    assert told.free_at_ready_gib is not None
    assert told.pool_tokens.low <= pool <= told.pool_tokens.high
    assert told.free_at_ready_gib.low <= free <= told.free_at_ready_gib.high


def test_advice_after_a_cold_start_holds_the_target_either_way() -> None:
    """The flags change by the fraction alone: whether a cache is warm is nobody's to set."""
    advice = advise(ledger((0.80, "cold")), 60_000, concurrent=12)
    assert [change.flag for change in advice.changes] == ["gpu_memory_utilization"]
    assert "compile_cache" not in advice.flags
    fraction = float(str(advice.flags["gpu_memory_utilization"]))
    assert 691_952 + (fraction - 0.80) * 1_017_990 >= 720_000


@pytest.mark.parametrize("fraction", [0.90, 0.97])
@pytest.mark.parametrize(
    "known", [[(0.829, "cold"), (0.80, "warm")], [(0.829, "cold"), (0.80, "warm"), (0.80, "cold")]]
)
def test_one_start_of_each_state_tells_the_warm_line_to_a_tenth_of_a_per_cent(
    known: list[tuple[float, str]], fraction: float
) -> None:
    """Without the state they would be one line with a scatter of half a per cent."""
    told = predict(ledger(*known), {"gpu_memory_utilization": fraction})
    pool, _, free = MEASURED[fraction, "warm"]
    assert told.pool_tokens is not None
    assert told.free_at_ready_gib is not None
    assert told.pool_tokens.median == pytest.approx(pool, rel=0.001)
    assert told.pool_tokens.low <= pool <= told.pool_tokens.high
    assert told.free_at_ready_gib.low <= free <= told.free_at_ready_gib.high
    assert told.pool_tokens.high - told.pool_tokens.low < 0.004 * pool


def test_starts_that_are_cold_time_and_again_stay_cold() -> None:
    """Where no cache is kept, two cold starts tell the third to a tenth of a per cent."""
    told = predict(ledger((0.80, "cold"), (0.829, "cold")), {"gpu_memory_utilization": 0.81})
    assert told.pool_tokens is not None
    assert told.pool_tokens.median == pytest.approx(702_132, rel=0.001)
    assert told.pool_tokens.high - told.pool_tokens.low < 0.002 * 702_132


def test_what_runs_from_a_cold_start_is_kept_where_it_holds_the_target() -> None:
    """Its measured pool answers: nothing is restarted for a cache."""
    advice = advise(ledger((0.829, "cold")), 60_000, concurrent=12)
    assert advice.changes == ()
    assert advice.prediction.pool_tokens is not None
    assert advice.prediction.pool_tokens.median == 721_472


@pytest.mark.parametrize(
    ("states", "minutes"), [(("cold", "warm"), 1.1), (("cold",), 1.8), (("cold", "warm", "cold", "warm"), 1.1)]
)
def test_a_start_that_compiled_its_graphs_does_not_tell_how_long_the_next_takes(
    states: tuple[str, ...], minutes: float
) -> None:
    """Unless there is no other: as measured on an H200, 108 s when compiling and 66 s when loading."""
    timed = [
        replace(one, measurements=replace(one.measurements, startup_seconds=108.0 if state == "cold" else 66.0))
        for one, state in zip(ledger(*((0.80, state) for state in states)), states, strict=True)
    ]
    plan = restart_plan(1.0, timed)
    assert plan is not None
    assert plan.minutes_each == minutes
