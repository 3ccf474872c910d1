"""The trial kit, on the stand-in engine everywhere and on a real GPU where there is one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import standin
from gpu.engine import EngineError, address_of, command_of, with_advice
from gpu.sampler import Sampler, SamplerError, Trace, read_trace
from gpu.trial import main

TESTS = Path(standin.__file__).resolve().parent.parent
IDLE_GIB = 94.9


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with one stand-in GPU and the programs ``vllm`` and ``sglang``; returns their folder."""
    free = tmp_path / "free"
    standin.FreeMemoryFile(free, 1).close()
    modules = [str(TESTS / "standin" / "fake_nvml"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(modules))
    monkeypatch.setenv("STANDIN_FREE", str(free))
    monkeypatch.setenv("STANDIN_IDLE_GIB", str(IDLE_GIB))
    for engine in ("vllm", "sglang"):
        program = tmp_path / engine
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m standin.command {engine} "$@"\n')
        program.chmod(0o755)
    return tmp_path


def trial(host: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Runs a trial; its exit code, its result and its report."""
    out = host / "out"
    code = main(["--out", str(out), *arguments])
    return code, json.loads((out / "report.json").read_text()), (out / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "fraction"), [("vllm", "--gpu-memory-utilization"), ("sglang", "--mem-fraction-static")]
)
def test_a_whole_trial_on_the_stand_in_engine(
    host: Path, engine: str, fraction: str, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts, each prompt served and sampled twice alike, the advice reached, and the engine gone at the end; with
    the lengths of the trial itself, and with one that was asked for."""
    monkeypatch.setattr("gpu.trial.SETTLE_SECONDS", 0.2)
    model = ["Qwen/Qwen3-8B"] if engine == "vllm" else ["--model-path", "Qwen/Qwen3-8B"]
    command = [str(host / engine), "serve", *model, f"{fraction}=0.70", "--port", str(free_port)]
    lengths = [1_000, 8_000, 60_000] if engine == "vllm" else [60_000]
    given = [] if engine == "vllm" else ["--prompt-tokens", *map(str, lengths)]
    code, result, report = trial(host, *given, "--", *command)
    first, second = result["starts"]
    assert code == 0, report
    prompts = [(one["prompt_tokens"], one["concurrent"]) for one in first["prompts"]]
    assert prompts == [*((length, 1) for length in lengths), (60_000, 4)]
    for one in [*first["prompts"], *second["prompts"]]:
        assert one["verification"]["passed"], report
        assert one["verification"]["answer"] == "right"
        assert one["verification"]["lowest_free_gib"] == pytest.approx(one["sampler_lowest_gib"], abs=0.01), report
    pool = second["observation"]["measurements"]["pool_tokens"]
    predicted = result["advice"]["prediction"]["pool_tokens"]
    assert pool >= result["target_tokens"] * result["concurrent"] > first["observation"]["measurements"]["pool_tokens"]
    assert pool == pytest.approx(predicted["median"], rel=0.01)
    assert second["observation"]["recommendation_id"] == result["advice"]["id"]
    assert result["advice_after"]["changes"] == []
    assert result["readings"] > 500
    assert "NO" not in report, report
    assert _is_stopped(host)


def test_a_start_that_dies_is_recorded_and_ends_the_trial(host: Path, free_port: int) -> None:
    """Exit code 1, the report names what happened, and the refused start is in it."""
    command = [str(host / "vllm"), "serve", "M", "--gpu-memory-utilization", "0.2", "--port", str(free_port)]
    code, result, report = trial(host, "--", *command)
    assert code == 1
    assert result["starts"][0]["observation"]["outcome"] == "refused"
    assert "ended early" in report


def test_no_command_port_or_folder_of_its_own_is_wrong_usage(
    host: Path, capsys: pytest.CaptureFixture[str], free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is exit code 2 with what would be right, and nothing was started."""
    monkeypatch.delenv("ENGINE_COMMAND", raising=False)
    assert main(["--out", str(host / "a")]) == 2
    assert "give the command that starts the engine" in capsys.readouterr().err
    assert main(["--out", str(host / "a"), "--", str(host / "vllm"), "serve", "M"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["--out", str(host / "b"), "--", str(host / "vllm"), "serve", "M", "--port", "eighty"]) == 2
    assert "--port of the engine command is 'eighty'" in capsys.readouterr().err
    assert main(["--out", str(host / "c"), "--", str(host / "absent"), "serve", "--port", str(free_port)]) == 1
    assert "cannot be started" in capsys.readouterr().err


def test_a_port_that_is_taken_stops_the_trial_before_the_engine(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else another engine's figures would be taken for this one's."""
    with standin.start("vllm", tp_size=1) as other:
        command = [str(host / "vllm"), "serve", "M", "--port", other.url.rpartition(":")[2]]
        assert main(["--out", str(host / "out"), "--", *command]) == 1
    assert "serves at http://127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "environment", "address"),
    [
        ("vllm serve M", {}, "http://127.0.0.1:8000"),
        ("A=1 B='x y' python -m sglang.launch_server --model-path M", {"A": "1", "B": "x y"}, "http://127.0.0.1:30000"),
        ("vllm serve M --port=81", {}, "http://127.0.0.1:81"),
        ("vllm serve M --port 82 --served-model-name port", {}, "http://127.0.0.1:82"),
    ],
)
def test_the_address_and_environment_of_a_command(text: str, environment: dict[str, str], address: str) -> None:
    """Variables before the command are its environment; the port is the flag's or the engine's default."""
    found, words = command_of(text)
    assert found == environment
    assert address_of(words) == address


@pytest.mark.parametrize("text", ["", "  ", "A=1", "vllm 'serve"])
def test_text_that_is_no_command_is_refused(text: str) -> None:
    """With words that say what would be right."""
    with pytest.raises(EngineError, match=r"engine command|starts the engine"):
        command_of(text)


def test_an_advice_changes_only_its_flags() -> None:
    """The rest of the command stays as it was written; a command that no flag can be put into is refused."""
    words = ["vllm", "serve", "M", "--gpu_memory_utilization=0.7", "--enforce-eager"]
    changes = [{"flag": "gpu_memory_utilization", "to": 0.9}, {"flag": "max_model_len", "to": 4096}]
    assert with_advice({"A": "1"}, words, changes) == (
        {"A": "1"},
        ["vllm", "serve", "M", "--gpu_memory_utilization=0.9", "--enforce-eager", "--max-model-len", "4096"],
    )
    with pytest.raises(EngineError, match="sh -c"):
        with_advice({}, ["sh", "-c", "vllm serve M"], changes)
    with pytest.raises(EngineError, match="which engine"):
        with_advice({}, ["true"], changes)


def test_the_lowest_of_a_window_holds_what_was_so_when_it_began() -> None:
    """Readings are kept on change only: the one before the window counts, one after it does not, other GPUs neither."""
    gib = 1 << 30
    free = [[9 * gib, 1], [5 * gib, 1], [8 * gib, 1], [2 * gib, 1]]
    trace = Trace(["G", "H"], [10 * gib] * 2, [1.0, 2.0, 3.0, 4.0], free, 4, 0.01)
    assert trace.lowest_gib(2.5, 3.5, [0]) == 5.0
    assert trace.lowest_gib(3.0, 3.9, [0]) == 8.0
    assert trace.free_gib(4.5, [0]) == 2.0
    with pytest.raises(SamplerError):
        trace.at(0.5)


def test_the_sampler_sees_a_dip_of_30_ms_and_ends_with_its_parent(host: Path) -> None:
    """It reads every 10 ms, says so, and a parent that is killed takes it along."""
    file = host / "trace"
    memory = standin.FreeMemoryFile(host / "free")
    (host / "free.owner").write_text(str(os.getpid()))
    memory.write(50.0)
    with Sampler(file) as sampler:
        time.sleep(0.2)
        began = time.monotonic()
        memory.write(7.25)
        time.sleep(0.03)
        memory.write(50.0)
        time.sleep(0.2)
        assert sampler.trace().lowest_gib(began, time.monotonic(), [0]) == 7.25
        assert sampler.trace().free_gib(time.monotonic(), [0]) == 50.0
        time.sleep(1.2)
    trace = read_trace(file)
    assert trace.readings > 80
    assert trace.names == ["NVIDIA RTX PRO 6000 Blackwell Server Edition"]
    memory.close()
    code = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
from gpu.sampler import Sampler
with Sampler(Path({str(host / "orphan")!r})) as sampler:
    print(sampler.pid, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    end = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_without_nvml_the_trial_says_so(
    host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and NVML's own words, before the engine is started."""
    (host / "pynvml.py").write_text(
        "class NVMLError(Exception):\n    pass\ndef nvmlInit():\n    raise NVMLError('Driver Not Loaded')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(host))
    assert main(["--out", str(host / "out"), "--", str(host / "vllm"), "serve", "M"]) == 2
    assert "NVML: Driver Not Loaded" in capsys.readouterr().err


def has_gpu() -> bool:
    """Whether NVML finds a real GPU here."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return bool(pynvml.nvmlDeviceGetCount())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    not has_gpu() or not os.environ.get("ENGINE_COMMAND"),
    reason="NO REAL GPU WAS TRIED: this needs an NVIDIA GPU and ENGINE_COMMAND='vllm serve ...' (docs/gpu-trial.md)",
)
def test_a_whole_trial_on_a_real_gpu(tmp_path: Path) -> None:
    """Prompts are served, the client's lowest free memory is the sampler's, and the pool is what was predicted."""
    options = ["--no-answer-check"] if "dummy" in os.environ["ENGINE_COMMAND"] else []
    assert main(["--out", str(tmp_path / "out"), *options]) == 0
    result = json.loads((tmp_path / "out" / "report.json").read_text())
    assert len(result["starts"]) == 2
    for one in [prompt for start in result["starts"] for prompt in start["prompts"]]:
        assert one["verification"]["passed"]
        assert one["verification"]["lowest_free_gib"] == pytest.approx(one["sampler_lowest_gib"], abs=0.01)
    pool = result["starts"][1]["observation"]["measurements"]["pool_tokens"]
    assert pool == pytest.approx(result["advice"]["prediction"]["pool_tokens"]["median"], rel=0.01)


@pytest.fixture
def free_port() -> int:
    """A port that nothing listens on now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_stopped(host: Path) -> bool:
    """Whether the stand-in engine's process is gone."""
    try:
        os.kill(int((host / "free.owner").read_text()), 0)
    except ProcessLookupError:
        return True
    return False
