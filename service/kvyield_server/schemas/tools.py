"""What the tools for agents take: the API's own structs, with the ids that the API has in its paths."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta, Struct

from kvyield_server.schemas.described import REFERENCE, schemas_of
from kvyield_server.schemas.observations import DESCRIBED_BY, VerificationIn
from kvyield_server.schemas.recommendations import RecommendationIn

_REFERENCES = REFERENCE.format(name="")


class MessageIn(Struct):
    """One message of JSON-RPC 2.0: a request, or without ``id`` a notification."""

    jsonrpc: Literal["2.0"]
    method: Annotated[str, Meta(min_length=1, max_length=200)]
    id: int | str | None = None
    params: dict[str, Any] | None = None


class RecommendArguments(RecommendationIn, forbid_unknown_fields=True, kw_only=True):
    """A question, and whether to keep the answer.

    Attributes:
        store: Whether to keep the answer and return its id, which the start that follows names as
            `recommendation_id`. An answer to a question with `facts`, `memory_gib` or `unified_memory` is always kept.
    """

    store: bool = False


class StartArguments(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which start.

    Attributes:
        observation_id: UUID of the start, or any id that was posted for it.
    """

    observation_id: UUID


class VerificationArguments(VerificationIn, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Which start, and the long prompt that was sent to it while GPU memory was sampled.

    Attributes:
        observation_id: UUID of the start that served the prompt.
    """

    observation_id: UUID


class FitArguments(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which pair.

    Attributes:
        pair_id: UUID of the pair, as `find_pair` returns it.
    """

    pair_id: UUID


def input_schema(arguments: type[Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a struct as one object without references, which not every agent follows."""
    _, components = schemas_of([arguments], DESCRIBED_BY)
    return dict(_inlined(components[arguments.__name__], components))


def _inlined(schema: Any, components: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(each, components) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(components[schema["$ref"].removeprefix(_REFERENCES)], components)
    return {name: _inlined(each, components) for name, each in schema.items()}
