"""Names that people write in several ways: models as paths, GPUs with and without their vendor."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvyield.engines import Sourced

_CACHE = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)(?:/snapshots/(?P<revision>[0-9a-f]+))?")
_SNAPSHOT = re.compile(r"/snapshots/[0-9a-f]{6,64}/*$")
_PATH = re.compile(r"(?:[/~]|\.{1,2}/|[a-z][a-z0-9+.\-]{1,20}://)")
_SAYS_NOTHING = re.compile(
    r"(?:models?|weights?|ckpts?|checkpoints?|snapshots?|hf|huggingface|data|mnt|workspace|app|input|outputs?|latest|final"
    r"|merged|export|main|master|default|base|target|draft|llm|engines?|trt[_-]?engines?|repo|tmp|checkpoint-\d+|v?\d+"
    r"|[0-9a-f]{12,64})",
    re.IGNORECASE,
)
_VENDORS = ("nvidia", "amd", "instinct", "geforce")


def model_name(told: Sourced | None, served: Sourced | None, configured: Sourced | None) -> Sourced | None:
    """The model's name, from what the engine was told, the name under which it serves, and the model's own config.

    A hub cache folder gives the hub's name and another path its last part. A path that ends in a word which names no
    model ("/model", "/models/x/snapshots/1f0c…") gives the served name, else the folder above the snapshot, else the
    config's name; None when none of them names a model, so that two models never share the name "model".
    """
    if told is None:
        return _usable(served) or _usable(configured)
    text = str(told.value)
    if cached := _CACHE.search(text):
        return Sourced(f"{cached['owner']}/{cached['name']}", f"{told.source} (from the cache folder {text})")
    is_snapshot = _SNAPSHOT.search(text)
    if (usable := _usable(told)) and not is_snapshot:
        return usable
    above = Sourced(_SNAPSHOT.sub("", text), told.source) if is_snapshot else None
    return _usable(served) or _usable(above) or _usable(configured)


def _usable(told: Sourced | None) -> Sourced | None:
    """A name as it is, of a path its last part; None when that part names no model."""
    if told is None or not told.value:
        return None
    text = str(told.value)
    parts: Sequence[str] = [part for part in text.split("/") if part] if _PATH.match(text) else [text]
    if not parts or _SAYS_NOTHING.fullmatch(parts[-1].strip()):
        return None
    return told if parts[-1] == text else Sourced(parts[-1], f"{told.source} (last part of the path {text})")


def loose(name: object) -> str:
    """A name without case, spaces, punctuation, and what a vendor puts before it."""
    text = re.sub(r"[^a-z0-9]", "", str(name).lower().rpartition("/")[2])
    for vendor in _VENDORS:
        text = text.removeprefix(vendor)
    return text


def same_name(first: object, second: object) -> bool:
    """Whether two names may mean one thing: equal when loosely written, or one the beginning or end of the other."""
    one, other = sorted((loose(first), loose(second)), key=len)
    return bool(one) and (other.startswith(one) or other.endswith(one))


def same_size(first: object, second: object) -> bool:
    """Whether two memory sizes are of one GPU: drivers, marketing and ECC differ by up to 8 %."""
    if not isinstance(first, int | float) or not isinstance(second, int | float):
        return first == second
    return abs(first - second) <= 0.08 * max(abs(first), abs(second))
