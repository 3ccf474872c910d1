"""A model's own ``config.json``: which of its fields are worth keeping, and finding it on this host."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kvyield._errors import SourceError

LONGEST_FILE_BYTES = 4 * 2**20
LONGEST_TEXT = 200
LONGEST_LIST = 2000
_INNER = ("text_config", "llm_config", "language_config", "thinker_config")
_DROPPED = frozenset({"auto_map", "id2label", "label2id", "transformers_version", "torch_dtype_map"})


def kept_facts(config: Mapping[str, object]) -> dict[str, object]:
    """The numbers, short texts and lists of them; the language part of a multimodal model comes to the top."""
    inner = next((part for name in _INNER if isinstance(part := config.get(name), Mapping)), {})
    flat = {**config, **inner}
    return {str(name): value for name, value in flat.items() if name not in _DROPPED and _is_kept(value)}


def read_model_config(path: Path) -> dict[str, object]:
    """The kept facts of a ``config.json``, or of the one in a folder. Raises `SourceError`."""
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            config = msgspec.json.decode(opened.read(LONGEST_FILE_BYTES))
    except OSError as error:
        raise SourceError(f"the model's config.json {file} cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{file} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise SourceError(f"{file} is not a model's config.json: it holds no object")
    return kept_facts(config)


def find_model_config(told: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The ``config.json`` of a model path or hub name as the engine was given it, where this host has it."""
    folders = [Path(told)] if told.startswith("/") else _cached(told, environment)
    found = [folder / "config.json" for folder in folders if (folder / "config.json").is_file()]
    return max(found, key=lambda file: file.stat().st_mtime, default=None)


def _cached(name: str, environment: Mapping[str, str]) -> list[Path]:
    home = Path(environment.get("HF_HOME") or Path(environment.get("HOME") or "/") / ".cache" / "huggingface")
    hub = Path(environment.get("HF_HUB_CACHE") or home / "hub")
    try:
        return list((hub / f"models--{name.replace('/', '--')}" / "snapshots").iterdir())
    except (OSError, ValueError):
        return []


def _is_kept(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= LONGEST_LIST and all(_is_scalar(item) for item in value)
    return value is not None and _is_scalar(value)


def _is_scalar(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT
    return value is None or (isinstance(value, int) and abs(value) < 2**63)
