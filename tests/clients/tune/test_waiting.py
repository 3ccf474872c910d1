"""What tune waits for: memory, requests in flight."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvyield._engine_http import EngineUnreachableError
from kvyield.cli._tuning import Site
from kvyield.config import load_settings
from kvyield.gpu import Gpu, GpuProcess
from kvyield.processes import family
from kvyield.tune.waiting import Memory, Pause, StoppedError, in_flight, wait_until_idle


class Free:
    """Free memory that rises at the given looks."""

    def __init__(self, *gib: float) -> None:
        self._gib = list(gib)

    def __call__(self) -> list[float]:
        return [self._gib.pop(0) if len(self._gib) > 1 else self._gib[0]]


def test_memory_is_waited_for_until_what_was_known_to_be_free_is_free() -> None:
    """Half a GiB or one per cent less is as good."""
    memory = Memory(Free(10.0, 10.0, 10.0, 94.6), Pause(), lambda _: None)
    memory.note_free(95.0)
    memory.wait()
    assert (memory.is_held, memory.now()) == (False, 94.6)


def test_the_wait_for_memory_is_bounded_and_remembered() -> None:
    """What is started then is started on held memory."""
    said: list[str] = []
    memory = Memory(Free(10.0), Pause(), said.append, seconds=0.3)
    memory.note_free(95.0)
    memory.wait()
    assert memory.is_held
    assert "only 10.0 of 95.0 GiB are free" in said[-1]


def test_an_engine_that_found_less_than_those_before_was_not_alone() -> None:
    """By its own figure; what nobody knows says nothing."""
    memory = Memory(lambda: None, Pause(), lambda _: None)
    assert not memory.is_less(10.0)
    memory.note_before_load(93.7)
    assert [memory.is_less(gib) for gib in (None, 93.6, 92.0)] == [False, False, True]
    memory.wait()
    assert not memory.is_held


def test_a_signal_ends_a_wait_unless_it_is_shielded() -> None:
    """Putting back is finished first."""
    pause = Pause()
    pause.stop(15)
    with pytest.raises(StoppedError):
        pause.sleep(10)
    pause.is_shielded = True
    pause.sleep(0.01)
    pause.check()


@pytest.mark.parametrize(
    ("answers", "flushed", "count"),
    [
        (
            {"/metrics": b'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_waiting{engine="0"} 1.0\n'},
            None,
            3,
        ),
        ({"/metrics": b"sglang:num_running_reqs 0.0\nsglang:num_queue_reqs 0.0\n"}, False, 0),
        ({"/metrics": b"[]", "/prometheus/metrics": b"trtllm_num_requests_running 4.0\n"}, None, 4),
        ({}, True, 0),
        ({}, False, 1),
        ({}, None, None),
    ],
)
def test_requests_in_flight_by_what_an_engine_tells(
    answers: dict[str, bytes], flushed: bool | None, count: int | None
) -> None:
    """Its gauges, else whether SGLang lets its cache be flushed, else nothing."""
    assert in_flight(lambda path: (200, answers[path]) if path in answers else (404, b""), lambda: flushed) == count


def test_an_engine_that_does_not_answer_serves_nobody() -> None:
    """It may be restarted."""

    def get(_path: str) -> tuple[int, bytes]:
        raise EngineUnreachableError("refused")

    assert in_flight(get, lambda: None) == 0


def test_requests_are_waited_for_and_counted_at_the_end() -> None:
    """The wait is said once."""
    left, said = [3, 2, 0], list[str]()
    assert wait_until_idle(lambda: left.pop(0), 5, Pause(), said.append) == 0
    assert len(said) == 1
    assert wait_until_idle(lambda: 2, 0.1, Pause(), said.append) == 2


def test_a_family_is_a_process_with_its_descendants() -> None:
    """Workers hold the GPU, not the process that was started."""
    script = "import subprocess, sys; p = subprocess.Popen(['sleep', '30']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        found = family(process.pid)
        os.kill(worker, 9)
        process.kill()
    assert found == {process.pid, worker}


def test_what_is_free_without_an_engine_is_told_by_what_its_processes_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the fullest GPU; another process's share stays taken; None where the driver names no process."""
    own = GpuProcess(os.getpid(), "vllm", 60.0)
    gpus = [Gpu(0, "L4", 95.0, 30.0, processes=(own, GpuProcess(1, "x", 4.0))), Gpu(1, "L4", 95.0, 35.0)]
    site = Site({"server": "http://127.0.0.1:1", "no_gpu": False}, load_settings(environment={"HOME": str(Path.cwd())}))
    monkeypatch.setattr("kvyield.gpu.find_gpus", lambda: gpus)
    assert site.free_without(os.getpid()) == 35.0
    assert site.free_without(2**22 + 1) is None
