"""The stand-in engine itself: it behaves like the engine that it stands in for."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

import standin
from kvyield._ids import is_same_start
from kvyield.assemble import Extras, assemble
from kvyield.engines import Sourced, read_starts
from standin import Config
from standin.logs_sglang import sglang_lines
from standin.logs_vllm import vllm_lines
from standin.memory import Plan, plan


@pytest.mark.parametrize(
    ("fraction", "requests", "pool"), [(0.85, 64, 101_134), (0.92, 8, 192_406), (0.94, 8, 218_484)]
)
def test_the_memory_model_gives_the_worked_cases_pools(fraction: float, requests: int, pool: int) -> None:
    """The three starts of the worked case are reproduced to the token."""
    allocated = plan(Config(fraction=fraction, max_running_requests=requests))
    assert allocated.pool_tokens == pool
    assert allocated.at_ready_gib == pytest.approx({0.85: 10.37, 0.92: 6.1, 0.94: 4.2}[fraction], abs=0.1)


@pytest.mark.parametrize(
    ("engine", "settings", "words"),
    [
        ("sglang", {"fraction": 0.75}, "Not enough memory. Please try to increase --mem-fraction-static."),
        ("sglang", {"fraction": 0.75, "version": "0.5.18"}, "minimum viable = 1 - available/pre = 0.7724"),
        ("sglang", {"fraction": 0.995}, "Capture cuda graph failed: CUDA out of memory."),
        ("vllm", {"fraction": 0.85}, "the estimated maximum model length is"),
    ],
)
def test_a_start_that_does_not_fit_is_refused_in_the_engines_words(
    engine: standin.config.Engine, settings: dict[str, Any], words: str
) -> None:
    """A refused start has no address and ends with the engine's own reason in its log."""
    with standin.start(engine, **settings) as refused:
        assert (refused.url, refused.process.wait(timeout=10)) == ("", 1)
        assert words in refused.log_path.read_text()


def test_every_rank_prints_its_lines() -> None:
    """With several ranks each prints its memory lines, and rank 0 alone the last one."""
    with standin.start(tp_size=4) as engine:
        lines = engine.log_path.read_text().splitlines()
    assert sum("Load weight end" in line and "KimiK25" in line for line in lines) == 4
    assert sum("available_gpu_mem=" in line for line in lines) == 1
    assert "The server is fired up and ready to roll!" in lines[-1]


def test_free_memory_falls_during_a_prompt_and_a_flush_gives_it_back() -> None:
    """What a prompt took is partly kept by the allocator until the cache is flushed."""
    with standin.start() as engine:
        ready = min(engine.read())
        body = json.dumps({"text": "word " * 20_000, "sampling_params": {"max_new_tokens": 1}}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{engine.url}/generate", body), timeout=10).close()
        kept = min(engine.read())
        urllib.request.urlopen(urllib.request.Request(f"{engine.url}/flush_cache", b""), timeout=10).close()
        assert kept < ready == min(engine.read())


@pytest.mark.parametrize("lines", [sglang_lines, vllm_lines])
def test_two_starts_of_one_second_are_told_apart(lines: Callable[[Config, Plan, datetime], Iterator[str]]) -> None:
    """As with real engines, the port or the seed in the log differs where nothing else does."""
    ready_at = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
    extras = Extras(options={"gpu": Sourced("NVIDIA L4", "option"), "gpu_count": Sourced(8, "option")})
    one, other = (
        assemble(start, extras).observation()
        for config in (Config(port=30_000), Config(port=30_001))
        for start in read_starts(lines(config, plan(config), ready_at))
    )
    assert not is_same_start(one, other)
