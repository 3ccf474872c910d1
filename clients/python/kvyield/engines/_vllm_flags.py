"""vLLM's flags that matter to memory, under its own names."""

from __future__ import annotations

_NAMES = """

"""
MEMORY_FLAGS = frozenset(_NAMES.split())
"""Arguments that move the pool or the free memory, or that tell two deployments apart."""

ALIASES = {"max_seq_len": "max_model_len"}
"""Fields of the engine's config line under another name than the flag's."""

NESTED = {"compilation_config": ("cudagraph_capture_sizes", "max_cudagraph_capture_size", "cudagraph_mode")}
"""Fields of the config line that hold flags inside."""
