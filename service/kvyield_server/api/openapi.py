"""The OpenAPI document: the framework's paths, msgspec's own schemas, our parameters and problems."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from litestar import Litestar, Router
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.routes import HTTPRoute

from kvyield_server import __version__
from kvyield_server.api.auth import Allows
from kvyield_server.schemas.observations import ObservationIn
from kvyield_server.schemas.problem import PROBLEM_MEDIA_TYPE, Problem

_REF = "#/components/schemas/{name}"
_SECURITY = {"type": "http", "scheme": "bearer", "description": "kvyield-server token create --role ingest|read|admin"}


def document(api: Router) -> dict[str, Any]:
    """Return the document of all routes of a router.

    The framework loses ``additionalProperties``, defaults and descriptions of structs, so components come from msgspec;
    it does not know parameters that are read as one struct, nor what problems look like.
    """
    config = OpenAPIConfig(title="kvyield", version=__version__, path="/unused")
    app = Litestar([api], openapi_config=config, logging_config=None)
    result = app.openapi_schema.to_schema()
    routes = [route for route in app.routes if isinstance(route, HTTPRoute)]
    handlers = {
        (route.path_format, method.lower()): it
        for route in routes
        for it in route.route_handlers
        for method in it.http_methods
    }
    for path, item in result["paths"].items():
        for method, operation in item.items():
            _complete(operation, handlers[path, method])
    _add_components(result, handlers.values())
    return dict(_any_of(result))


def _complete(operation: dict[str, Any], handler: HTTPRouteHandler) -> None:
    problem = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}}
    operation["responses"].pop("400", None)
    operation["responses"]["default"] = {"description": "A problem (RFC 9457).", "content": problem}
    for media in operation["responses"].get("200", {}).get("content", {}).values():
        media["schema"] = media["schema"].get("oneOf", [media["schema"]])[0]  # the others are texts and redirections
    if query := _query_of(handler):
        operation["parameters"] = [*operation.get("parameters", []), *_parameters(query)]
        if "format" in query.__struct_fields__:
            operation["responses"]["200"]["content"]["text/plain"] = {"schema": {"type": "string"}}
    if any(isinstance(guard, Allows) for guard in handler.resolve_guards()):
        operation["security"] = [{"bearer": []}, {}]


def _query_of(handler: HTTPRouteHandler) -> type[msgspec.Struct] | None:
    field = handler.parsed_fn_signature.parameters.get("parameters")
    return field.annotation if field else None


def _any_of(value: Any) -> Any:
    """Return the document with unions as ``anyOf``: ``oneOf`` would refuse 1, which is whole and a number."""
    if isinstance(value, dict):
        return {"anyOf" if name == "oneOf" else name: _any_of(item) for name, item in value.items()}
    return [_any_of(item) for item in value] if isinstance(value, list) else value


def _parameters(query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([query], ref_template=_REF)
    schema = components[query.__name__]
    needed = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in needed, "schema": inner}
        for name, inner in schema["properties"].items()
    ]


def _add_components(result: dict[str, Any], handlers: Collection[HTTPRouteHandler]) -> None:
    known = result["components"]["schemas"]
    queries = [query for handler in handlers if (query := _query_of(handler))]
    bodies = [field.annotation for handler in handlers if (field := handler.parsed_data_field)]
    _, ours = msgspec.json.schema_components([*queries, *bodies, ObservationIn, Problem], ref_template=_REF)
    dropped = {query.__name__ for query in queries}
    known.update({name: schema for name, schema in ours.items() if name not in dropped})
    result["components"]["securitySchemes"] = {"bearer": _SECURITY}
