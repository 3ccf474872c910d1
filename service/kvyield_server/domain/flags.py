"""What each engine calls the flags that kvyield reads and advises, and how they are written on a command line."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from kvyield_server.domain.answers import Advice, Status
from kvyield_server.domain.observation import FRACTION_FLAG, EngineName, Flags, Scalar
from kvyield_server.domain.scalars import as_count, as_number


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagNames:
    """One engine's own names for the roles that flags play; None where the engine has no such flag.

    ``pool_cap`` caps the pool in tokens; a flag of ``inert_with`` sizes the pool by itself, whatever the fraction.
    """

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
    pool_cap: str | None
    inert_with: tuple[str, ...] = ()
    program: tuple[str, ...]
    model_option: str | None
    image_runs_program: bool = False
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
            pool_cap="max_total_tokens",
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
            pool_cap=None,
            inert_with=("num_gpu_blocks_override", "kv_cache_memory_bytes"),
            program=("vllm", "serve"),
            model_option=None,
            image_runs_program=True,
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
            pool_cap="max_tokens",
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
            pool_cap=None,
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


def render(advice: Advice, form: str) -> str:
    """Return an advice as text to paste: ``args``, ``systemd``, ``docker``, ``compose`` or ``kubernetes``.

    Comments say what to merge with one's own configuration. An advice with nothing to restart with renders as comments
    alone.

    Raises:
        ValueError: the form is none of these.
    """
    if form not in _FORMS:
        raise ValueError(f"{form!r} is none of {', '.join(_FORMS)}")
    if advice.status in (Status.INFEASIBLE, Status.NOT_ENOUGH_EVIDENCE):
        return _comments(f"{advice.status}: nothing to restart with.", advice.explanation)
    return _FORMS[form](advice)


def _args(advice: Advice) -> str:
    return advice.command_line + "\n"


def _systemd(advice: Advice) -> str:
    unit = advice.engine.value
    value = command_line(advice.engine, advice.flags).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    program = shlex.join(("/usr/bin/env", *_program(advice))).replace("%", "%%").replace("$", "$$")
    return (
        _status_comment(advice)
        + _comments(
            f"Drop-in: /etc/systemd/system/{unit}.service.d/50-kvyield.conf, then systemctl daemon-reload and restart.",
            f"Merge once: copy ExecStart from `systemctl cat {unit}.service` to where it stands below, take out of it "
            f"{_named(advice)}, and end it with $KVYIELD_FLAGS. The empty ExecStart= resets the unit's own.",
        )
        + f'[Service]\nEnvironment="KVYIELD_FLAGS={value}"\n'
        + f"# ExecStart=\n# ExecStart={program} $KVYIELD_FLAGS\n"
    )


def _docker(advice: Advice) -> str:
    words = shlex.join((*_image_command(advice), *flag_words(advice.engine, advice.flags)))
    return (
        _status_comment(advice)
        + _comments(f"Merge: keep your own docker options and flags; replace {_named(advice)}.")
        + f'docker run --gpus all --ipc host "$IMAGE" \\\n  {words}\n'
    )


def _compose(advice: Advice) -> str:
    words = [word.replace("$", "$$") for word in (*_image_command(advice), *flag_words(advice.engine, advice.flags))]
    return (
        _status_comment(advice)
        + _comments(
            f"Merge: a command replaces the service's own whole; keep your other flags in it, replace {_named(advice)}."
        )
        + f"services:\n  {advice.engine.value}:\n    command:\n{_listed(words, 6)}"
    )


def _kubernetes(advice: Advice) -> str:
    name = advice.engine.value
    words = [word.replace("$(", "$$(") for word in (*_image_command(advice), *flag_words(advice.engine, advice.flags))]
    return (
        _status_comment(advice)
        + _comments(
            f"kubectl patch deployment {name} --type strategic --patch-file FILE",
            f"Merge: args replace the container's own whole; keep your other flags in them, replace {_named(advice)}. "
            "Containers are matched by name.",
        )
        + f"apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {name}\nspec:\n  template:\n    spec:\n"
        + f"      containers:\n        - name: {name}\n          args:\n{_listed(words, 12)}"
    )


_FORMS: Mapping[str, Callable[[Advice], str]] = MappingProxyType(
    {"args": _args, "systemd": _systemd, "docker": _docker, "compose": _compose, "kubernetes": _kubernetes}
)


def _program(advice: Advice) -> tuple[str, ...]:
    names, model = NAMES[advice.engine], advice.model_name or "MODEL"
    return (*names.program, *((names.model_option, model) if names.model_option else (model,)))


def _image_command(advice: Advice) -> tuple[str, ...]:
    """Return what comes after the image: the whole program unless the image's entry point is the program."""
    names, program = NAMES[advice.engine], _program(advice)
    return program[len(names.program) :] if names.image_runs_program else program


def _named(advice: Advice) -> str:
    return ", ".join(word for word in flag_words(advice.engine, advice.flags) if word.startswith("--"))


def _status_comment(advice: Advice) -> str:
    return _comments(f"kvyield: {advice.status.value}.", *(() if advice.status is Status.OK else (advice.explanation,)))


def _comments(*paragraphs: str) -> str:
    lines = (
        line for text in paragraphs for line in textwrap.wrap(text, 110, break_long_words=False, break_on_hyphens=False)
    )
    return "".join(f"# {line}\n" for line in lines)


def _listed(words: Sequence[str], indent: int) -> str:
    """Return words as a YAML list; JSON strings are YAML strings whatever they hold."""
    return "".join(f"{' ' * indent}- {json.dumps(word)}\n" for word in words)


def _spelled(value: float | str) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
