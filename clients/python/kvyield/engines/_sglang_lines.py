"""SGLang's log lines as patterns, 0.4.3 to 0.5.23. Searched, never anchored: prefixes and progress bars may share the
line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from kvyield.engines._prefix import parse_time
from kvyield.engines._text import any_of

_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)")
_TAGS = re.compile(
    r"\[(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)?((?: ?(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{1,5}){1,6})\]"
)

ARGS = re.compile(r"(?:server_args=|SERVER_ARGS )(ServerArgs\(|\{)")
_FINAL = re.compile(r"(?<![\w.])max_total_num_tokens=(\d{1,18})\b(?!\.\d)")
_FINAL_PART = re.compile(
    r"(?<![\w.])(chunked_prefill_size|max_prefill_tokens|max_running_requests|context_len)=(-?\d{1,12}|None)\b(?!\.\d)"
    r"|(?<![\w.])available_(?:gpu|cpu)_mem=(-?\d+(?:\.\d+)?) ?GB"
)
BEGINS = re.compile(
    r"Load weight begin\.|Init torch distributed begin|Attention backend not |Reported total GPU memory per device"
)
DEVICE = re.compile(
    r"torch\.cuda\.mem_get_info\(\).{0,40}Reported total GPU memory per device \(MiB\): "
    r".{1,400}using min: (\d{1,9}) MiB"
)
NAMES = (("model_path", "model_name"), ("served_model_name", "served_model_name"), ("revision", "model_revision"))
SHORT_FINAL = re.compile(r"^max_total_num_tokens=(\d{1,18})\s*$")
FIRED_UP = "The server is fired up and ready to roll!"
POOL = re.compile(
    r"(?<![A-Za-z])KV Cache (?:is )?allocated\.|Physical KV Cache limits|Post-capture KV sizing: KV cache allocated\."
)
DTYPE = re.compile(r"(?:Using KV cache dtype: |KV [Cc]ache (?:is )?allocated\. dtype: )(?:torch\.)?(\w{2,30})\b")
BACKEND = re.compile(r"Attention backend not (?:explicitly )?specified\. Use (\w{1,40}) backend by default")
QUANTIZATION = re.compile(r"type=\w{1,100}, quant=([\w\-]{1,60})\b")
MODEL_CLASS = re.compile(r"Load weight end\. .{0,40}?type=(\w{1,100})\b")
SLIDING_USAGE = re.compile(r"SWAKVPool mem usage: (\d+(?:\.\d+)?) GB")
FULL = re.compile(
    r"(?:\bfull size: |\bfull_layer_tokens=|DS[Vv]4 pool sizes: (?:.{0,200}\b)?full=)(\d{1,18})\b(?!\.\d)"
)
SLIDING = re.compile(
    r"(?:\bswa size: |\bswa_layer_tokens=|DS[Vv]4 pool sizes: (?:.{0,200}\b)?swa="
    r"|DS[Vv]4 SWA sizing: .{0,80}?swa_tokens="
    r"|Initialize DeepSeekV4TokenToKVPool .{0,200}?\bswa_size=)(\d{1,18})\b(?!\.\d)"
)
_PROFILE_PART = re.compile(r"\b(available_gpu_memory|total_gpu_memory|mem_fraction_static)=(\d+(?:\.\d+)?)(?![\w.])")
STATE_MODEL = re.compile(r"DS[Vv]4 memory calculation: ")
_STATE_PART = re.compile(r"\b(bytes_per_full_token|available_bytes|full_token|swa_fixed)=(\d+(?:\.\d+)?)(?![\w.])")
PROJECTED = re.compile(
    r"\bprojected (\d{1,18}) -> EFFECTIVE max_total_num_tokens \d{1,18} \(bound by --max-total-tokens"
)
LIMIT = re.compile(r"Input length \(\d{1,18} tokens\) exceeds the maximum allowed length \((\d{1,18}) tokens\)")
EFFECTIVE = re.compile(
    r"EFFECTIVE max_total_num_tokens (\d{1,18})\b(?: \(bound by --max-total-tokens user limit (\d{1,18})\b)?"
)
SIZING_PAGE = re.compile(r"KV pool sizing: .{0,200}?page_size=(\d{1,6})\b")
MAMBA = re.compile(r"Mamba Cache is allocated\. .{0,80}?max_mamba_cache_size: (\d{1,12})\b")
MAMBA_SIZE = re.compile(r"\b(?:conv_state|ssm_state) size: (\d+(?:\.\d+)?) ?GB")
GRAPH_END = re.compile(r"Capture .{1,60}? end\.")
GRAPH_BEGIN = re.compile(r"Capture .{1,60}? begin\.")
VIABLE = re.compile(r"minimum viable[^\n]{0,80}?(?<![\d.])(0?\.\d{1,6})\b")
RAISE_ABOVE = re.compile(r"Raise --mem-fraction-static above (0?\.\d{1,6})\b")
REFUSED = re.compile(
    r"(?:\w{1,40}Error: )?(?:Not enough memory\. Please try to increase --mem-fraction-static.{0,200}"
    r"|Loaded weights leave no GPU memory for the KV cache.{0,500}|Not enough GPU memory for hybrid.{0,300}"
    r"|SWA pool \(\d{1,18} tokens\) cannot hold even one request.{0,200})"
)
REFUSED_FRACTION = re.compile(r"mem[_-]fraction[_-]static=(0?\.\d{1,6}|1\.0)\b")
EXHAUSTED = re.compile(r"(?:Prefill|Decode) out of memory\. .{0,300}")
NO_PREFILL_GRAPH = re.compile(r"Disabling auto-selected prefill CUDA graph: only \d")
DECODED = re.compile(r"Decode batch[.,\[ ]")
SERVED = re.compile(r"(?:Prefill|Decode) batch[.,\[ ]")

MINE = any_of(
    ARGS.pattern,
    POOL.pattern,
    r"Load weight (?:begin|end)\.",
    r"Init torch distributed",
    r"max_total_num_tokens=\d|full_layer_tokens=\d|DS[Vv]4 (?:pool sizes|SWA sizing): |DeepSeekV4TokenToKVPool",
    r"Reported total GPU memory per device",
    r"exceeds the maximum allowed length \(\d",
    r"Memory pool end\.",
    r"SWAKVPool mem",
    r"Mamba Cache is allocated",
    r"DS[Vv]4 memory calculation",
    r"mem-fraction-static",
    r"Loaded weights leave no GPU",
    r"fired up and ready to roll",
    r"Scheduler hit an exception",
    r"Attention backend not ",
    r"Capture .{1,60}? (?:begin|end)\. ",
    r"EFFECTIVE max_total",
    r"KV pool sizing: ",
    r"Memory profiling: available_gpu",
    r"Using KV cache dtype: ",
)
"""Lines that only SGLang prints."""


@dataclass(frozen=True)
class Final:
    """The line that sums a start up. What the line lacks (old versions, forks, abridgements) is absent."""

    tokens: int
    flags: Mapping[str, int | None]
    available_gib: float | None


def final(text: str) -> Final | None:
    """The summary line, by its keys in any order; a count alone, or a rank's own sizing, is none."""
    tokens = _FINAL.search(text)
    parts = list(_FINAL_PART.finditer(text)) if tokens and "KV pool sizing" not in text else []
    if tokens is None or not parts:
        return None
    named = {part[1]: None if part[2] == "None" else int(part[2]) for part in parts if part[1]}
    available = next((float(part[3]) for part in parts if part[3]), None)
    return Final(int(tokens[1]), named, available)


def profile(text: str) -> Mapping[str, float]:
    """What a memory profiling line says of memory and fraction, by its keys."""
    return {name: float(value) for name, value in _PROFILE_PART.findall(text)}


def state_model(text: str) -> Mapping[str, float]:
    """What DeepSeek-V4's own calculation says, by its keys; empty for any other line."""
    return {name: float(value) for name, value in _STATE_PART.findall(text)} if STATE_MODEL.search(text) else {}


def rank_of(text: str) -> str:
    """The rank's tags in one order, such as ``EP0 TP0``; empty when the line has none."""
    match = _TAGS.search(text, 0, 2000)
    return " ".join(sorted(match[1].split())) if match else ""


def dimensions(rank: str) -> frozenset[str]:
    """The dimensions that a rank's tags name, such as DP and TP."""
    return frozenset(tag.rstrip("0123456789") for tag in rank.split())


def own_time(text: str) -> datetime | None:
    """The engine's own stamp, naive."""
    match = _STAMP.search(text, 0, 2000)
    return parse_time(match[1]) if match else None
