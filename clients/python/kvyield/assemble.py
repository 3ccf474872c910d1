"""From what a reader found, the GPU and the options to one observation, each value with the source it came from.

What was measured is believed in this order: log, endpoint, GPU, option, configuration file. The names of model and
GPU, which logs shorten or leave out, are believed in this order: option, log, GPU, configuration file. Where two
sources disagree, the first wins and the disagreement is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timezone
from typing import TYPE_CHECKING, Any, get_args
from uuid import UUID

import msgspec

from kvyield import _wire
from kvyield._bounds import (
    LONGEST_MESSAGE,
    MOST_FLAGS,
    clean,
    excerpt_of,
    is_flag,
    is_possible,
    is_start_time,
    name_within,
)
from kvyield._errors import IncompleteError
from kvyield._ids import start_id
from kvyield._names import model_name, same_name, same_size
from kvyield._parallel import gpu_count_of
from kvyield._secrets import redacted
from kvyield._unified import shares_host_memory
from kvyield.engines import Sourced, Start
from kvyield.modelconfig import kept_facts

if TYPE_CHECKING:
    from kvyield.verify import Verified

FRACTION_FLAG = {
    "sglang": "mem_fraction_static",
    "vllm": "gpu_memory_utilization",
    "tensorrt-llm": "free_gpu_memory_fraction",
    "lmdeploy": "cache_max_entry_count",
}
FREE_NOW = ("free_gib", "held_gib")
RESIDENT_SHARE = 0.95
_MEASUREMENTS = tuple(_wire.Measurements.__struct_fields__)
_FAILURE = tuple(name for name in _wire.Failure.__struct_fields__ if name not in ("phase", "message", "cause"))

Known = Mapping[str, Sourced]


@dataclass(frozen=True)
class Extras:
    """What a start is completed with: options, the GPU's facts, the configuration file, the model's ``config.json``.

    ``options``, ``detected`` and ``configured`` use the names ``gpu``, ``gpu_count``, ``gpu_memory_gib``,
    ``unified_memory``, ``model``, ``model_revision``, ``engine_version`` and ``host``, ``detected`` also
    ``driver_memory_gib`` and, for a start that just became ready, ``free_gib`` and ``held_gib`` of the fullest GPU;
    ``flags`` fills flags that the log does not tell. ``model_name`` is the name in the model's ``config.json``.
    """

    options: Known = field(default_factory=dict)
    detected: Known = field(default_factory=dict)
    configured: Known = field(default_factory=dict)
    flags: Known = field(default_factory=dict)
    model_facts: Mapping[str, object] = field(default_factory=dict)
    model_facts_source: str = "option --model-config"
    model_name: Sourced | None = None
    recommendation_id: UUID | None = None
    takes_unfinished: bool = False


@dataclass(frozen=True)
class Assembled:
    """One start, ready to post or with what it lacks. ``sources`` tells where each value came from."""

    draft: Mapping[str, Any]
    sources: Mapping[str, str]
    contradictions: tuple[str, ...]
    missing: tuple[str, ...]

    def observation(self) -> _wire.Observation:
        """The observation with its id. Raises `IncompleteError` when the service would refuse it."""
        if self.missing:
            raise IncompleteError(f"the log does not show {', '.join(map(_asked, self.missing))}", self.missing)
        try:
            whole = msgspec.convert(self.draft, _wire.Observation)
        except msgspec.ValidationError as error:
            raise IncompleteError(f"the log holds something impossible: {error}", ()) from None
        return msgspec.structs.replace(whole, id=start_id(whole))

    def json(self) -> bytes:
        """The observation exactly as it would be posted; what is missing is null."""
        return msgspec.json.encode(self.draft if self.missing else self.observation())


def assemble(start: Start, extras: Extras | None = None, *, source: str = "log") -> Assembled:
    """Complete a start with what else is known. Never guesses: what nothing tells is null and listed as missing."""
    return _Assembly(start, extras or Extras()).build(source)


def verified_start(start: Assembled, results: Sequence[Verified]) -> Assembled:
    """The start with its verifications and, where it ended by one of them, with that end."""
    verifications = [msgspec.to_builtins(result.verification) for result in results]
    draft: dict[str, Any] = {**start.draft, "verifications": verifications}
    ended = next((result for result in results if result.outcome), None)
    if ended is not None:
        cause = "gpu_memory" if ended.outcome == "oom_runtime" else None
        failure = {"phase": "serving", "message": ended.verification.error, "cause": cause}
        draft |= {"outcome": ended.outcome, "failure": {**failure, "prompt_tokens": ended.verification.prompt_tokens}}
    return replace(start, draft=draft)


class _Assembly:
    def __init__(self, start: Start, extras: Extras) -> None:
        self.start = start
        self.extras = extras
        self.sources: dict[str, str] = {"outcome": "the log"}
        self.contradictions = [redacted(text) for text in start.contradictions]

    def build(self, source: str) -> Assembled:
        flags = self.flags()
        self.drop_facts_of_another_gpu()
        hardware = self.hardware(flags)
        draft: dict[str, Any] = {
            "id": None,
            "observed_at": self.observed_at(),
            "host": self.named("host", "host"),
            "source": source,
            "hardware": hardware,
            "model": self.model(),
            "engine": self.engine(),
            "flags": flags,
            "outcome": self.start.outcome,
            "measurements": self.measurements(hardware["gpu_count"]),
            "failure": self.failure(),
            "verifications": [],
            "recommendation_id": self.extras.recommendation_id,
            "log_excerpt": excerpt_of(self.start.excerpt),
        }
        self.judge_host_memory(draft)
        missing = tuple(_missing(draft))
        return Assembled(draft, self.sources, tuple(self.contradictions), missing)

    def judge_host_memory(self, draft: dict[str, Any]) -> None:
        """Where the GPU shares the host's memory, an end for want of host memory is one for want of GPU memory.

        So is a bare kill while the engine starts: there the kernel kills what takes the memory, and its own line stands
        in the host's log. While it serves anybody may have stopped it.
        """
        failure = draft["failure"]
        if not (failure and draft["hardware"]["unified_memory"]):
            return
        is_killed = failure["cause"] == "killed" and failure["phase"] != "serving"
        if not (is_killed or failure["cause"] == "host_memory"):
            return
        failure["cause"] = "host_memory"
        draft["outcome"] = "oom_runtime" if failure["phase"] == "serving" else "oom_startup"
        self.sources["outcome"] = "the log: host memory, which this GPU shares" + (
            ", as a kill while it starts shows" if is_killed else ""
        )

    def drop_facts_of_another_gpu(self) -> None:
        """A GPU of another kind than an option or the log tells is not the engine's: none of its facts hold."""
        detected = self.extras.detected.get("gpu")
        told = self.extras.options.get("gpu") or self.start.facts.get("gpu")
        if detected is not None and told is not None and not same_name(told.value, detected.value):
            where = f"({told.source}) against {detected.value!r} ({detected.source}): this host's GPUs are left out"
            self.contradictions.append(redacted(f"hardware.gpu: {told.value!r} {where}"))
            self.extras = replace(self.extras, detected={})

    def observed_at(self) -> Any:
        moment = self.start.observed_at
        if moment is None or not is_start_time(moment):
            return None
        zone = self.start.zone
        logged = f"the log's times, which name no zone: {zone}" if zone else "the log's times"
        self.sources["observed_at"] = self.start.process or logged
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)

    def hardware(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        parallel = gpu_count_of(self.start.engine, flags)
        measured = [self.start.facts.get("gpu_memory_gib"), self.start.measurements.get("device_memory_gib")]
        gpu = self.named("gpu", "hardware.gpu", same_name)
        return {
            "gpu": gpu,
            "gpu_count": self.chosen(
                "hardware.gpu_count",
                [
                    *self.stated("gpu_count")[:2],
                    parallel,
                    _only_one(self.extras.detected),
                    *self.stated("gpu_count")[3:],
                ],
            ),
            "memory_gib": self.chosen(
                "hardware.memory_gib", [*measured, *self.stated("gpu_memory_gib", first="detected")], same_size
            ),
            "driver_memory_gib": self.chosen(
                "hardware.driver_memory_gib", [self.extras.detected.get("driver_memory_gib")]
            ),
            "unified_memory": self.unified_memory(gpu),
        }

    def unified_memory(self, gpu: str | None) -> bool | None:
        """What the GPU's own tool says, else true for a GPU whose name is known to be one; null is unknown."""
        named = Sourced(True, f"the table of GPU names: {gpu}") if shares_host_memory(gpu) else None
        value = self.chosen("hardware.unified_memory", [self.extras.detected.get("unified_memory") or named])
        return bool(value) if value is not None else None

    def model(self) -> dict[str, Any]:
        option, logged, _, configured = self.stated("model", "model_name")
        named = model_name(logged, self.start.facts.get("served_model_name"), self.extras.model_name)
        return {
            "name": self.chosen("model.name", [option, named, configured], same_name),
            "revision": self.named("model_revision", "model.revision"),
            "facts": self.model_facts(),
        }

    def model_facts(self) -> dict[str, object]:
        logged = kept_facts(self.start.model_facts)
        facts = logged | dict(self.extras.model_facts)
        for name, value in facts.items():
            given = name in self.extras.model_facts
            self.sources[f"model.facts.{name}"] = self.extras.model_facts_source if given else "the log or an endpoint"
            if name in logged and logged[name] != value:
                told = f"the log says {logged[name]!r}, {self.extras.model_facts_source} says {value!r}"
                self.contradictions.append(f"model.facts.{name}: {told}")
        return facts

    def engine(self) -> dict[str, Any]:
        return {
            "name": self.start.engine,
            "version": self.chosen(
                "engine.version",
                [self.start.facts.get("engine_version"), self.extras.options.get("engine_version")],
            ),
            "variant": self.chosen("engine.variant", [self.start.facts.get("engine_variant")]),
        }

    def flags(self) -> dict[str, Any]:
        flags: dict[str, Any] = {}
        for name in [*self.start.flags, *(name for name in self.extras.flags if name not in self.start.flags)]:
            told = self.start.flags.get(name)
            if len(flags) == MOST_FLAGS or not is_flag(name, told.value if told else None):
                continue
            given = self.extras.flags.get(name)
            value = self.chosen(f"flags.{name}", [told, given])
            flags[name] = redacted(value) if isinstance(value, str) else value
        return flags

    def measurements(self, gpu_count: int | None) -> dict[str, Any]:
        told = dict(self.start.measurements)
        if "free_at_ready_gib" not in told and (free := self.free_now(gpu_count)):
            told["free_at_ready_gib"] = free
        return {name: self.measured(f"measurements.{name}", told.get(name)) for name in _MEASUREMENTS}

    def free_now(self, gpu_count: int | None) -> Sourced | None:
        """Free memory as the GPUs tell it, where the engine just became ready, uses all GPUs of this host, and its pool
        is in their memory.
        """
        detected, told = self.extras.detected, self.start.measurements
        free, held, count = (detected.get(name) for name in ("free_gib", "held_gib", "gpu_count"))
        parts = [told.get(name) for name in ("kv_cache_gib", "weights_gib")]
        needed = sum(
            float(str(part.value)) for part in parts if part is not None and is_possible("kv_cache_gib", part.value)
        )
        if self.start.outcome != "ready" or free is None or held is None or count is None or not needed:
            return None
        is_resident = float(str(held.value)) >= RESIDENT_SHARE * needed
        return free if is_resident and count.value == gpu_count else None

    def failure(self) -> dict[str, Any] | None:
        if self.start.outcome == "ready":
            return None
        told = self.start.failure
        message = self.chosen("failure.message", [told.get("message")])
        return {
            "phase": self.chosen("failure.phase", [told.get("phase")]) or "unknown",
            "message": clean(str(message), LONGEST_MESSAGE) if message else None,
            "cause": self.cause(told.get("cause")),
        } | {name: self.measured(f"failure.{name}", told.get(name)) for name in _FAILURE}

    def measured(self, path: str, told: Sourced | None) -> Any:
        name = path.rpartition(".")[2]
        value = told.value if told else None
        if told is None or isinstance(value, bool | str) or value is None:
            return None
        if not is_possible(name, value):
            self.contradictions.append(f"{path}: {value} is impossible ({told.source}); left out")
            return None
        self.sources[path] = redacted(told.source)
        return int(value) if name.endswith(("_tokens", "_len", "rank")) else value

    def cause(self, told: Sourced | None) -> Any:
        known = told is not None and told.value in get_args(_wire.CauseName)
        return self.chosen("failure.cause", [told]) if known else None

    def named(self, name: str, path: str, same: Callable[[Any, Any], bool] = same_name) -> Any:
        return self.chosen(path, self.stated(name), same)

    def stated(self, name: str, log_name: str | None = None, *, first: str = "option") -> Sequence[Sourced | None]:
        """What option, log, GPU and configuration say; with ``first="detected"`` GPU, option and configuration."""
        option, detected = self.extras.options.get(name), self.extras.detected.get(name)
        configured = self.extras.configured.get(name)
        if first == "detected":
            return [detected, option, configured]
        return [option, self.start.facts.get(log_name or name), detected, configured]

    def chosen(
        self, path: str, candidates: Iterable[Sourced | None], same: Callable[[Any, Any], bool] = lambda a, b: a == b
    ) -> Any:
        """The first value that is told; others that differ are reported, the configuration file's excepted."""
        told = [one for one in candidates if one is not None and self.is_told(path, one)]
        if not told:
            return None
        first = told[0]
        self.sources[path] = redacted(first.source)
        for other in told[1:]:
            if not same(first.value, other.value) and other not in self.extras.configured.values():
                text = f"{path}: {first.value!r} ({first.source}) against {other.value!r} ({other.source})"
                self.contradictions.append(redacted(text))
        is_name = isinstance(first.value, str) and not path.startswith(("flags.", "failure."))
        return name_within(path, str(first.value)) if is_name else first.value

    @staticmethod
    def is_told(path: str, one: Sourced) -> bool:
        """Whether a candidate says something that can be: for a flag also that it is off."""
        if path.startswith("hardware.") and path.endswith(("_count", "_gib")):
            return is_possible(path.removeprefix("hardware."), one.value)
        return one.value is not None or path.startswith("flags.")


def _only_one(detected: Known) -> Sourced | None:
    """The GPU count counts when there is one GPU; of several the engine may use some."""
    count = detected.get("gpu_count")
    return count if count is not None and count.value == 1 else None


def _missing(draft: Mapping[str, Any]) -> Iterable[str]:
    if draft["outcome"] == "unfinished":
        yield "outcome"
    for group, name in (("hardware", "gpu"), ("hardware", "gpu_count"), ("model", "name")):
        if not draft[group][name]:
            yield f"{group}.{name}"
    fraction = FRACTION_FLAG[draft["engine"]["name"]]
    if draft["outcome"] not in ("failed", "unfinished") and draft["flags"].get(fraction) is None:
        yield f"flags.{fraction}"
    measured = draft["measurements"]
    if draft["outcome"] == "ready" and measured["pool_tokens"] is None and measured["kv_cache_gib"] is None:
        yield "measurements.pool_tokens"


def _asked(path: str) -> str:
    options = {"hardware.gpu": "--gpu", "hardware.gpu_count": "--gpu-count", "model.name": "--model"}
    if path.startswith("flags."):
        name = path.removeprefix("flags.")
        return f"{name} (give --flag {name}=VALUE)"
    return f"{path} (give {options[path]})" if path in options else path
