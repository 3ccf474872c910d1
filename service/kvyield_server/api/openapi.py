"""The OpenAPI document: the framework's paths, msgspec's own schemas, our parameters and problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig

from kvyield_server import __version__
from kvyield_server.api.auth import ROLES
from kvyield_server.api.request import MEDIA, QUERY
from kvyield_server.schemas.observations import ObservationIn
from kvyield_server.schemas.problem import PROBLEM_MEDIA_TYPE, Problem

_REF = "#/components/schemas/{name}"
_SECURITY = {"type": "http", "scheme": "bearer", "description": "kvyield-server token create --role ingest|read|admin"}


def document(handlers: Sequence[HTTPRouteHandler]) -> dict[str, Any]:
    """Return the document of handlers.

    The framework loses ``additionalProperties``, defaults and descriptions of structs, so components come from msgspec;
    it does not know parameters that are read as one struct, nor what problems look like.
    """
    config = OpenAPIConfig(title="kvyield", version=__version__, path="/unused")
    result = Litestar([*handlers], openapi_config=config, logging_config=None).openapi_schema.to_schema()
    by_id = {handler.operation_id: handler for handler in handlers}
    for item in result["paths"].values():
        for operation in item.values():
            if isinstance(operation, dict) and "operationId" in operation:
                _complete(operation, by_id.get(operation["operationId"]))
    _add_components(result, handlers)
    return dict(_any_of(result))


def _complete(operation: dict[str, Any], handler: HTTPRouteHandler | None) -> None:
    problem = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}}
    operation["responses"].pop("400", None)
    operation["responses"]["default"] = {"description": "A problem (RFC 9457).", "content": problem}
    if handler is None:
        return
    if media := handler.opt.get(MEDIA):
        operation["responses"]["200"]["content"] = _content(operation["responses"]["200"], media)
    if query := handler.opt.get(QUERY):
        operation["parameters"] = [*operation.get("parameters", []), *_parameters(query)]
    if handler.opt.get(ROLES):
        operation["security"] = [{"bearer": []}, {}]


def _any_of(value: Any) -> Any:
    """Return the document with unions as ``anyOf``: ``oneOf`` would refuse 1, which is whole and a number."""
    if isinstance(value, dict):
        return {"anyOf" if name == "oneOf" else name: _any_of(item) for name, item in value.items()}
    return [_any_of(item) for item in value] if isinstance(value, list) else value


def _content(response: dict[str, Any], media: Sequence[str]) -> dict[str, Any]:
    """Return what an answer holds in each media type: the first documented schema as JSON, text in all others."""
    schema = response["content"]["application/json"]["schema"]
    documented = schema.get("oneOf", [schema])[0]
    return {kind: {"schema": documented if kind == "application/json" else {"type": "string"}} for kind in media}


def _parameters(query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([query], ref_template=_REF)
    schema = components[query.__name__]
    needed = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in needed, "schema": inner}
        for name, inner in schema["properties"].items()
    ]


def _add_components(result: dict[str, Any], handlers: Sequence[HTTPRouteHandler]) -> None:
    known = result["components"]["schemas"]
    queries = [handler.opt[QUERY] for handler in handlers if QUERY in handler.opt]
    bodies = [field.annotation for handler in handlers if (field := handler.parsed_data_field)]
    _, ours = msgspec.json.schema_components([*queries, *bodies, ObservationIn, Problem], ref_template=_REF)
    dropped = {query.__name__ for query in queries}
    known.update({name: schema for name, schema in ours.items() if name not in dropped})
    result["components"]["securitySchemes"] = {"bearer": _SECURITY}
