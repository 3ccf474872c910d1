"""What the flags of an engine may be: any JSON scalar, known ones typed and bounded, secrets never."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import isfinite
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kvyield_server.domain.facts.observation import FRACTION_FLAG, EngineName, Scalar
from kvyield_server.schemas.common import Fraction
from kvyield_server.schemas.secrets import looks_secret
from kvyield_server.schemas.strict import Fault, pointer_to, shown

FlagsIn = dict[str, Scalar]
MAX_FLAGS = 500
MAX_TEXT = 16_000
_FRACTION_FLAGS = tuple(FRACTION_FLAG.values())
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 4_096, 200
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,119}")


def _whole(low: int, high: int, note: str = "") -> tuple[Any, str]:
    return Annotated[int, Meta(ge=low, le=high)], f"a whole number from {low:,} to {high:,}{note}"


_MILLION, _BILLION, _TRILLION = 10**6, 10**9, 10**12
_SIZES = ("tp_size", "pp_size", "dp_size", "ep_size", "tp", "pp", "dp", "page_size", "block_size", "nnodes")
_VLLM_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size")
_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_batch_size", "max_prefill_tokens", "max_num_tokens")
_COUNTS = ("max_running_requests", "speculative_num_steps", "speculative_num_draft_tokens", "num_speculative_tokens")
_GRAPHS = ("cuda_graph_max_bs", "max_cudagraph_capture_size")
_TEXTS = ("kv_cache_dtype", "dtype", "quantization", "speculative_algorithm", "attention_backend")
_SWITCHES = ("enforce_eager", "disable_cuda_graph", "enable_dp_attention", "disable_radix_cache", "trust_remote_code")
_FRACTIONS = ("mem_fraction_static", "gpu_memory_utilization", "free_gpu_memory_fraction")

_KNOWN: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(_FRACTIONS, (Fraction, "a fraction from 0.001 to 1")),
    "cache_max_entry_count": (
        Annotated[float, Meta(ge=0.001, le=_BILLION)],
        f"a fraction from 0.001 to 1, or a number of blocks to {_BILLION:,}",
    ),
    **dict.fromkeys((*_SIZES, *_VLLM_SIZES, *_LIMITS, "max_seq_len", "session_len"), _whole(1, _BILLION)),
    **dict.fromkeys(("max_total_tokens", "num_gpu_blocks_override"), _whole(1, _TRILLION)),
    **dict.fromkeys(("context_length", "max_model_len"), _whole(-1, _BILLION, " (-1: the engine's choice)")),
    "chunked_prefill_size": _whole(-1, _BILLION, " (-1: off)"),
    **dict.fromkeys((*_COUNTS, *_GRAPHS), _whole(0, _BILLION)),
    **dict.fromkeys(_TEXTS, (Annotated[str, Meta(min_length=1, max_length=200)], "a text of 1 to 200 characters")),
    **dict.fromkeys(_SWITCHES, (bool, "true or false")),
}

_BYTES = ("kv_cache_memory_bytes", "kv_cache_memory", "max_gpu_total_bytes")
_ASKED: Mapping[str, tuple[Any, str]] = {
    **_KNOWN,
    **dict.fromkeys((*_SIZES, *_VLLM_SIZES), _whole(1, 65_536)),
    **dict.fromkeys(("max_num_seqs", "max_batch_size"), _whole(1, _MILLION)),
    **dict.fromkeys((*_COUNTS, *_GRAPHS), _whole(0, _MILLION)),
    **dict.fromkeys(("max_tokens", "kv_cache_max_tokens"), _whole(1, _TRILLION)),
    **dict.fromkeys(_BYTES, _whole(1, 2**53, " of bytes, without a unit")),
}
"""Flags to predict for are typed in, and were not accepted by an engine as those of a start were: what sizes
the pool by itself must be a number that counts."""


KV_DTYPES: Mapping[EngineName, tuple[str, ...]] = {
    EngineName.SGLANG: ("auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1"),
    EngineName.VLLM: (
        *("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"),
        *("int8_per_token_head", "fp8_per_token_head", "nvfp4"),
        *("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
    ),
    EngineName.TENSORRT_LLM: ("auto", "float16", "bfloat16", "fp8", "nvfp4", "int8"),
    EngineName.LMDEPLOY: ("auto", "0", "4", "8", "int4", "int8", "fp8"),
}
"""What each engine takes for the type of its KV cache, over its versions: sglang server_args.py, vllm
config/cache.py (CacheDType), tensorrt_llm llmapi KvCacheConfig.dtype, lmdeploy --quant-policy by number or type."""


def kv_dtype_fault(value: str | None, engine: EngineName | None, pointer: str) -> Iterator[Fault]:
    """Yield a fault when no version of the engine takes that type; where no engine is named, when none does."""
    asked = EngineName if engine is None else (engine,)
    known = tuple(dict.fromkeys(name for each in asked for name in KV_DTYPES[each]))
    if value is not None and value not in known:
        who = "the engines take" if engine is None else f"{engine} takes"
        yield Fault(pointer, f"kv_cache_dtype is {shown(value)}; {who} {', '.join(known)}.")


def flag_faults(flags: Mapping[str, Any], pointer: str) -> Iterator[Fault]:
    """Yield what is wrong with flags, by name; a secret's value is never repeated."""
    if len(flags) > MAX_FLAGS:
        yield Fault(pointer, f"flags has {len(flags)} keys; at most {MAX_FLAGS} are kept.")
        return
    for name, value in flags.items():
        if detail := _fault(name, value):
            yield Fault(pointer + pointer_to(name), detail)


def asked_faults(flags: Mapping[str, Any], engine: EngineName | None, pointer: str) -> Iterator[Fault]:
    """Yield what is wrong with flags to predict for: as ``flag_faults``, in closer bounds, and the KV cache's type."""
    yield from flag_faults(flags, pointer)
    for name, value in flags.items():
        if not _fault(name, value) and (detail := _known_fault(name, value, _ASKED)):
            yield Fault(pointer + pointer_to(name), detail)
    dtype = flags.get("kv_cache_dtype")
    if isinstance(dtype, str) and not _fault("kv_cache_dtype", dtype):
        yield from kv_dtype_fault(dtype, engine, f"{pointer}/kv_cache_dtype")


def fraction_fault(flags: Mapping[str, Any], engine: EngineName, pointer: str) -> Iterator[Fault]:
    """Yield a fault when the engine's fraction flag is not given."""
    name = FRACTION_FLAG[engine]
    if flags.get(name) is None:
        detail = f"{name} is needed: it is the fraction flag of {engine}, as the engine resolved it."
        yield Fault(pointer + pointer_to(name), detail)


def normalised(flags: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return flags with whole-numbered fractions as floats, so that 1 and 1.0 are the same content."""
    result = dict(flags)
    for name in _FRACTION_FLAGS:
        value = result.get(name)
        if isinstance(value, int):
            result[name] = float(value)
    return result


def _fault(name: str, value: Any) -> str | None:
    """Hosts send the same flags again and again, so short ones are judged once."""
    if len(name) > _LONGEST_REMEMBERED or (isinstance(value, str) and len(value) > _LONGEST_REMEMBERED):
        return _judged(name, value)
    try:
        return _remembered(name, value)
    except TypeError:  # a list or an object
        return _judged(name, value)


def _judged(name: str, value: Any) -> str | None:
    return _name_fault(name) or _value_fault(name, value)


_remembered = lru_cache(_MOST_REMEMBERED, typed=True)(_judged)


def _name_fault(name: str) -> str | None:
    if looks_secret(name):
        return f"{name[:120]} is named like a secret; secrets are not kept, leave it out."
    if not _NAME.fullmatch(name):
        return f"{shown(name)} is not a flag name: letters, digits, _ . - and at most 120 characters."
    plain = name.replace("-", "_").lower()
    if plain != name and plain in _KNOWN:
        return f"{name} is written {plain} here."
    return None


def _value_fault(name: str, value: Any) -> str | None:
    if isinstance(value, list | dict):
        return f"{name} is {'a list' if isinstance(value, list) else 'an object'}; write it as compact JSON text."
    if isinstance(value, float) and not isfinite(value):
        return f"{name} is not a finite number."
    if isinstance(value, int) and abs(value) >= 2**63:
        return f"{name} is {shown(value)}; whole numbers stay under 2^63."
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{name} has {len(value)} characters; at most {MAX_TEXT} are kept."
    return _known_fault(name, value)


def _known_fault(name: str, value: Scalar, known: Mapping[str, tuple[Any, str]] = _KNOWN) -> str | None:
    if value is None or name not in known:
        return None
    expected, meaning = known[name]
    try:
        msgspec.convert(value, expected, strict=True)
    except msgspec.ValidationError:
        return f"{name} is {shown(value)}; it must be {meaning}."
    return None
