"""Several starts in one source: never mixed, each with its own end."""

from __future__ import annotations

from typing import Any

import pytest

from kvyield.engines import read_starts
from kvyield.engines._engines import ENGINES
from kvyield.engines._segment import MOST_STREAMS, Segmenter


def start(fraction: float, pool: int, *, ends: str = "ready", second: int = 0) -> list[str]:
    """A start of SGLang that ends ready, refused, out of memory, or not at all."""
    stamp = f"[2026-05-30 22:{second // 60:02d}:{second % 60:02d} TP0]"
    lines = [
        f"{stamp} server_args=ServerArgs(model_path='m', mem_fraction_static={fraction}, tp_size=1)",
        f"{stamp} Load weight begin. avail mem=90.00 GB",
        f"{stamp} Load weight end. elapsed=1 s, type=M, avail mem=20.00 GB, mem usage=70.00 GB.",
    ]
    pooled = [
        f"{stamp} KV Cache is allocated. #tokens: {pool}, KV size: 9.00 GB",
        f"{stamp} Memory pool end. avail mem=8.00 GB",
    ]
    final = f"{stamp} max_total_num_tokens={pool}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    final += "max_running_requests=8, context_len=4096, available_gpu_mem=7.00 GB"
    return (
        lines
        + {
            "ready": [*pooled, final, f"{stamp} The server is fired up and ready to roll!"],
            "refused": [f"{stamp} RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."],
            "oom": [
                *pooled,
                f"{stamp} Scheduler hit an exception: Traceback",
                "torch.OutOfMemoryError: CUDA out of memory. Tried",
            ],
            "cut": [],
        }[ends]
    )


def seen(lines: list[str], **options: Any) -> list[tuple[Any, ...]]:
    found = []
    for one in read_starts(lines, **options):
        pool = one.measurements.get("pool_tokens")
        found.append((one.flags["mem_fraction_static"].value, one.outcome, pool.value if pool else None))
    return found


@pytest.mark.parametrize("prefix", ["", "May 30 22:00:00 gpu-01 sglang[{pid}]: ", "sglang-1  | "])
def test_starts_one_after_the_other_stay_apart(prefix):
    """Six starts in one log, good and bad, each keep their own fraction, pool and outcome, also with new process
    numbers.
    """
    ends = ["refused", "ready", "oom", "cut", "ready", "ready"]
    lines = []
    for number, end in enumerate(ends):
        block = start(round(0.8 + number / 100, 2), 1000 * (number + 1), ends=end, second=100 * number)
        lines += [prefix.format(pid=4000 + 37 * number) + line for line in block]
    expected = [
        (0.8, "refused", None), (0.81, "ready", 2000), (0.82, "oom_startup", 3000),
        (0.83, "unfinished", None), (0.84, "ready", 5000), (0.85, "ready", 6000),
    ]  # fmt: skip
    assert sorted(seen(lines)) == expected


@pytest.mark.parametrize("prefix", ["", "May 30 22:00:00 gpu-01 sglang[{pid}]: "])
def test_a_live_source_gives_a_start_as_soon_as_it_ends(prefix):
    """Following a log, a start comes out at its ready line or at its failure, not when the next begins; a death
    later, again.
    """
    blocks = [start(0.9, 1000), start(0.91, 2000, ends="refused", second=100), start(0.92, 3000, second=200)]
    died = [
        "[2026-05-30 22:30:00 TP0] Scheduler hit an exception: Traceback",
        "torch.OutOfMemoryError: CUDA out of memory. Tried",
    ]
    blocks.append(died)
    given = 0

    def live() -> Any:
        nonlocal given
        for number, block in enumerate(blocks):
            for line in block:
                given += 1
                yield prefix.format(pid=4000 + 9 * min(number, 2)) + line + "\n"

    found, at = [], []
    for one in read_starts(live(), follow=True):
        found.append((one.flags["mem_fraction_static"].value, one.outcome))
        at.append(given)
    assert found == [(0.9, "ready"), (0.91, "refused"), (0.92, "ready"), (0.92, "oom_runtime")]
    ends = [sum(map(len, blocks[: number + 1])) for number in range(4)]
    assert at == ends


def test_a_ready_start_without_args_is_followed_by_another():
    """Excerpts without arguments' lines part at the next load and at a clock that went back."""
    one, two = start(0.9, 1000)[1:], start(0.9, 2000, second=60)[1:]
    pools = [s.measurements["pool_tokens"].value for s in read_starts([*one, *two])]
    assert pools == [1000, 2000]
    back = [s.measurements["pool_tokens"].value for s in read_starts([*two[2:4], *one[2:]])]
    assert back == [2000, 1000]


def test_years_of_a_journal_take_no_memory():
    """Streams and starts that are over are let go: ten thousand containers leave a bounded number open."""
    segmenter = Segmenter(ENGINES, forced=False, reference_time=None, follow=False)
    count = 0
    for number in range(2000):
        chunk = "".join(f"svc-{number}  | {line}\n" for line in start(0.9, 1000 + number))
        count += sum(1 for _ in segmenter.read(chunk.encode()))
        assert len(segmenter._streams) <= MOST_STREAMS
    assert count + sum(1 for _ in segmenter.close()) == 2000


def test_an_unknown_engine_is_named():
    """Asking for an engine that is not known raises and lists those that are."""
    with pytest.raises(ValueError, match="sglang, vllm, tensorrt-llm, lmdeploy"):
        list(read_starts([], engine="llama.cpp"))


def test_arguments_that_two_processes_print_are_one_start():
    """The same arguments line twice before anything else is one start; after a failure it is the next one."""
    args, *rest = start(0.9, 1000)
    assert seen([args, args, *rest]) == [(0.9, "ready", 1000)]
    assert [outcome for _, outcome, _ in seen([args, "ValueError: no such model", args, *rest])] == ["failed", "ready"]


VLLM = [
    (0, "(APIServer pid=1) INFO 11-29 12:00:00 [u.py:1] vLLM API server version 0.26.0"),
    (0, "(APIServer pid=1) INFO 11-29 12:00:00 [u.py:1] non-default args: {{'gpu_memory_utilization': {fraction}}}"),
    (
        5,
        "(EngineCore pid=6) INFO 11-29 12:00:09 [c.py:1] Initializing a V1 LLM engine (v0.26.0) with config: a=1",
    ),
    (7, "(Worker_TP0 pid=8) INFO 11-29 12:00:19 [g.py:1] Model loading took 15.31 GiB and 1.8 seconds"),
    (7, "(Worker_TP0 pid=8) INFO 11-29 12:00:29 [g.py:1] Available KV cache memory: 10.77 GiB"),
    (5, "(EngineCore_DP0 pid=6) INFO 11-29 12:00:39 [k.py:1] GPU KV cache size: {pool} tokens"),
    (0, "(APIServer pid=1) INFO:     Application startup complete."),
]


def vllm_journal(main: int, fraction: float, pool: int) -> list[str]:
    """One start of vLLM in a journal that names the process which wrote each line."""
    prefix = "Nov 29 12:00:00 gpu-01 python3[{pid}]: "
    return [prefix.format(pid=main + child) + text.format(fraction=fraction, pool=pool) for child, text in VLLM]


def vllm_seen(lines: list[str]) -> list[tuple[Any, ...]]:
    """Fraction, outcome and pool of each start."""
    flag, figure = "gpu_memory_utilization", "pool_tokens"
    return sorted((s.flags[flag].value, s.outcome, s.measurements[figure].value) for s in read_starts(lines))


def test_children_of_one_server_are_one_start():
    """A journal that gives every child process its own number still holds one start a server, also two at a time."""
    one, two = vllm_journal(1000, 0.8, 111), vllm_journal(2000, 0.9, 222)
    assert vllm_seen(one) == [(0.8, "ready", 111)]
    assert vllm_seen([*one, *two]) == [(0.8, "ready", 111), (0.9, "ready", 222)]
    turns = [line for pair in zip(one, two, strict=True) for line in pair]
    assert vllm_seen(turns) == [(0.8, "ready", 111), (0.9, "ready", 222)]
