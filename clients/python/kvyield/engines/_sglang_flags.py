"""SGLang's flags that matter to memory, under its own names."""

from __future__ import annotations

_NAMES = """

"""
MEMORY_FLAGS = frozenset(_NAMES.split())
"""Fields of ``ServerArgs`` that move the pool or the free memory, or that tell two deployments apart."""

_DTYPES = {
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float8_e5m2fnuz": "fp8_e5m2",
}


def dtype_flag(torch_name: str) -> str:
    """The value of ``--kv-cache-dtype`` for a dtype as torch names it."""
    return _DTYPES.get(torch_name, torch_name)
