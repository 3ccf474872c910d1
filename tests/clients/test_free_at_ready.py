"""Free memory at ready, and both totals of a GPU's memory, from the GPU itself where no log has them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvyield.assemble import Extras
from kvyield.cli import main
from kvyield.engines import Sourced, Start
from kvyield.gpu._nvml import nvml_gpus
from kvyield.intake import is_untouched
from kvyield.watching import BookmarkFile, Watch, became_ready_now
from standin.nvml import FakeGpu, FakeNvml

XML = """<nvidia_smi_log><gpu id="00000000:01:00.0"><product_name>NVIDIA H200</product_name><uuid>GPU-1</uuid>
<fb_memory_usage><total>143771 MiB</total><reserved>616 MiB</reserved><used>0 MiB</used><free>{free} MiB</free>
</fb_memory_usage></gpu></nvidia_smi_log>"""
READY = [
    "INFO 11-29 12:00:00 [utils.py:1] non-default args: {'model': 'm/m', 'gpu_memory_utilization': 0.9}",
    "INFO 11-29 12:00:02 [core.py:1] Initializing a V1 LLM engine (v0.26.0) with config: model='m/m', "
    "tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, enforce_eager=True)",
    "INFO 11-29 12:00:20 [r.py:1] Model loading took 15.27 GiB memory and 9.1 seconds",
    "INFO 11-29 12:00:30 [w.py:1] Available KV cache memory: 107.8 GiB",
    "INFO 11-29 12:00:31 [k.py:1] GPU KV cache size: 785,000 tokens",
    "INFO:     Application startup complete.",
]
SERVED = '127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK'
HEALTH = '127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK'


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose nvidia-smi prints what a file says; NVML finds no driver here."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    printed = tmp_path / "smi.xml"
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat {printed}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    printed.write_text(XML.format(free=12_000))
    return printed


def observed(tmp_path: Path, lines: list[str], *options: str) -> dict[str, Any]:
    log = tmp_path / "vllm.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    result = CliRunner().invoke(main, ["observe", "--log", str(log), "--dry-run", "--json", *options])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(next(line for line in result.output.splitlines() if line.startswith("{")))
    return found


def test_observe_reads_free_memory_of_a_ready_engine_from_the_gpu(gpu: Path, tmp_path: Path) -> None:
    """vLLM's log never names it; on the engine's host it is what the fullest GPU has free before any request."""
    found = observed(tmp_path, [*READY, HEALTH])
    assert found["measurements"]["free_at_ready_gib"] == round(12_000 / 1024, 3)
    assert found["hardware"]["memory_gib"] == round((143_771 - 616) / 1024, 2)
    assert found["hardware"]["driver_memory_gib"] == round(143_771 / 1024, 2)


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ([*READY, SERVED], ()),
        ([*READY, "Engine 000: Avg prompt throughput: 812.1 tokens/s, Avg generation throughput: 4.3 tokens/s"], ()),
        (READY, ("--no-gpu",)),
        (READY, ("--gpu-count", "2")),
        (READY, ("--gpu", "NVIDIA A100")),
        ([*READY[:-1], "EngineCore failed to start.", "torch.OutOfMemoryError: CUDA out of memory. Tried"], ()),
    ],
)
def test_free_memory_of_another_moment_is_not_taken(
    gpu: Path, tmp_path: Path, lines: list[str], options: tuple[str, ...]
) -> None:
    """After a request, of other GPUs than the engine's, or of an engine that is not ready it stays unknown."""
    assert observed(tmp_path, lines, *options)["measurements"]["free_at_ready_gib"] is None


def test_memory_that_the_engine_does_not_hold_is_not_its_own(gpu: Path, tmp_path: Path) -> None:
    """A GPU that is nearly empty does not hold the pool: the log is not of an engine that runs here now."""
    gpu.write_text(XML.format(free=143_000))
    assert observed(tmp_path, READY)["measurements"]["free_at_ready_gib"] is None


def test_only_the_newest_start_may_be_the_running_one(gpu: Path, tmp_path: Path) -> None:
    """An earlier start of the same log gets nothing of what is free now."""
    log = tmp_path / "vllm.log"
    again = [line.replace("11-29 12", "11-29 13") for line in READY]
    log.write_text("".join(f"{line}\n" for line in [*READY, *again]))
    result = CliRunner().invoke(main, ["observe", "--log", str(log), "--dry-run", "--json"])
    free = [json.loads(line)["measurements"]["free_at_ready_gib"] for line in result.output.splitlines()]
    assert free == [None, round(12_000 / 1024, 3)]


def test_imported_logs_get_nothing_of_this_host(gpu: Path, tmp_path: Path) -> None:
    """A log of elsewhere has nothing to do with this host's GPU."""
    log = tmp_path / "vllm.log"
    log.write_text("".join(f"{line}\n" for line in READY))
    result = CliRunner().invoke(main, ["import", str(log), "--dry-run", "--json", "--gpu", "NVIDIA H200"])
    assert json.loads(result.output.splitlines()[0])["measurements"]["free_at_ready_gib"] is None


@pytest.mark.parametrize(
    ("tail", "untouched"),
    [
        ([], False),
        ([b"The server is fired up and ready to roll!\n"], True),
        ([b"Prefill batch. #new-seq: 1\n", b"The server is fired up and ready to roll!\n", HEALTH.encode()], True),
        ([b"The server is fired up and ready to roll!\n", b"Decode batch. #running-req: 1\n"], False),
        ([b"Application startup complete.\n", b"Avg prompt throughput: 0.0 tokens/s\n"], True),
        ([b"Avg prompt throughput: 9.0 tokens/s\n"], False),
    ],
)
def test_an_engine_is_untouched_until_its_first_request(tail: list[bytes], untouched: bool) -> None:
    """The warm-up before the ready line does not count, nor do health checks and idle statistics."""
    assert is_untouched(tail) is untouched


def start(minutes_ago: float, **changes: object) -> Start:
    measured = {
        "pool_tokens": Sourced(785_000, "line 5"),
        "kv_cache_gib": Sourced(107.8, "line 4"),
        "startup_seconds": Sourced(60.0, "line 6"),
    }
    flags = {"gpu_memory_utilization": Sourced(0.9, "line 1"), "tensor_parallel_size": Sourced(1, "line 2")}
    known: dict[str, Any] = {
        "engine": "vllm",
        "outcome": "ready",
        "flags": flags,
        "measurements": measured,
        "facts": {"model_name": Sourced("m/m", "line 1")},
        "observed_at": datetime.now(timezone.utc) - timedelta(minutes=minutes_ago + 1),
    }
    return Start(**(known | changes))


def test_a_watch_reads_the_gpu_at_the_moment_of_readiness_only(tmp_path: Path) -> None:
    """A start that became ready just now has the free memory of now; an older one of the same journal has none."""
    held = {"gpu": "NVIDIA H200", "gpu_count": 1, "free_gib": 11.719, "held_gib": 128.7}
    held_by_gpu: Mapping[str, Sourced] = {name: Sourced(value, "this host") for name, value in held.items()}
    brought: list[Any] = []
    watch = Watch(
        BookmarkFile(tmp_path / "mark.json"),
        Extras(detected=held_by_gpu),
        lambda one: (brought.append(one) is None, "stored"),
        lambda _text: None,
        detect=lambda: held_by_gpu,
    )
    for minutes in (90, 0):
        watch._take(start(minutes))
    assert [one.measurements.free_at_ready_gib for one in brought] == [None, 11.719]
    assert not became_ready_now(start(0, outcome="failed"))
    assert not became_ready_now(start(0, observed_at=None))


def test_nvml_tells_what_the_driver_keeps_for_itself() -> None:
    """The framework's total is the driver's less what it reserves; an old driver or binding does not tell."""
    whole = FakeGpu("NVIDIA H200", "GPU-1", total_gib=143_771 / 1024, reserved_gib=616 / 1024)
    (gpu,) = nvml_gpus(FakeNvml([whole], tells_reserved=True))
    assert gpu.usable_gib == pytest.approx((143_771 - 616) / 1024)
    (old,) = nvml_gpus(FakeNvml([whole]))
    assert old.usable_gib is None
    (spark,) = nvml_gpus(FakeNvml([FakeGpu("NVIDIA GB10", "GPU-1", total_gib=None)], tells_reserved=True))
    assert spark.usable_gib is None
