"""What a stand-in engine is: model and GPU in numbers, speed, and the faults it shows on demand."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Literal

Engine = Literal["sglang", "vllm", "openai"]


@dataclass
class Faults:
    """What goes wrong, and when. Everything is off by default; ``Standin.set_faults`` changes it while it runs."""

    slow_seconds: float = 0.0  # added before the first token of every answer
    hang: bool = False  # prompts are never answered
    hang_midway: bool = False  # the first token comes, then nothing more
    die_at_tokens: int | None = None  # the process exits once so many prompt tokens are in
    oom_at_tokens: int | None = None  # like running out of GPU memory at so many prompt tokens
    wrong_answer: bool = False
    cached_tokens: int | None = None  # reported for every prompt
    refuse_over_tokens: int | None = None  # the engine's own length refusal, at another length
    huge_body_mib: int = 0  # every answer to a GET is followed by so many MiB of padding
    no_tokenize: bool = False
    no_usage: bool = False
    no_flush: bool = False
    flush_busy: int = 0  # so many flushes are refused because requests are pending
    tokenize_factor: float = 1.0  # /tokenize is wrong by this factor
    error_status: int | None = None  # prompts are answered with this status


@dataclass
class Config:
    """A stand-in engine. The default numbers are the worked case of the product: a 1T MLA model on 8 GPUs of 96 GB."""

    engine: Engine = "sglang"
    version: str = "0.5.12"
    model: str = "moonshotai/Kimi-K2.6"
    architecture: str = "KimiK25ForConditionalGeneration"
    fraction: float = 0.94
    context_length: int = 200_000
    max_running_requests: int = 8
    tp_size: int = 8
    chunk_tokens: int = 8192
    page_tokens: int = 1
    max_total_tokens: int | None = None
    speculative_algorithm: str | None = "DFLASH"

    free_before_load_gib: float = 93.7282
    weights_gib: float = 72.39912
    gpu_total_gib: float = 94.97
    budget_bytes_per_token: int = 77_184
    target_bytes_per_token: int = 70_272
    draft_bytes_per_token: int = 3_072
    graph_base_gib: float = 1.87
    graph_gib_per_request: float = 0.034
    activation_peak_gib: float = 1.66

    need_base_gib: float = 0.8
    need_gib_per_token: float = 8e-6

    prefill_tokens_per_second: float = 500_000.0
    prefill_seconds_per_square: float = 0.0  # attention: added for the square of the tokens
    first_prompt_seconds: float = 0.0  # a fresh server's first prompt compiles kernels
    prompts_at_once: bool = True  # False: one chunk at a time, so that several prompts take the memory of one
    decode_seconds_per_token: float = 0.005
    startup_seconds: float = 360.0
    api_key: str | None = None
    cache_report: bool = True
    port: int = 30000  # the server's own, once it is bound
    random_seed: int = field(default_factory=lambda: secrets.randbelow(1 << 30))  # drawn per start, as engines do
    faults: Faults = field(default_factory=Faults)
