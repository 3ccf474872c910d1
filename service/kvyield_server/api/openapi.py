"""The OpenAPI document: the framework's paths, msgspec's own schemas, our parameters and problems."""

from __future__ import annotations

import re
from collections.abc import Collection
from inspect import getdoc
from typing import Any

import msgspec
from litestar import Litestar, Router
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.routes import HTTPRoute

from kvyield_server import __version__
from kvyield_server.api.auth import Allows
from kvyield_server.api.problems import (
    MalformedError,
    TooLargeError,
    TooSlowError,
    UnsupportedMediaError,
    responses_of,
)
from kvyield_server.errors import (
    ForbiddenError,
    InvalidError,
    KvyieldError,
    StorageUnavailableError,
    UnauthenticatedError,
)
from kvyield_server.schemas.observations import ObservationIn
from kvyield_server.schemas.problem import PROBLEM_MEDIA_TYPE, Problem

_REF = "#/components/schemas/{name}"
_PROBLEM = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}}
_HEADERS = {
    "401": {"WWW-Authenticate": 'Always `Bearer realm="kvyield"`.'},
    "503": {"Retry-After": "Seconds after which to send the same request again."},
}
_TAGGED = {
    "ETag": {"description": "Names this answer; send it as `If-None-Match` to get 304 while the answer is the same."},
    "Cache-Control": {"description": "Always `private, no-cache`: ask again each time."},
}
_DESCRIPTIONS = {  # what the framework says by default
    "Request fulfilled, document follows": "The answer.",
    "Document created, URL follows": "It is stored.",
}
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
    text = " ".join((getdoc(handler.fn) or "").split()).replace("``", "`")
    operation["summary"], operation["description"] = re.split(r"[.;:](?: |$)", text)[0], text
    operation["responses"].pop("400", None)
    for media in operation["responses"].get("200", {}).get("content", {}).values():
        media["schema"] = media["schema"].get("oneOf", [media["schema"]])[0]  # the others are texts and redirections
    if query := _query_of(handler):
        operation["parameters"] = [*operation.get("parameters", []), *_parameters(query)]
        if "format" in query.__struct_fields__:
            operation["responses"]["200"]["content"]["text/plain"] = {"schema": {"type": "string"}}
    for guard in handler.resolve_guards():
        if isinstance(guard, Allows):
            operation["security"] = [{"bearer": []}, {}]
            operation["description"] += f" For tokens of the role {' or '.join(sorted(guard.roles))}."
    for status, response in _common_problems(handler, has_parameters="parameters" in operation).items():
        operation["responses"].setdefault(status, response)
    if "GET" in handler.http_methods and "application/json" in operation["responses"]["200"].get("content", {}):
        operation["responses"]["304"] = {"description": "The caller has the answer already: `If-None-Match` names it."}
        for status in ("200", "304"):
            operation["responses"][status]["headers"] = _TAGGED
    _declare_headers(operation["responses"])
    operation["responses"]["default"] = {"description": "A problem (RFC 9457).", "content": _PROBLEM}


def _common_problems(handler: HTTPRouteHandler, *, has_parameters: bool) -> dict[str, Any]:
    """Return the problems that a handler answers with by what it asks for, not by what it does."""
    kinds: set[type[KvyieldError]] = {KvyieldError}
    if any(isinstance(guard, Allows) for guard in handler.resolve_guards()):
        kinds |= {UnauthenticatedError, ForbiddenError, StorageUnavailableError}
    if handler.parsed_data_field is not None:
        kinds |= {MalformedError, TooSlowError, TooLargeError, UnsupportedMediaError, InvalidError}
    if has_parameters:
        kinds |= {InvalidError}
    specs = responses_of(*kinds)
    return {str(status): {"description": it.description, "content": _PROBLEM} for status, it in specs.items()}


def _declare_headers(responses: dict[str, Any]) -> None:
    """Add the headers that middleware and error handlers set."""
    for status, response in responses.items():
        response["description"] = _DESCRIPTIONS.get(response["description"], response["description"])
        own = {name: {"description": text} for name, text in _HEADERS.get(status, {}).items()}
        headers = {**response.get("headers", {}), **own}
        response["headers"] = {name: {"schema": {"type": "string"}, **header} for name, header in headers.items()}


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
