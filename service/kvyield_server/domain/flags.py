"""What each engine calls the flags that kvyield reads and advises, and how they are written on a command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from kvyield_server.domain.observation import FRACTION_FLAG, EngineName, Flags, Scalar
from kvyield_server.domain.scalars import as_count, as_number


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagNames:
    """One engine's own names for the roles that flags play; None where the engine has no such flag."""

    fraction: str
    context: str
    requests: str
    chunk: str
    tensor_parallel: str
    data_parallel: str | None
    kv_dtype: str
    half_kv: Scalar
    graph_batch: str | None
    graphs_off: str | None
    speculation: str | None
    program: tuple[str, ...]
    model_option: str | None
    underscores: bool = False


NAMES: Mapping[EngineName, FlagNames] = MappingProxyType(
    {
        EngineName.SGLANG: FlagNames(
            fraction=FRACTION_FLAG[EngineName.SGLANG],
            context="context_length",
            requests="max_running_requests",
            chunk="chunked_prefill_size",
            tensor_parallel="tp_size",
            data_parallel="dp_size",
            kv_dtype="kv_cache_dtype",
            half_kv="fp8_e4m3",
            graph_batch="cuda_graph_max_bs",
            graphs_off="disable_cuda_graph",
            speculation="speculative_algorithm",
            program=("python3", "-m", "sglang.launch_server"),
            model_option="--model-path",
        ),
        EngineName.VLLM: FlagNames(
            fraction=FRACTION_FLAG[EngineName.VLLM],
            context="max_model_len",
            requests="max_num_seqs",
            chunk="max_num_batched_tokens",
            tensor_parallel="tensor_parallel_size",
            data_parallel="data_parallel_size",
            kv_dtype="kv_cache_dtype",
            half_kv="fp8",
            graph_batch="max_cudagraph_capture_size",
            graphs_off="enforce_eager",
            speculation="speculative_config",
            program=("vllm", "serve"),
            model_option=None,
        ),
        EngineName.TENSORRT_LLM: FlagNames(
            fraction=FRACTION_FLAG[EngineName.TENSORRT_LLM],
            context="max_seq_len",
            requests="max_batch_size",
            chunk="max_num_tokens",
            tensor_parallel="tp_size",
            data_parallel=None,
            kv_dtype="kv_cache_dtype",
            half_kv="fp8",
            graph_batch=None,
            graphs_off=None,
            speculation=None,
            program=("trtllm-serve",),
            model_option=None,
            underscores=True,
        ),
        EngineName.LMDEPLOY: FlagNames(
            fraction=FRACTION_FLAG[EngineName.LMDEPLOY],
            context="session_len",
            requests="max_batch_size",
            chunk="max_prefill_token_num",
            tensor_parallel="tp",
            data_parallel="dp",
            kv_dtype="quant_policy",
            half_kv=8,
            graph_batch=None,
            graphs_off=None,
            speculation=None,
            program=("lmdeploy", "serve", "api_server"),
            model_option=None,
        ),
    }
)

_ROLES = ("fraction", "context", "requests", "chunk", "tensor_parallel", "data_parallel")
_SPELLED = {(EngineName.TENSORRT_LLM, "free_gpu_memory_fraction"): "--kv_cache_free_gpu_memory_fraction"}


def translated(engine: EngineName, flags: Flags) -> dict[str, Scalar]:
    """Return ``flags`` under the engine's own names: another engine's name for the same role becomes this engine's."""
    aliases = _aliases(engine)
    return {aliases.get(key, key): value for key, value in flags.items()}


@lru_cache(maxsize=len(EngineName))
def _aliases(engine: EngineName) -> Mapping[str, str]:
    own = NAMES[engine]
    roles = [role for role in _ROLES if getattr(own, role)]
    others = {getattr(names, role): getattr(own, role) for names in NAMES.values() for role in roles}
    return {**others, **{getattr(own, role): getattr(own, role) for role in roles}}


def number(flags: Flags, key: str | None) -> float | None:
    """Return the flag as a finite number, or None when it is off, unknown or not a number."""
    return as_number(flags.get(key)) if key else None


def positive(flags: Flags, key: str | None) -> int | None:
    """Return the flag as a positive whole number, or None (engines use -1 and 0 for "off" or "choose yourself")."""
    return as_count(flags.get(key)) if key else None


def flag_words(engine: EngineName, flags: Flags) -> tuple[str, ...]:
    """Return the words of a command line that sets ``flags``; flags that are off are left out."""
    words: list[str] = []
    for key, value in flags.items():
        if value is None or value is False:
            continue
        words.append(_SPELLED.get((engine, key)) or f"--{key if NAMES[engine].underscores else key.replace('_', '-')}")
        if value is not True:
            words.append(_spelled(value))
    return tuple(words)


def command_line(engine: EngineName, flags: Flags) -> str:
    """Return ``flags`` as one shell-safe line, as the engine's own command line takes them."""
    return shlex.join(flag_words(engine, flags))


def program_words(engine: EngineName, model_name: str) -> tuple[str, ...]:
    """Return how the engine's server is started for a model, without any flags."""
    names = NAMES[engine]
    option = (names.model_option,) if names.model_option else ()
    return (*names.program, *option, model_name)


def _spelled(value: float | str) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
