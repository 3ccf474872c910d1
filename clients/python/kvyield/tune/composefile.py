"""The command of a service in a docker compose file, edited where it stands.

PyYAML tells where each value begins and ends; the text between stays byte for byte. The result is parsed again and
must be the old document with the new command, or nothing is written.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from kvyield._errors import TuneError
from kvyield._wire import Scalar
from kvyield.tune import commandline
from kvyield.tune.splicing import Span, changes, shell_words, spliced

IMAGES = {"vllm/vllm-openai": ("vllm", "serve")}
"""Images whose entry point is the engine's program, so that a command holds its arguments alone."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """YAML's safe loader, with compose's own tags (``!override``, ``!reset``) read as what they mark."""


def _marked(loader: yaml.SafeLoader, _suffix: str, node: Any) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)


_Loader.add_multi_constructor("!", _marked)


@dataclass(frozen=True)
class _Part:
    """``entrypoint`` or ``command``: the node, its words, and the index of its first word in the whole command."""

    key: str
    node: Any
    words: tuple[str, ...]


@dataclass(frozen=True)
class _Found:
    """A service that starts an engine."""

    name: str
    engine: str
    before: tuple[str, ...]
    parts: tuple[_Part, ...]

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.before, *(word for part in self.parts for word in part.words))


def edited(text: str, flags: Mapping[str, Scalar], hint: str = "") -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The file with other flags, the command that it holds then, and notes.

    ``hint`` is a text that may name the service, such as the restart command, where several start an engine.

    Raises:
        TuneError: no service starts an engine, several do, or its command cannot be edited where it stands.
    """
    found = _service(text, hint)
    change = commandline.edit(found.argv, found.engine, flags, read=lambda _path: None)
    if change.argv == found.argv:
        return text, change.argv, change.notes
    document, new = _loaded(text), text
    for part, (argv, origins) in reversed([*zip(found.parts, _shares(found, change), strict=True)]):
        new = _rewritten(new, part, argv, origins)
        document["services"][found.name][part.key] = _like(part, argv)
    if _loaded(new) != document:
        new = _rewritten_whole(text, found, document)
    return new, change.argv, change.notes


def argv_of(text: str, hint: str = "") -> tuple[str, tuple[str, ...]]:
    """The engine and the whole command of the service that starts one. Raises `TuneError` as `edited` does."""
    found = _service(text, hint)
    return found.engine, found.argv


def _shares(found: _Found, change: commandline.Edited) -> list[tuple[list[str], list[int | None]]]:
    """The words of each part, origins counted from its own first; new ones belong to what they replace or follow."""
    begins = [len(found.before)]
    for part in found.parts:
        begins.append(begins[-1] + len(part.words))
    last = len(found.parts) - 1
    shares: list[tuple[list[str], list[int | None]]] = [([], []) for _ in found.parts]
    kept = {origin for origin in change.origins if origin is not None}
    following, at_end = begins[0], max(kept, default=-1)
    for word, origin in zip(change.argv, change.origins, strict=True):
        if origin is not None:
            following = origin + 1
            if origin < begins[0]:
                continue
        place = origin if origin is not None else following - (following in kept or following == begins[-1])
        index = next((one for one in range(last + 1) if begins[one] <= place < begins[one + 1]), 0)
        if origin is None and following > at_end:
            index = last
        shares[index][0].append(word)
        shares[index][1].append(None if origin is None else origin - begins[index])
    return shares


def _rewritten(text: str, part: _Part, argv: Sequence[str], origins: Sequence[int | None]) -> str:
    if isinstance(part.node, yaml.SequenceNode):
        return _list_rewritten(text, part.node, argv, origins)
    begin, end = part.node.start_mark.index, part.node.end_mark.index
    if part.node.style in ("|", ">"):
        begin = text.index("\n", begin)
    spans = [Span(one.text.replace("$$", "$"), one.begin, one.end) for one in shell_words(text, begin, end)]
    if part.node.style in ("'", '"') or tuple(one.text for one in spans) != part.words:
        return text[: part.node.start_mark.index] + json.dumps(_joined(argv), ensure_ascii=False) + text[end:]
    return spliced(text, spans, argv, origins, lambda word: shlex.quote(word.replace("$", "$$")))


def _list_rewritten(text: str, node: Any, argv: Sequence[str], origins: Sequence[int | None]) -> str:
    items = [(one.start_mark.index, _item_end(text, one)) for one in node.value]
    for change in reversed(changes(len(items), argv, origins)):
        gone, words = items[change.begin : change.end], [_item(word) for word in change.words]
        both = min(len(gone), len(words))
        for begin, end in reversed(gone[both:]):
            text = _without_item(text, begin, end, is_flow=bool(node.flow_style))
        if words[both:]:
            anchor = change.begin + both
            if not anchor:
                raise TuneError("the command is an empty list: write it out first")
            begin, end = items[anchor - 1]
            text = text[:end] + _new_items(text, begin, words[both:], is_flow=bool(node.flow_style)) + text[end:]
        for (begin, end), word in reversed([*zip(gone, words, strict=False)]):
            text = text[:begin] + word + text[end:]
    return text


def _item_end(text: str, node: Any) -> int:
    begin, end = int(node.start_mark.index), int(node.end_mark.index)
    return begin + len(text[begin:end].rstrip()) if node.style not in ("|", ">") else end


def _new_items(text: str, begin: int, words: Sequence[str], *, is_flow: bool) -> str:
    if is_flow:
        return "".join(f", {word}" for word in words)
    line = text.rfind("\n", 0, begin) + 1
    ending = "\r\n" if "\r\n" in text else "\n"
    return "".join(f"{ending}{text[line:begin]}{word}" for word in words)


def _without_item(text: str, begin: int, end: int, *, is_flow: bool) -> str:
    if not is_flow:
        line, after = text.rfind("\n", 0, begin) + 1, text.find("\n", end)
        return text[:line] + (text[after + 1 :] if after >= 0 else "")
    comma = text.rfind(",", 0, begin)
    opening = text.rfind("[", 0, begin)
    if comma > opening:
        return text[:comma] + text[end:]
    following = text.find(",", end)
    return text[:begin] + text[following + 1 :].lstrip() if following >= 0 else text[:begin] + text[end:]


def _item(word: str) -> str:
    """A word as a list's item: plain where YAML reads it as that very text, else in double quotes."""
    text = word.replace("$", "$$")
    try:
        is_plain = text.strip() == text and yaml.safe_load(f"[{text}]") == [text] and yaml.safe_load(text) == text
    except yaml.YAMLError:
        is_plain = False
    return text if is_plain and "#" not in text else json.dumps(text, ensure_ascii=False)


def _rewritten_whole(text: str, found: _Found, document: Any) -> str:
    """The parts written anew as lists on one line, where editing the words would not give the wanted document."""
    for part in reversed(found.parts):
        if part.node.tag.startswith("!"):
            raise TuneError(f"the {part.key} of service {found.name} cannot be edited where it stands")
        value = document["services"][found.name][part.key]
        value = [word.replace("$", "$$") for word in value.argv] if isinstance(value, _Words) else value
        begin, end = part.node.start_mark.index, part.node.end_mark.index
        end = begin + len(text[begin:end].rstrip())
        text = text[:begin] + json.dumps(value, ensure_ascii=False) + text[end:]
    if _loaded(text) != document:
        raise TuneError(f"the command of service {found.name} cannot be edited where it stands: write it as a list")
    return text


def _loaded(text: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506  # a safe loader
    except yaml.YAMLError:
        return None


def _like(part: _Part, argv: Sequence[str]) -> Any:
    if isinstance(part.node, yaml.SequenceNode):
        return [word.replace("$", "$$") for word in argv]
    return _Words(argv)


class _Words:
    """Equal to a list of these words, and to any text that is split into them."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = tuple(argv)

    def __eq__(self, other: object) -> bool:
        words = tuple(one.replace("$$", "$") for one in other) if isinstance(other, list) else None
        return (_split(other) if isinstance(other, str) else words) == self.argv

    __hash__ = None  # type: ignore[assignment]


def _joined(argv: Sequence[str]) -> str:
    return shlex.join(argv).replace("$", "$$")


def _split(text: str) -> tuple[str, ...]:
    return tuple(one.text.replace("$$", "$") for one in shell_words(text))


def _service(text: str, hint: str) -> _Found:
    try:
        root = yaml.compose(text, _Loader)
        document = yaml.load(text, _Loader)  # noqa: S506  # a safe loader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise TuneError(f"it is no YAML: {' '.join(str(error).split())[:200]}") from error
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict) or root is None:
        raise TuneError("it has no services: a compose file with the engine's command is needed")
    nodes = {key.value: node for key, node in _mapping(dict(_pairs(root)).get("services")).items()}
    found, reasons = [], []
    for name, node in nodes.items():
        try:
            one = _of_service(name, node, services.get(name))
        except TuneError as error:
            reasons.append(f"service {name}: {error}")
            continue
        if one is not None:
            found.append(one)
    if len(found) > 1:
        words = hint.split()
        named = [one for one in found if one.name in words]
        found = named if len(named) == 1 else found
    if len(found) != 1:
        names = ", ".join(one.name for one in found)
        raise TuneError(
            f"several services start an engine ({names}): name one of them in --restart-command"
            if found
            else "; ".join(reasons) or f"no service starts an engine that kvyield knows: {', '.join(map(str, nodes))}"
        )
    return found[0]


def _pairs(node: Any) -> list[tuple[str, Any]]:
    return [(key.value, value) for key, value in node.value] if isinstance(node, yaml.MappingNode) else []


def _mapping(node: Any) -> dict[Any, Any]:
    return dict(node.value) if isinstance(node, yaml.MappingNode) else {}


def _of_service(name: str, node: Any, content: Any) -> _Found | None:
    """The service's engine, None when it starts none."""
    if not isinstance(content, dict):
        return None
    own = dict(_pairs(node))
    image = str(content.get("image", "")).partition("@")[0].rpartition("/")
    base = f"{image[0].rpartition('/')[2]}/{image[2].partition(':')[0]}"
    before = () if content.get("entrypoint") else IMAGES.get(base, ())
    parts = []
    for key in ("entrypoint", "command"):
        value = content.get(key)
        if not value:
            continue
        words = tuple(str(one).replace("$$", "$") for one in value) if isinstance(value, list) else _split(str(value))
        parts.append(_Part(key, own.get(key), words))
    argv = (*before, *(word for part in parts for word in part.words))
    engine = commandline.engine_of(argv)
    if engine is None:
        return None
    for part in parts:
        if part.node is None or not node.start_mark.index <= part.node.start_mark.index < node.end_mark.index:
            raise TuneError(f"its {part.key} comes from an anchor that others may share: write it into the service")
        if part.node.tag.startswith("!") and not isinstance(part.node, yaml.SequenceNode):
            raise TuneError(f"its {part.key} is marked {part.node.tag}: write it as a list")
    if not parts:
        raise TuneError("it has no command")
    return _Found(name, engine, before, tuple(parts))
