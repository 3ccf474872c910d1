"""JSON Schemas of wire types with what their docstrings say: of the type, and under ``Attributes:`` of each field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from inspect import getdoc
from typing import Any

import msgspec
from msgspec.inspect import DataclassType, EnumType, StructType, Type, multi_type_info

REFERENCE = "#/components/schemas/{name}"
_SECTION = re.compile(r"\n\n(?:Attributes|Raises):\n")
_ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
_Named = StructType | DataclassType | EnumType


def schemas_of(
    kinds: Sequence[Any], described_by: Mapping[type, type]
) -> tuple[Sequence[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return a schema per type, and by name the components that they refer to, with descriptions.

    A type in ``described_by`` is described by the docstring of the other, whose fields it has.
    """
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    named = {node.cls.__name__: node for node in _named(multi_type_info(kinds), set())}
    for component in components.values():
        node = named[component["title"].partition("[")[0]]
        kind = described_by.get(node.cls, node.cls)
        component["description"] = summary_of(kind)
        if isinstance(node, EnumType):
            component["type"] = "string"
            continue
        said = attributes_of(kind)
        for field in node.fields:
            component["properties"][field.encode_name]["description"] = said.get(field.name, "")
        if isinstance(node, DataclassType):  # only answers hold them, with every field
            component["required"] = list(component["properties"])
    return schemas, components


def summary_of(kind: type) -> str:
    """Return what a type's docstring says before its sections, on one line."""
    return _one_line(_SECTION.split(_docstring(kind), maxsplit=1)[0])


def attributes_of(kind: type) -> dict[str, str]:
    """Return the sentences of the fields of a type and its bases, by name; a type's own come before its bases'."""
    found: dict[str, str] = {}
    for each in reversed(_origin(kind).__mro__):
        text = getdoc(each) if each.__doc__ and "Attributes:" in each.__doc__ else ""
        found |= {name: _one_line(said) for name, said in _ATTRIBUTE.findall((text or "").partition("Attributes:")[2])}
    return found


def _docstring(kind: type) -> str:
    return getdoc(_origin(kind)) or ""


def _origin(kind: type) -> type:
    origin: type = getattr(kind, "__origin__", kind)  # of a generic type
    return origin


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def _named(value: Any, seen: set[Any]) -> Iterator[_Named]:
    """Yield each struct, dataclass and enumeration that types lead to."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _named(item, seen)
    elif isinstance(value, Type | msgspec.inspect.Field):
        if isinstance(value, _Named):
            if value.cls in seen:
                return
            seen.add(value.cls)
            yield value
        yield from _named(msgspec.structs.astuple(value), seen)
