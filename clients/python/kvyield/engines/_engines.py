"""The engines that are known. Adding one is a module with an ``Engine`` and a line here."""

from __future__ import annotations

from kvyield.engines._engine import Engine
from kvyield.engines.lmdeploy import LMDEPLOY
from kvyield.engines.sglang import SGLANG
from kvyield.engines.tensorrt_llm import TENSORRT_LLM
from kvyield.engines.vllm import VLLM

ENGINES: tuple[Engine, ...] = (SGLANG, VLLM, TENSORRT_LLM, LMDEPLOY)
