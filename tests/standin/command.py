"""The stand-in engine as a program: ``vllm serve MODEL --gpu-memory-utilization 0.9`` or ``sglang serve ...``.

It prints its log as engines do, serves at its ``--port`` until it is stopped, and keeps free memory in the file that
``STANDIN_FREE`` names: ``fake_nvml/pynvml.py`` reads it. ``STANDIN_CONFIG`` is JSON with fields of ``Config``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from standin.config import Config, Engine
from standin.memory import FreeMemoryFile
from standin.server import run

OPTIONS: dict[str, dict[str, tuple[str, type]]] = {
    "vllm": {
        "gpu-memory-utilization": ("fraction", float),
        "max-model-len": ("context_length", int),
        "max-num-seqs": ("max_running_requests", int),
        "tensor-parallel-size": ("tp_size", int),
        "max-num-batched-tokens": ("chunk_tokens", int),
        "port": ("port", int),
    },
    "sglang": {
        "mem-fraction-static": ("fraction", float),
        "context-length": ("context_length", int),
        "max-running-requests": ("max_running_requests", int),
        "tp-size": ("tp_size", int),
        "chunked-prefill-size": ("chunk_tokens", int),
        "model-path": ("model", str),
        "port": ("port", int),
    },
}
ONE_GPU: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B",
    "architecture": "Qwen3ForCausalLM",
    "tp_size": 1,
    "weights_gib": 15.3,
    "budget_bytes_per_token": 147_456,
    "target_bytes_per_token": 147_456,
    "speculative_algorithm": None,
    "context_length": 131_072,
    "startup_seconds": 1.0,
    "prefill_tokens_per_second": 500_000.0,
    "prompts_at_once": False,
}
"""A dense 8B model on one GPU: 36 layers, 8 KV heads of 128, bf16."""


def config_of(engine: Engine, words: Sequence[str]) -> Config:
    """Reads a command line's options; one that the stand-in does not know is an error, as with engines."""
    fields: dict[str, Any] = {**ONE_GPU, "engine": engine, "version": {"vllm": "0.26.0"}.get(engine, "0.5.12")}
    fields |= {"port": 8000 if engine == "vllm" else 30000, **json.loads(os.environ.get("STANDIN_CONFIG", "{}"))}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            fields["model"] = word
            continue
        name, equals, value = word[2:].replace("_", "-").partition("=")
        if name not in OPTIONS[engine]:
            sys.exit(f"error: unrecognized arguments: {word}")
        field, kind = OPTIONS[engine][name]
        fields[field] = kind(value if equals else rest.pop(0))
    return Config(**fields)


def main(arguments: Sequence[str]) -> None:
    """Starts, serves until it is killed, exits 1 when the start does not fit."""
    engine, words = cast(Engine, arguments[0]), list(arguments[1:])
    if words[:1] == ["serve"]:
        words.pop(0)
    config = config_of(engine, words)
    free = Path(os.environ["STANDIN_FREE"])
    memory = FreeMemoryFile(free)
    memory.write(0.0)  # nothing is allocated yet
    memory.close()
    free.with_suffix(".owner").write_text(str(os.getpid()))
    time.sleep(config.startup_seconds)
    run(config, Path("/dev/stdout"), free)


if __name__ == "__main__":
    main(sys.argv[1:])
