"""Whether vLLM compiled its graphs anew: on an H200 that took 0.51 GiB of the pool (0.26.0, Qwen3-8B)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvyield.engines import read_starts

LOGS = Path(__file__).parent / "data" / "vllm_compile_cache"


@pytest.mark.parametrize(
    ("name", "state", "pool"),
    [
        ("cold-0.80.log", "cold", 691_952),
        ("disabled-0.80.log", "cold", 691_952),
        ("warm-0.80.log", "warm", 695_616),
        ("cold-0.829.log", "cold", 721_472),
        ("warm-0.829.log", "warm", 725_136),
    ],
)
def test_real_starts_tell_whether_the_compile_cache_was_warm(name: str, state: str, pool: int) -> None:
    """Five real starts of one deployment: two parallel lines, 3,664 tokens apart at both fractions."""
    (start,) = read_starts((LOGS / name).read_text().splitlines())
    assert start.flags["compile_cache"].value == state
    assert start.measurements["pool_tokens"].value == pool
    assert start.outcome == "ready"


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        (["Directly load the compiled graph(s) for dynamic shape from the cache, took 1.908 s"], "warm"),
        (["Directly load the compiled graph(s) for shape 8 from the cache, took 1.908 s"], "warm"),
        (["Directly load AOT compilation from path /cache/torch_aot_compile/1/rank_0_0/model"], "warm"),
        (["Compiling a graph for dynamic shape takes 28.96 s"], "cold"),
        (["Compiling a graph for general shape takes 28.96 s"], "cold"),
        (
            [
                "Directly load the compiled graph(s) for compile range (1, 8) from the cache, took 1 s",
                "Compiling a graph for compile range (9, 8192) takes 12.92 s",
                "Directly load the compiled graph(s) for compile range (1, 8) from the cache, took 1 s",
            ],
            "cold",
        ),
        (["vLLM's torch.compile cache is disabled."], None),
        ([], None),
    ],
)
def test_one_compiled_graph_makes_a_start_cold(lines: list[str], state: str | None) -> None:
    """Wordings of vLLM 0.8 to 0.27; several ranks and ranges print one each."""
    opening = "INFO 11-29 12:07:50 [api_server.py:1] vLLM API server version 0.26.0"
    pool = ["INFO 11-29 12:07:54 [core.py:1] Available KV cache memory: 10.00 GiB", "GPU KV cache size: 10,000 tokens"]
    (start,) = read_starts(
        [opening, *(f"INFO 11-29 12:07:52 [backends.py:267] {line}" for line in lines), *pool], engine="vllm"
    )
    found = start.flags.get("compile_cache")
    assert (found.value if found else None) == state
