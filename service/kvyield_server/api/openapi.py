"""The OpenAPI document: the framework's paths, msgspec's schemas with our docstrings, our problems, played examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from inspect import getdoc
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from litestar import Litestar, Response, Router
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import License, Tag
from litestar.response import Stream
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
from kvyield_server.schemas.described import REFERENCE, schemas_of
from kvyield_server.schemas.observations import DESCRIBED_BY, ExportedIn
from kvyield_server.schemas.problem import PROBLEM_MEDIA_TYPE, Problem

Operation = dict[str, Any]

ABOUT = """Which memory flags to restart an LLM engine with: a ledger of engine starts, a yield model fitted to them,
and advice with its uncertainty. Memory is in GiB (2^30 bytes), times are RFC 3339 in UTC, null is not known. Fields and
parameters that are not listed here are refused by name; every refusal is a problem (RFC 9457)."""
TAGS = {
    "Ledger": "Engine starts as they were posted, with their verifications.",
    "Pairs": "Hardware and model pairs, their fits and their yield curves.",
    "Advice": "Predictions, recommendations, and how past recommendations fared.",
    "Service": "Health, metrics, the audit trail, and what each kind of problem means.",
}
_TAG_OF_MODULE = {
    **dict.fromkeys(("observations", "batch", "exports"), "Ledger"),
    "pairs": "Pairs",
    **dict.fromkeys(("advice", "calibration"), "Advice"),
}
_PATH_PARAMETERS = {
    "observation_id": "UUID of the start, or any id that was posted for it.",
    "pair_id": "UUID of the pair, as a start of it or the list of pairs gives it.",
    "recommendation_id": "UUID of a stored recommendation.",
    "code": "Last part of a problem's `type`, such as `invalid`.",
}
_HEADERS = {
    "Location": "Path of what is stored, or of where to go.",
    "ETag": "Names this answer; send it as `If-None-Match` to get 304 while the answer is the same.",
    "Cache-Control": "Always `private, no-cache`: ask again each time.",
    "Content-Disposition": "Name of the file to save the answer as.",
    "WWW-Authenticate": 'Always `Bearer realm="kvyield"`.',
    "Retry-After": "Seconds after which to send the same request again.",
    "X-Request-Id": "Id of the request, which is in the log too: the caller's own `X-Request-Id`, or one that is made.",
}
_OF_STATUS = {
    "302": ("Location",),
    "304": ("ETag", "Cache-Control"),
    "401": ("WWW-Authenticate",),
    "503": ("Retry-After",),
}
_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "`ETag` of an answer that the caller has; 304 while it is the same.",
    "schema": {"type": "string"},
}
_DESCRIPTIONS = {  # what the framework says by default
    "Request fulfilled, document follows": "The answer.",
    "Document created, URL follows": "It is stored.",
    "Stream Response": "The rows, as they are read.",
}
_SECURITY = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token that `kvyield-server token create --name NAME --role ingest|read|admin` made. While none "
    "exists, the service answers on loopback without one.",
}
_TEXTS = ("text/csv", "application/x-ndjson")
_PROBLEM = {"schema": {"$ref": REFERENCE.format(name="Problem")}}


def document(api: Router) -> dict[str, Any]:
    """Return the document of all routes of a router.

    The framework loses ``additionalProperties``, defaults and descriptions of structs, so schemas come from msgspec; it
    does not know parameters that are read as one struct, nor what problems look like.
    """
    config = OpenAPIConfig(
        title="kvyield",
        version=__version__,
        description=" ".join(ABOUT.split()),
        license=License(name="Apache-2.0", identifier="Apache-2.0"),
        tags=[Tag(name=name, description=text) for name, text in TAGS.items()],
        path="/unused",
    )
    app = Litestar([api], openapi_config=config, logging_config=None)
    result = app.openapi_schema.to_schema()
    handlers = {
        (route.path_format, method.lower()): it
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for it in route.route_handlers
        for method in it.http_methods
    }
    operations = [
        (operation, handlers[path, method])
        for path, item in result["paths"].items()
        for method, operation in item.items()
    ]
    kinds = [kind for _, handler in operations for kind in _wire_types(handler)]
    schemas, components = schemas_of([*kinds, ExportedIn, Problem], DESCRIBED_BY)
    schema_of = dict(zip(kinds, schemas, strict=False))
    for operation, handler in operations:
        _complete(operation, handler, schema_of)
        _exemplify(operation)
    queries = {query.__name__ for _, handler in operations if (query := _query_of(handler))}
    result["components"] = {
        "schemas": {name: schema for name, schema in sorted(components.items()) if name not in queries},
        "headers": {
            name: {"schema": {"type": "string"}, "description": description} for name, description in _HEADERS.items()
        },
        "securitySchemes": {"bearer": _SECURITY},
    }
    return result


def _complete(operation: Operation, handler: HTTPRouteHandler, schema_of: Mapping[Any, Any]) -> None:
    text = " ".join((getdoc(handler.fn) or "").split()).replace("``", "`")
    operation["summary"], operation["description"] = re.split(r"[.;:](?: |$)", text)[0], text
    operation["tags"] = [_TAG_OF_MODULE.get(handler.fn.__module__.rpartition(".")[2], "Service")]
    guards = [guard for guard in handler.resolve_guards() if isinstance(guard, Allows)]
    for guard in guards:
        operation["security"] = [{"bearer": []}, {}]
        operation["description"] += f" For tokens of the role {' or '.join(sorted(guard.roles))}."
    if handler.parsed_data_field is not None:
        body = schema_of[handler.parsed_data_field.annotation]
        operation["requestBody"]["content"] = {"application/json": {"schema": body}}
    responses = operation["responses"]
    responses.pop("400", None)  # of the framework, whose checks are not used
    for status, problem in _common_problems(handler, is_guarded=bool(guards)).items():
        responses.setdefault(status, problem)
    _complete_answers(operation, handler, schema_of)
    operation["parameters"] = list(_parameters(operation, handler))
    for status, response in responses.items():
        response["description"] = _DESCRIPTIONS.get(response["description"], response["description"])
        names = {*response.get("headers", {}), *_OF_STATUS.get(status, ()), "X-Request-Id"}
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in sorted(names)}
        if PROBLEM_MEDIA_TYPE in response.get("content", {}):
            response["content"] = {PROBLEM_MEDIA_TYPE: dict(_PROBLEM)}
    default: dict[str, Any] = {
        "description": "A problem (RFC 9457).",
        "content": {PROBLEM_MEDIA_TYPE: dict(_PROBLEM)},
        "headers": responses["500"]["headers"],
    }
    operation["responses"] = {**dict(sorted(responses.items())), "default": default}


def _complete_answers(operation: Operation, handler: HTTPRouteHandler, schema_of: Mapping[Any, Any]) -> None:
    """Put right what the framework says of answers that are not problems."""
    responses = operation["responses"]
    answer = _answer_of(handler)
    if "201" in responses and "200" in responses:  # what was stored before is answered alike
        responses["200"]["headers"] = responses["201"]["headers"]
    for status in ("200", "201"):
        content = responses.get(status, {}).get("content", {})
        if answer is not None and "application/json" in content:
            content["application/json"] = {"schema": schema_of[answer]}
    if "HEAD" in handler.http_methods and operation["operationId"].startswith("head_"):
        responses["200"].pop("content", None)
        return
    if "GET" not in handler.http_methods:
        return
    query = _query_of(handler)
    if query is not None and "format" in query.__struct_fields__:
        responses["200"]["content"]["text/plain"] = {"schema": {"type": "string"}}
    if handler.parsed_fn_signature.return_type.annotation is Stream:
        responses["200"]["headers"] = {"Content-Disposition": None}
        content = responses["200"]["content"]
        for kind, media in content.items():
            media["schema"] = {"type": "string"} if kind in _TEXTS else {"type": "string", "format": "binary"}
        return
    responses["200"]["headers"] = dict.fromkeys(("ETag", "Cache-Control"))
    responses["304"] = {"description": "The caller has the answer already: `If-None-Match` names it."}


def _common_problems(handler: HTTPRouteHandler, *, is_guarded: bool) -> dict[str, Any]:
    """Return the problems that a handler answers with by what it asks for, not by what it does."""
    kinds: set[type[KvyieldError]] = {KvyieldError, InvalidError}  # unknown parameters are refused everywhere
    if is_guarded:
        kinds |= {UnauthenticatedError, StorageUnavailableError}
    if is_guarded or not any(path.startswith("/health") for path in handler.paths):
        kinds |= {ForbiddenError}  # without tokens, what comes by the name of another host is refused
    if handler.parsed_data_field is not None:
        kinds |= {MalformedError, TooSlowError, TooLargeError, UnsupportedMediaError}
    specs = responses_of(*kinds)
    return {
        str(status): {"description": it.description, "content": {PROBLEM_MEDIA_TYPE: {}}}
        for status, it in specs.items()
    }


def _parameters(operation: Operation, handler: HTTPRouteHandler) -> Iterator[dict[str, Any]]:
    for parameter in operation.get("parameters", []):
        yield {**parameter, "description": _PATH_PARAMETERS.get(parameter["name"], "")}
    query = _query_of(handler)
    if query is not None:
        _, components = schemas_of([query], {})
        said = components[query.__name__]
        for name, schema in said["properties"].items():
            description, is_needed = schema.pop("description"), name in said.get("required", [])
            told = {"name": name, "in": "query", "required": is_needed, "description": description}
            yield {**told, "schema": _in_query(schema)}
    if "304" in operation["responses"]:
        yield dict(_IF_NONE_MATCH)


def _in_query(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a query parameter, which is left out instead of null; a day may be given for a time."""
    if schema.get("default", ...) is not None:
        return schema
    options = [option for option in schema["anyOf"] if option != {"type": "null"}]
    if any(option.get("format") == "date-time" for option in options):
        options.append({"type": "string", "format": "date"})
    return options[0] if len(options) == 1 else {"anyOf": options}


def _wire_types(handler: HTTPRouteHandler) -> Iterator[Any]:
    """Yield the types of a handler's body, answer and parameters."""
    if handler.parsed_data_field is not None:
        yield handler.parsed_data_field.annotation
    answer, query = _answer_of(handler), _query_of(handler)
    yield from (kind for kind in (answer, query) if kind is not None)


def _query_of(handler: HTTPRouteHandler) -> type[msgspec.Struct] | None:
    field = handler.parsed_fn_signature.parameters.get("parameters")
    return field.annotation if field else None


def _answer_of(handler: HTTPRouteHandler) -> Any:
    """Return the wire type of a handler's JSON answer; None for texts, streams and redirections."""
    returned = handler.parsed_fn_signature.return_type.annotation
    options = get_args(returned) if get_origin(returned) in (Union, UnionType) else (returned,)
    for option in options:
        inner = get_args(option)[0] if get_origin(option) is Response else option
        origin = get_origin(inner) or inner
        if origin is list or (isinstance(origin, type) and issubclass(origin, msgspec.Struct)):
            return inner
    return None


def _exemplify(operation: Operation) -> None:
    """Add the examples of an operation: the request of the first one, the first answer of each status and type."""
    steps = [step for step in examples() if step["operation"] == operation["operationId"]]
    for step in reversed(steps):
        if "answer" in step:
            content = operation["responses"][str(step["status"])]["content"]
            content[step["media_type"]]["example"] = step["answer"]
    if not steps:
        return
    first = steps[0]
    if "body" in first:
        operation["requestBody"]["content"]["application/json"]["example"] = first["body"]
    given = {**first.get("path", {}), **first.get("query", {})}
    for parameter in operation["parameters"]:
        if parameter["name"] in given:
            parameter["example"] = given[parameter["name"]]


@cache
def examples() -> list[dict[str, Any]]:
    """Return the examples in the order in which they can be sent to a service whose ledger is empty.

    Each has ``operation``, ``path``, ``query``, ``body``, and what is answered: ``status``, ``media_type``, ``answer``.
    """
    text = files("kvyield_server.api").joinpath("examples.json").read_text()
    steps: list[dict[str, Any]] = json.loads(text)
    return steps
