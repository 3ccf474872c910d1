"""The start-up logs and last words of the engines, in the format of the chosen version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from standin.config import Config


class Log:
    """An engine's log file, flushed at every line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, *lines: str) -> None:
        """Appends whole lines."""
        with self._lock:
            self._file.writelines(f"{line}\n" for line in lines)
            self._file.flush()


def prefill_line(config: Config, *, new: int, cached: int, usage: float) -> str:
    """What the engine logs for one prefilled chunk."""
    now = datetime.now().astimezone()
    if config.engine == "vllm":
        return (
            f"(APIServer pid=7) INFO {now:%m-%d %H:%M:%S} [loggers.py:271] Engine 000: GPU KV cache usage: {usage:.1%}"
        )
    text = (
        f"Prefill batch. #new-seq: 1, #new-token: {new}, #cached-token: {cached}, token usage: {usage:.2f}, "
        "#running-req: 0, #queue-req: 0, "
    )
    return f"[{now:%Y-%m-%d %H:%M:%S}{rank_tag(config, 0)}] {text}"


def oom_lines(config: Config) -> list[str]:
    """The last words of an engine that ran out of GPU memory while serving."""
    now = datetime.now().astimezone()
    oom = (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.12 GiB. GPU 0 has a total capacity of "
        f"{config.gpu_total_gib:.2f} GiB of which 402.06 MiB is free."
    )
    if config.engine == "vllm":
        prefix = f"(EngineCore pid=8) ERROR {now:%m-%d %H:%M:%S} [core.py:1100] "
        return [f"{prefix}EngineCore encountered a fatal error.", f"{prefix}{oom}"]
    prefix = f"[{now:%Y-%m-%d %H:%M:%S}{rank_tag(config, 0)}] "
    return [
        f"{prefix}Scheduler hit an exception: Traceback (most recent call last):",
        '  File "scheduler.py", line 2631, in run_scheduler_process',
        "    scheduler.event_loop_overlap()",
        oom,
        "",
        f"[{now:%Y-%m-%d %H:%M:%S}] Received sigquit from a child process. It usually means the child failed.",
    ]


def rank_tag(config: Config, rank: int) -> str:
    """SGLang's tag of a rank, which a single rank does not have."""
    return f" TP{rank}" if config.tp_size > 1 else ""


class Clock:
    """Stamps lines at a share of the start's duration, in the engine's own prefix."""

    def __init__(self, config: Config, began: datetime) -> None:
        self._config = config
        self._began = began

    def main(self, share: float, text: str) -> str:
        """A line of SGLang's main process."""
        return f"[{self._at(share):%Y-%m-%d %H:%M:%S}] {text}"

    def one(self, share: float, text: str) -> str:
        """A line of SGLang's rank 0."""
        return f"[{self._at(share):%Y-%m-%d %H:%M:%S}{rank_tag(self._config, 0)}] {text}"

    def ranks(self, share: float, text: str) -> Iterator[str]:
        """The same line from every rank of SGLang."""
        for rank in range(self._config.tp_size):
            yield f"[{self._at(share):%Y-%m-%d %H:%M:%S}{rank_tag(self._config, rank)}] {text}"

    def vllm(self, share: float, text: str, process: str = "EngineCore pid=8", source: str = "core.py:116") -> str:
        """A line of vLLM."""
        return f"({process}) INFO {self._at(share):%m-%d %H:%M:%S} [{source}] {text}"

    def _at(self, share: float) -> datetime:
        return self._began + timedelta(seconds=share * self._config.startup_seconds)
