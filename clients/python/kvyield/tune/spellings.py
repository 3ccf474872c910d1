"""How each engine's own argument parser spells the flags that move memory, and which parser rules it follows.

Sources: SGLang ``srt/server_args.py`` (plain argparse) and ``srt/server_args_config_parser.py``; vLLM
``engine/arg_utils.py`` and ``utils/argparse_utils.py``; TensorRT-LLM ``commands/serve.py`` (click); LMDeploy
``cli/utils.py`` (plain argparse).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from kvyield._errors import TuneError
from kvyield.engines._sglang_flags import MEMORY_FLAGS as SGLANG_FLAGS
from kvyield.engines._start import EngineName, Scalar
from kvyield.engines._vllm_flags import MEMORY_FLAGS as VLLM_FLAGS
from kvyield.engines._vllm_flags import NESTED as VLLM_NESTED

Kind = Literal["value", "switch", "list", "environment"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")
_ENVIRONMENT = re.compile(r"[A-Z][A-Z0-9_]{1,99}")


@dataclass(frozen=True)
class Option:
    """One flag on a command line. The first spelling is written, every one is read."""

    name: str
    spellings: tuple[str, ...]
    kind: Kind = "value"
    is_on_by_default: bool = False
    counts_with_suffix: bool = False
    """vLLM's ``8k`` (8000) and ``8K`` (8192), ``human_readable_int``."""
    within: tuple[str, str] | None = None
    """The flag and the key inside its JSON where the engine takes this one too."""


@dataclass(frozen=True)
class Found:
    """What a word names: an option, ``--no-`` before it, a path of keys after it (``--compilation-config.a.b``)."""

    option: Option
    is_negated: bool = False
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grammar:
    """The rules of one engine's parser.

    ``abbreviates``: argparse takes any prefix that fits one option alone, click none. ``config`` names the options of a
    configuration file, exactly as the engine compares them; ``config_wins`` when the file overrides the command line.
    ``config_keys`` are paths of keys in that file which do not carry the flag's own name.
    """

    engine: EngineName
    options: Mapping[str, Option]
    negates: bool = False
    nests: bool = False
    abbreviates: bool = True
    underscores: bool = False
    config: tuple[str, ...] = ()
    config_wins: bool = False
    config_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    environment: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names under which the service or a log speaks of an option."""

    @cached_property
    def _spelled(self) -> Mapping[str, Found]:
        found = {}
        for option in self.options.values():
            for spelling in option.spellings:
                found[_dashed(spelling)] = Found(option)
                if self.negates and option.kind == "switch" and spelling.startswith("--"):
                    found[f"--no-{_dashed(spelling)[2:]}"] = Found(option, is_negated=True)
        return found

    def option(self, name: str, value: Scalar) -> Option:
        """The option of an engine's own flag name; one that the table does not hold is spelled after its name.

        Raises:
            TuneError: the name is none that a command line can hold.
        """
        name = self.aliases.get(name, name)
        if name in self.options:
            return self.options[name]
        if _ENVIRONMENT.fullmatch(name):
            return Option(name, (), "environment")
        if not _NAME.fullmatch(name):
            raise TuneError(f"flag {name!r}: a flag is named in lower case, like {next(iter(self.options))}")
        spelling = "--" + (name if self.underscores else name.replace("_", "-"))
        return Option(name, (spelling,), "switch" if isinstance(value, bool) else "value")

    def find(self, word: str, asked: Iterable[Option] = ()) -> Found | None:
        """What an option's word, without its ``=value``, names among the known options and those asked for."""
        name, *path = word.split(".") if self.nests else [word]
        name = _dashed(name)
        if path and name == "-O":  # vLLM 0.8 to 0.11: -O.level=3 is --compilation-config.level=3
            name = "-cc"
        new = {_dashed(one.spellings[0]): Found(one) for one in asked if one.spellings and one.name not in self.options}
        known = {**new, **self._spelled} if new else self._spelled
        found = known.get(name)
        if found is None:
            fitting = self.fitting(name, known)
            found = next(iter(fitting.values())) if len(fitting) == 1 else None
        return Found(found.option, found.is_negated, tuple(path)) if found else None

    def fitting(self, name: str, known: Mapping[str, Found] | None = None) -> dict[str, Found]:
        """The flags that argparse may take an abbreviation for; none for a name that is written out."""
        known, name = known or self._spelled, _dashed(name)
        if not self.abbreviates or not name.startswith("--") or len(name) == 2 or name in known:
            return {}
        return {one.option.name: one for spelling, one in known.items() if spelling.startswith(name)}


def _dashed(spelling: str) -> str:
    """``--gpu_memory_utilization`` as ``--gpu-memory-utilization``; a short form stays as it is."""
    return spelling.replace("_", "-") if spelling.startswith("--") else spelling


def _options(names: Iterable[str], other: Mapping[str, tuple[str, ...]], *options: Option) -> dict[str, Option]:
    """Options spelled after their names in argparse's way, with their ``other`` spellings, and ``options`` as given."""
    made = {}
    for name in sorted(names):
        is_switch = name.startswith(("enable_", "disable_", "enforce_", "skip_"))
        spellings = ("--" + name.replace("_", "-"), *other.get(name, ()))
        made[name] = Option(name, spellings, "switch" if is_switch else "value")
    return {**made, **{option.name: option for option in options}}


def _lists(*names: str) -> tuple[Option, ...]:
    return tuple(Option(name, ("--" + name.replace("_", "-"),), "list") for name in names)


SGLANG = Grammar(
    engine="sglang",
    options=_options(
        SGLANG_FLAGS,
        {
            "tp_size": ("--tensor-parallel-size", "--tp"),
            "pp_size": ("--pipeline-parallel-size", "--pp"),
            "dp_size": ("--data-parallel-size", "--dp"),
            "ep_size": ("--expert-parallel-size", "--ep"),
            "model_path": ("--model",),
            "speculative_algorithm": ("--speculative-algo",),
            "speculative_draft_model_path": ("--speculative-draft-model",),
        },
        *_lists("cuda_graph_bs", "cuda_graph_bs_decode", "cuda_graph_bs_prefill"),
    ),
    config=("--config",),
)

_COMPILATION = "compilation_config"

VLLM = Grammar(
    engine="vllm",
    options=_options(
        VLLM_FLAGS,
        {
            "tensor_parallel_size": ("-tp",),
            "pipeline_parallel_size": ("-pp",),
            "data_parallel_size": ("-dp",),
            "decode_context_parallel_size": ("-dcp",),
            "prefill_context_parallel_size": ("-pcp",),
            "quantization": ("-q",),
            "speculative_config": ("-sc",),
        },
        Option(_COMPILATION, ("--compilation-config", "-cc")),
        Option("cudagraph_mode", (), within=(_COMPILATION, "cudagraph_mode")),
        Option(
            "cudagraph_capture_sizes",
            ("--cudagraph-capture-sizes", "--cuda-graph-sizes"),
            "list",
            within=(_COMPILATION, VLLM_NESTED[_COMPILATION][0]),
        ),
        Option(
            "max_cudagraph_capture_size",
            ("--max-cudagraph-capture-size",),
            within=(_COMPILATION, VLLM_NESTED[_COMPILATION][1]),
        ),
        Option("enable_expert_parallel", ("--enable-expert-parallel", "-ep"), "switch"),
        Option("async_scheduling", ("--async-scheduling",), "switch", is_on_by_default=True),
        Option("enable_prefix_caching", ("--enable-prefix-caching",), "switch", is_on_by_default=True),
        Option("enable_chunked_prefill", ("--enable-chunked-prefill",), "switch", is_on_by_default=True),
        Option("max_model_len", ("--max-model-len",), counts_with_suffix=True),
        Option("max_num_batched_tokens", ("--max-num-batched-tokens",), counts_with_suffix=True),
        Option("kv_cache_memory_bytes", ("--kv-cache-memory-bytes",), counts_with_suffix=True),
    ),
    aliases={"kv_cache_memory": "kv_cache_memory_bytes"},
    negates=True,
    nests=True,
    config=("--config",),
    environment=("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",),
)


def _trtllm(name: str, *spelled: str) -> Option:
    return Option(name, tuple(f"--{one}" for one in spelled or (name,)))


TENSORRT_LLM = Grammar(
    engine="tensorrt-llm",
    options={
        option.name: option
        for option in (
            # The older name of the two; later versions take it beside the plain one.
            _trtllm("free_gpu_memory_fraction", "kv_cache_free_gpu_memory_fraction", "free_gpu_memory_fraction"),
            _trtllm("tp_size", "tp_size", "tensor_parallel_size"),
            _trtllm("pp_size", "pp_size", "pipeline_parallel_size"),
            _trtllm("ep_size", "ep_size", "moe_expert_parallel_size"),
            *map(_trtllm, ("max_seq_len", "max_batch_size", "max_num_tokens", "max_beam_width", "kv_cache_dtype")),
            *map(_trtllm, ("backend", "port")),
            Option("enable_chunked_prefill", ("--enable_chunked_prefill",), "switch"),
            # Settings of the configuration file alone.
            *(Option(name, ()) for name in ("max_tokens", "max_gpu_total_bytes", "tokens_per_block")),
        )
    },
    aliases={"kv_cache_max_tokens": "max_tokens", "tensor_parallel_size": "tp_size"},
    abbreviates=False,
    underscores=True,
    config=("--config", "--extra_llm_api_options"),
    config_wins=True,
    config_keys={
        "free_gpu_memory_fraction": ("kv_cache_config", "free_gpu_memory_fraction"),
        "max_tokens": ("kv_cache_config", "max_tokens"),
        "max_gpu_total_bytes": ("kv_cache_config", "max_gpu_total_bytes"),
        "tokens_per_block": ("kv_cache_config", "tokens_per_block"),
        "kv_cache_dtype": ("kv_cache_config", "dtype"),
        "tp_size": ("tensor_parallel_size",),
        "pp_size": ("pipeline_parallel_size",),
        "ep_size": ("moe_expert_parallel_size",),
    },
)

_LMDEPLOY_FLAGS = """
    cache_max_entry_count tp dp ep session_len max_batch_size cache_block_seq_len max_prefill_token_num
    num_tokens_per_iter enable_prefix_caching quant_policy eager_mode dtype model_format num_gpu_blocks
"""

LMDEPLOY = Grammar(
    engine="lmdeploy",
    options=_options(
        _LMDEPLOY_FLAGS.split(),
        {},
        Option("eager_mode", ("--eager-mode",), "switch"),
        Option("port", ("--server-port",)),
    ),
)

GRAMMARS: Mapping[str, Grammar] = {one.engine: one for one in (SGLANG, VLLM, TENSORRT_LLM, LMDEPLOY)}
