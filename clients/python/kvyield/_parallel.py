"""How many GPUs an engine uses, from its parallel flags."""

from __future__ import annotations

from collections.abc import Mapping

from kvyield.engines import Sourced

_FACTORS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "sglang": (("tp_size", "tp"), ("pp_size",)),
    "vllm": (("tensor_parallel_size",), ("pipeline_parallel_size",), ("data_parallel_size",)),
    "tensorrt-llm": (("tensor_parallel_size", "tp_size"), ("pipeline_parallel_size", "pp_size")),
    "lmdeploy": (("tp",), ("dp",)),
}


def gpu_count_of(engine: str, flags: Mapping[str, object]) -> Sourced | None:
    """The product of the parallel sizes, or None when the first of them is unknown.

    SGLang's data parallel ranks have GPUs of their own unless DP attention puts them inside the tensor parallel group.
    """
    factors = list(_FACTORS[engine])
    if engine == "sglang" and not flags.get("enable_dp_attention"):
        factors.append(("dp_size",))
    known = [found for names in factors if (found := _first(flags, names))]
    if not known or known[0][0] not in factors[0]:
        return None
    count = 1
    for _, size in known:
        count *= size
    return Sourced(count, " x ".join(f"{name} {size}" for name, size in known))


def _first(flags: Mapping[str, object], names: tuple[str, ...]) -> tuple[str, int] | None:
    for name in names:
        value = flags.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return name, value
    return None
