"""A stand-in engine with a command line of its own: flags decide pool and free memory, as an engine's do.

``STANDIN`` in the environment holds JSON: fields of `Config`, with ``faults``, and of `Ways`. ``STANDIN_GPUS``
names the GPUs that it shares with the starts before and after it (see `standin.gpus`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from standin.config import Config, Engine, Faults
from standin.gpus import Gpus
from standin.logs import Log
from standin.logs_sglang import sglang_lines
from standin.logs_vllm import vllm_lines
from standin.memory import FreeMemoryFile, Memory, plan
from standin.server import Handler, Server
from standin.state import State

DRIVER_GIB = 1.2718
"""What the process's own context takes before the first line that shows free memory."""
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "sglang": {
        "fraction": ("--mem-fraction-static",),
        "context_length": ("--context-length", "--max-model-len"),
        "max_running_requests": ("--max-running-requests",),
        "tp_size": ("--tp-size", "--tensor-parallel-size", "--tp"),
        "chunk_tokens": ("--chunked-prefill-size",),
        "model": ("--model-path", "--model"),
        "max_total_tokens": ("--max-total-tokens",),
    },
    "vllm": {
        "fraction": ("--gpu-memory-utilization",),
        "context_length": ("--max-model-len",),
        "max_running_requests": ("--max-num-seqs",),
        "tp_size": ("--tensor-parallel-size", "-tp"),
        "chunk_tokens": ("--max-num-batched-tokens",),
    },
}


@dataclass
class Ways:
    """How a start goes, beside what the memory model says."""

    start_seconds: float = 0.0  # really waited before it is ready
    dies_at_once: bool = False  # before any line
    ignores_term: int = 0  # so many SIGTERMs are ignored
    ignores_fraction: float | None = None  # this is run with, whatever was given
    is_silent: bool = False  # nothing is logged
    oom_above_fraction: float | None = None  # runs out of memory at start above it
    exit_status: int = 0  # on SIGTERM


def main(engine: Engine) -> None:
    """Runs one start until it is ended."""
    told: dict[str, Any] = json.loads(os.environ.get("STANDIN", "{}"))
    fields = {field.name for field in dataclasses.fields(Ways)}
    ways = Ways(**{name: value for name, value in told.items() if name in fields})
    if ways.dies_at_once:
        sys.exit(3)
    given, port = _given(engine)
    faults = Faults(**told.pop("faults", {}))
    config = Config(
        **{**_DEFAULTS[engine], **{n: v for n, v in told.items() if n not in fields}, **given}, faults=faults
    )
    config.engine = engine
    if ways.ignores_fraction is not None:
        config.fraction = ways.ignores_fraction
    _serve(config, ways, port)


_DEFAULTS: dict[str, dict[str, Any]] = {
    "sglang": {"startup_seconds": 0.2, "max_running_requests": 48, "context_length": 131_072},
    "vllm": {
        "version": "0.26.0",
        "speculative_algorithm": None,
        "startup_seconds": 0.2,
        "fraction": 0.9,
        "max_running_requests": 256,
        "context_length": 32_768,
    },
}


def _given(engine: Engine) -> tuple[dict[str, Any], int]:
    parser = argparse.ArgumentParser(prog=engine)
    if engine == "vllm":
        parser.add_argument("serve", choices=["serve"])
        parser.add_argument("model", nargs="?")
        parser.add_argument("--model", dest="model_option")
    types = {"fraction": float, "model": str}
    for name, spellings in OPTIONS[engine].items():
        parser.add_argument(*spellings, dest=name, type=types.get(name, int))
    parser.add_argument("--port", type=int, default=30000 if engine == "sglang" else 8000)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--kv-cache-dtype")
    parser.add_argument("--enable-metrics", action="store_true")
    found = vars(parser.parse_args([word.replace("_", "-") if word[:2] == "--" else word for word in sys.argv[1:]]))
    port = found.pop("port")
    model = found.pop("model", None) or found.pop("model_option", None)
    for name in ("serve", "model_option", "host", "kv_cache_dtype", "enable_metrics"):
        found.pop(name, None)
    return {name: value for name, value in {**found, "model": model}.items() if value is not None}, port


def _serve(config: Config, ways: Ways, port: int) -> None:
    _take_signals(ways)
    file = _memory(config)
    config.port = port
    server = Server(("127.0.0.1", port), Handler, bind_and_activate=False)
    server.allow_reuse_address = True
    server.server_bind()
    allocated = plan(config)
    if ways.oom_above_fraction is not None and config.fraction > ways.oom_above_fraction:
        allocated = dataclasses.replace(allocated, at_ready_gib=-1.0)
    lines = list(
        (vllm_lines if config.engine == "vllm" else sglang_lines)(config, allocated, datetime.now().astimezone())
    )
    log = _Quiet() if ways.is_silent else _Output(sys.stdout if config.engine == "vllm" else sys.stderr)
    time.sleep(ways.start_seconds / 2)
    log.write(*lines[:-1])
    file.write(max(allocated.at_ready_gib, 0.0))
    time.sleep(ways.start_seconds / 2)
    log.write(lines[-1])
    too_small = config.engine == "vllm" and allocated.pool_tokens < config.context_length
    if too_small or not allocated.pool_tokens or allocated.at_ready_gib < 0:
        os._exit(1)
    Handler.state = State(config, allocated, Memory(config, allocated.at_ready_gib, file), log)
    server.server_activate()
    server.serve_forever()


def _memory(config: Config) -> FreeMemoryFile:
    """Takes the GPUs; what is not free of them is not free to this start."""
    told = json.loads(os.environ["STANDIN_GPUS"])
    gpus = Gpus(Path(told["folder"]), told["count"], told["total_gib"], told["release_seconds"])
    free = min(gpus.read())
    config.tp_size = told["count"]
    config.free_before_load_gib = free - DRIVER_GIB
    return gpus.take()


def _take_signals(ways: Ways) -> None:
    left = ways.ignores_term

    def take(number: int, _frame: object) -> None:
        nonlocal left
        if left > 0:
            left -= 1
            return
        os._exit(ways.exit_status)

    signal.signal(signal.SIGTERM, take)
    signal.signal(signal.SIGINT, take)


class _Output(Log):
    """The engine's log on one of its own streams."""

    def __init__(self, stream: TextIO) -> None:
        self._file = stream
        self._lock = threading.Lock()


class _Quiet(Log):
    """No log at all."""

    def __init__(self) -> None:
        pass

    def write(self, *lines: str) -> None:
        """Drops the lines."""
