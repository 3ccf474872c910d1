"""Which starts may share one line: the deployment key, how null joins, and names for people and links.

Hardware and model name are the pair's; model facts and the GPU's memory are never in the key.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType

from kvyield_server.domain.engines.registry import NAMES
from kvyield_server.domain.engines.token_cost import QUANT_POLICIES, speculation
from kvyield_server.domain.engines.vllm import whole_prompt_tokens
from kvyield_server.domain.facts.layout import DATA, DATA_ATTENTION, DECODE_CONTEXT, PIPELINE, TENSOR
from kvyield_server.domain.facts.model_config import keeps_8bit_kv, keeps_states
from kvyield_server.domain.facts.observation import (
    FRACTION_FLAG,
    Engine,
    EngineName,
    Facts,
    Flags,
    Model,
    Observation,
    Scalar,
)
from kvyield_server.domain.facts.scalars import as_number, is_on
from kvyield_server.domain.facts.versions import parse_version, plain_version

Key = Mapping[str, str]
"""Field -> canonical value. A field that is not there is unknown and agrees with anything."""

_LAYOUT_FIELDS = {
    "tp": TENSOR,
    "pp": PIPELINE,
    "dp": DATA,
    "dp_attention": DATA_ATTENTION,
    "dcp": DECODE_CONTEXT,
}
_SHARED_FIELDS: dict[str, tuple[str, ...]] = {
    **_LAYOUT_FIELDS,
    "kv_dtype": ("kv_cache_dtype", "quant_policy"),
    "quantization": ("quantization",),
    "weight_dtype": ("dtype",),
    "page": ("page_size", "block_size"),
    "speculation": ("speculative_algorithm", "speculative_config", "speculative"),
    "draft": ("speculative_draft_model_path", "speculative_model"),
    "attention": ("attention_backend",),
    "lora": ("enable_lora",),
    "lora_count": ("max_loras_per_batch", "max_loras"),
    "lora_rank": ("max_lora_rank",),
    "offload": ("cpu_offload_gb",),
    "loader": ("load_format",),
    "host_profile": ("host_profile",),
}
AUTO = "auto"
_WORD = re.compile(r"[\w.+-]{1,40}")
_METHOD_OR_MODEL = re.compile(
    r"""(?<!\w)(?P<name>method|model)['"]?\s*[:=]\s*(?P<quote>['"])(?P<value>[^'"{}]+)(?P=quote)"""
)
_ONE_WHEN_OFF = frozenset({"tp", "pp", "dp", "dcp"})
_SAYS_NOTHING: dict[str, tuple[Scalar, ...]] = {
    "page": (None,),
    "quantization": (None,),
    "weight_dtype": (None, "auto"),
    "attention": (None, "auto"),
    "loader": (None, "auto"),
    "compile_cache": (None,),
    "graphs": (None,),
    "batched_tokens": (None,),
    "sequences": (None,),
    "multimodal": (None,),
}
"""Values that leave the choice to the engine: what it chose is unknown, and unknown joins known."""


@dataclass(frozen=True, slots=True)
class Group:
    """Starts that share a deployment, oldest first, and what is known of their key."""

    key: Key
    starts: tuple[Observation, ...]

    @property
    def newest(self) -> Observation:
        return self.starts[-1]

    @property
    def identifier(self) -> str:
        """A short id that stays the same while further starts join; made from the oldest start."""
        return _short_hash(self.starts[0].id.hex)


def key_fields(engine: EngineName, *, requests_move_pool: bool = False) -> Mapping[str, tuple[str, ...]]:
    """Return each key field of an engine with the flags that it is read from, in order of preference."""
    spec = NAMES[engine]
    extra = spec.state_fields if requests_move_pool else {}
    return MappingProxyType({**_SHARED_FIELDS, **spec.key_fields, **extra})


def requests_move_pool(model: Model, engine: Engine, flags: Flags) -> bool:
    """Tell whether requests (SGLang) or their length (vLLM) move the pool.

    States beside it do, old EAGLE headroom (SGLang 0.4.6 to 0.5.5 adds running requests times draft tokens to the pool
    of a speculating target), and a profile run of the longest prompt.
    """
    if keeps_states(model):
        return True
    if engine.name is EngineName.VLLM:
        return whole_prompt_tokens(engine.version, flags) is not None
    release = parse_version(engine.version)
    is_old = release is not None and (0, 4, 6, 0) <= release < (0, 5, 6, 0)
    return engine.name is EngineName.SGLANG and is_old and bool(speculation(flags))


def deployment_key(model: Model, engine: Engine, flags: Flags, gpu_count: int) -> Key:
    """Return what is known of the key of a start with these flags."""
    key: dict[str, str] = {"engine": engine.name.value}
    if engine.version is not None:
        key["version"] = plain_version(engine.version)
    if engine.variant is not None:
        key["variant"] = engine.variant.strip().lower()
    if model.revision is not None:
        key["revision"] = model.revision.strip()
    fields = key_fields(engine.name, requests_move_pool=requests_move_pool(model, engine, flags))
    for field, names in fields.items():
        name = next((name for name in names if name in flags), None)
        if name is not None:
            key.update(_canonical(field, flags[name]))
    if engine.name is EngineName.VLLM and (tokens := whole_prompt_tokens(engine.version, flags)):
        key["batched_tokens"] = str(tokens)
    if key.get("kv_dtype") == AUTO and keeps_8bit_kv(model.facts):
        key["kv_dtype"] = "fp8"
    if gpu_count == 1:
        key.setdefault("tp", "1")
    return key


def observation_key(start: Observation) -> Key:
    """Return what is known of a start's deployment key.

    One that died before it had a pool may not have resolved its KV dtype yet.
    """
    key = deployment_key(start.model, start.engine, start.flags, start.hardware.gpu_count)
    if start.came_up or start.measurements.pool_tokens is not None or key.get("kv_dtype") != AUTO:
        return key
    return {field: value for field, value in key.items() if field != "kv_dtype"}


def agrees(one: Key, other: Key) -> bool:
    """Tell whether no field that both know differs."""
    small, large = (one, other) if len(one) <= len(other) else (other, one)
    return all(large.get(field, value) == value for field, value in small.items())


def differing_fields(one: Key, other: Key) -> frozenset[str]:
    """Return the fields that both know and that differ."""
    return frozenset(field for field in one.keys() & other.keys() if one[field] != other[field])


def group_starts(starts: Iterable[Observation]) -> tuple[Group, ...]:
    """Group starts by deployment, the newest start's group first; the order of ``starts`` does not matter.

    A start whose key has gaps joins the one group that agrees with all it knows; where several do, it stands alone if
    it came up, and else joins the one that came up last: a death founds no deployment.
    """
    ordered = sorted(starts, key=lambda start: (start.observed_at, start.id.int))
    by_key: dict[tuple[tuple[str, str], ...], list[int]] = {}
    memo: dict[tuple[object, ...], list[int]] = {}
    facts: list[Facts] = []
    for position, start in enumerate(ordered):
        signature = _signature(start, _number_of(start.model.facts, facts))
        home = memo.get(signature)
        if home is None:
            items = tuple(sorted(observation_key(start).items()))
            home = memo[signature] = by_key.setdefault(items, [])
        home.append(position)
    merged: list[tuple[dict[str, str], list[int]]] = []
    for items in sorted(by_key, key=lambda items: (-len(items), items)):
        key, members = dict(items), by_key[items]
        homes = [group for group in merged if agrees(group[0], key)]
        if len(homes) > 1 and not any(ordered[position].came_up for position in members):
            homes = [max(homes, key=lambda group: _last_up(ordered, group[1]))]
        if len(homes) == 1:
            homes[0][0].update(key)
            homes[0][1].extend(members)
        else:
            merged.append((key, members))
    merged.sort(key=lambda group: max(group[1]), reverse=True)
    return tuple(Group(key, tuple(ordered[position] for position in sorted(members))) for key, members in merged)


def _last_up(ordered: Sequence[Observation], members: Sequence[int]) -> int:
    return max((position for position in members if ordered[position].came_up), default=-1)


def _number_of(told: Facts, known: list[Facts]) -> int:
    """Return the place of facts among those known, added where they are new: nearly all starts tell the same."""
    for number, facts in enumerate(known):
        if facts is told or facts == told:
            return number
    known.append(told)
    return len(known) - 1


def _signature(start: Observation, facts: int) -> tuple[object, ...]:
    """Return what a start's key follows from, so that equal starts are read once; true, 1 and 1.0 stay apart."""
    engine, model = start.engine, start.model
    flags = {**start.flags, FRACTION_FLAG[engine.name]: None}
    kinds = tuple(map(type, flags.values()))
    known = (engine.name, engine.version, engine.variant, model.revision, facts, start.hardware.gpu_count)
    has_pool = start.came_up or start.measurements.pool_tokens is not None
    return has_pool, *known, tuple(flags.items()), kinds


def _canonical(field: str, value: Scalar) -> dict[str, str]:
    """Return the field with its canonical value, or nothing where the value says nothing."""
    if value in _SAYS_NOTHING.get(field, ()):
        return {}
    if field in _ONE_WHEN_OFF:
        return {field: _number_text(value) or "1"}
    if field == "kv_dtype":
        return {field: dtype_word(value)}
    if not is_on(value):
        return {field: "off"}
    return {field: _number_text(value) or ("on" if value is True else _canonical_text(str(value)))}


def _canonical_text(text: str) -> str:
    """Return text in lower case; a JSON object, or the same as Python prints it, as JSON with its keys in order."""
    text = text.strip()
    for read in (json.loads, ast.literal_eval) if text.startswith("{") else ():
        try:
            table = read(text)
            return json.dumps(table, sort_keys=True, ensure_ascii=False, default=str).lower()
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return text.lower()


def _number_text(value: Scalar) -> str | None:
    number = as_number(value)
    return None if number is None else f"{number:.6g}"


def dtype_word(value: Scalar) -> str:
    """Return a KV dtype as the key has it: what is 16-bit by name is what ``auto`` is for nearly every checkpoint."""
    word = str(value).strip().lower().removeprefix("torch.") if value is not None else AUTO
    word = QUANT_POLICIES.get(word, word)
    if "fp8" in word or word.startswith("float8"):
        return "fp8"
    return AUTO if word in ("bf16", "fp16", "bfloat16", "float16", "half") else word


def _short_hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:10]


def key_identifier(key: Key) -> str:
    """Return a short id of a key that no start stands behind yet."""
    return _short_hash("|".join(f"{field}={key[field]}" for field in sorted(key)))


def deployment_label(key: Key) -> str:
    """Return a name that a person reads: ``SGLang 0.5.12, TP 8, DFLASH``."""
    engine = key.get("engine")
    head = NAMES[EngineName(engine)].title if engine else "engine"
    parts = [f"{head} {key['version']}" if "version" in key else head]
    if "variant" in key:
        parts[0] += f" ({key['variant']})"
    parts.extend(text for field, describe in _DESCRIPTIONS if (text := describe(key.get(field))) is not None)
    return ", ".join(parts)


def _sized(prefix: str) -> Callable[[str | None], str | None]:
    return lambda value: None if value in (None, "1", "off") else f"{prefix} {value}"


def _plain(value: str | None) -> str | None:
    return None if value in (None, "off", "auto") else str(value)


def _speculation(value: str | None) -> str | None:
    """Return the algorithm, of a configuration its method and the last part of its draft's path: never cut text."""
    if value is None or value == "off":
        return None
    if _WORD.fullmatch(value):
        return value.upper()
    told = {found["name"]: found["value"] for found in _METHOD_OR_MODEL.finditer(value)}
    method, model = told.get("method", "").upper(), told.get("model", "").rstrip("/").rpartition("/")[2]
    return " ".join(filter(None, (method, model))) or "speculative decoding"


_DESCRIPTIONS: Sequence[tuple[str, Callable[[str | None], str | None]]] = (
    ("tp", _sized("TP")),
    ("pp", _sized("PP")),
    ("dp", _sized("DP")),
    ("dcp", _sized("DCP")),
    ("dp_attention", lambda value: "DP attention" if value == "on" else None),
    ("quantization", _plain),
    ("kv_dtype", lambda value: None if value in (None, "auto") else f"{value} KV"),
    ("speculation", _speculation),
    ("attention", _plain),
    ("page", _sized("page")),
    ("role", _plain),
    ("post_capture", lambda value: "sized after capture" if value == "on" else None),
    ("batched_tokens", _sized("batched tokens")),
    ("sequences", _sized("sequences")),
    ("eager", lambda value: "eager" if value == "on" else None),
)
