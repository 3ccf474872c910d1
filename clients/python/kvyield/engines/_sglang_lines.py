"""SGLang's log lines as patterns, 0.4.3 to 0.5.23. Searched, never anchored: prefixes and progress bars may share the
line.
"""

from __future__ import annotations

import re
from datetime import datetime

from kvyield.engines._prefix import parse_time
from kvyield.engines._text import any_of

_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)")
_TAGS = re.compile(
    r"\[(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)?((?: ?(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{1,5}){1,6})\]"
)

ARGS = re.compile(r"(?:server_args=|SERVER_ARGS )(ServerArgs\(|\{)")
FINAL = re.compile(
    r"max_total_num_tokens=(\d{1,18}), chunked_prefill_size=(-?\d{1,12}|None), max_prefill_tokens=(\d{1,12}), "
    r"max_running_requests=(\d{1,12}), context_len=(\d{1,12})\b(?:, available_gpu_mem=(-?\d+(?:\.\d+)?) GB)?"
)
BEGINS = re.compile(r"Load weight begin\.|Init torch distributed begin|Attention backend not ")
NAMES = (("model_path", "model_name"), ("served_model_name", "served_model_name"), ("revision", "model_revision"))
SHORT_FINAL = re.compile(r"^max_total_num_tokens=(\d{1,18})\s*$")
FIRED_UP = "The server is fired up and ready to roll!"
POOL = re.compile(
    r"(?<![A-Za-z])KV Cache is allocated\.|Physical KV Cache limits|Post-capture KV sizing: KV cache allocated\."
)
DTYPE = re.compile(r"(?:Using KV cache dtype: |KV [Cc]ache (?:is )?allocated\. dtype: )(?:torch\.)?(\w{2,30})\b")
BACKEND = re.compile(r"Attention backend not (?:explicitly )?specified\. Use (\w{1,40}) backend by default")
QUANTIZATION = re.compile(r"type=\w{1,100}, quant=([\w\-]{1,60})\b")
MODEL_CLASS = re.compile(r"Load weight end\. .{0,40}?type=(\w{1,100})\b")
SLIDING = re.compile(r"SWAKVPool mem usage: (\d+(?:\.\d+)?) GB, swa size: (\d{1,18}), full size: (\d{1,18})\b")
PROFILE = re.compile(
    r"Memory profiling: available_gpu_memory=(\d+(?:\.\d+)?) GB, total_gpu_memory=(\d+(?:\.\d+)?) GB, "
    r"mem_fraction_static=(\d?\.\d{1,6}), rest_memory=(\d+(?:\.\d+)?) GB"
)
DSV4 = re.compile(
    r"DS[Vv]4 memory calculation: .{0,400}?available_bytes=(\d+(?:\.\d+)?) GB.{0,400}?full_token=(\d{1,18})\b"
)
EFFECTIVE = re.compile(
    r"EFFECTIVE max_total_num_tokens (\d{1,18})\b(?: \(bound by --max-total-tokens user limit (\d{1,18})\b)?"
)
SIZING_PAGE = re.compile(r"KV pool sizing: .{0,200}?page_size=(\d{1,6})\b")
MAMBA = re.compile(
    r"Mamba Cache is allocated\. max_mamba_cache_size: (\d{1,12}), conv_state size: (\d+(?:\.\d+)?) ?GB,? "
    r"ssm_state size: (\d+(?:\.\d+)?) ?GB"
)
GRAPH_END = re.compile(r"Capture .{1,60}? end\.")
GRAPH_BEGIN = re.compile(r"Capture .{1,60}? begin\.")
VIABLE = re.compile(r"minimum viable[^\n]{0,80}?(?<![\d.])(0?\.\d{1,6})\b")
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
    r"max_total_num_tokens=\d",
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


def rank_of(text: str) -> str:
    """The rank's tags in one order, such as ``EP0 TP0``; empty when the line has none."""
    match = _TAGS.search(text, 0, 2000)
    return " ".join(sorted(match[1].split())) if match else ""


def own_time(text: str) -> datetime | None:
    """The engine's own stamp, naive."""
    match = _STAMP.search(text, 0, 2000)
    return parse_time(match[1]) if match else None
