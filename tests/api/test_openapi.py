"""The OpenAPI document is one that people and generators can use, and every example in it is really answered so."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from api.examples import DOCUMENT, WHERE, Played, expected, play
from kvyield_server.api.openapi import examples
from kvyield_server.schemas import described

OPERATIONS = {name: DOCUMENT["paths"][path][method] for name, (method, path) in WHERE.items()}
COMPONENTS = DOCUMENT["components"]["schemas"]
SENTENCE = re.compile(r"[A-Z`].{8,}\.", re.DOTALL)
PROBLEM = "application/problem+json"
MODELLED = {  # what the yield model or the advice makes: as its schema says, while its figures follow the model
    *("get_fits", "get_curve", "post_predictions", "get_recommend", "post_recommendation", "get_recommendation"),
    *("post_settlement", "get_calibration"),
}


def schemas(value: Any, way: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each schema within a schema, with the way to it."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from schemas(item, f"{way}/{index}")
    elif isinstance(value, dict):
        yield way, value
        for name, item in value.get("properties", {}).items():
            yield from schemas(item, f"{way}/{name}")
        for name in ("items", "anyOf", "allOf", "oneOf", "additionalProperties"):
            yield from schemas(value.get(name), f"{way}/{name}")


def all_schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each schema of the document: components, parameters, bodies and answers."""
    for name, schema in COMPONENTS.items():
        yield from schemas(schema, name)
    for name, operation in OPERATIONS.items():
        contents = [operation.get("requestBody", {}), *operation["responses"].values()]
        for content in contents:
            for kind, media in content.get("content", {}).items():
                yield from schemas(media["schema"], f"{name} {kind}")
        for parameter in operation["parameters"]:
            yield from schemas(parameter["schema"], f"{name} {parameter['name']}")


def is_valid(value: Any, schema: dict[str, Any]) -> bool:
    """Say whether a value is what a schema of the document says."""
    whole = {**schema, "components": DOCUMENT["components"]}
    return bool(OAS31Validator(whole).is_valid(value))


def test_the_document_is_valid() -> None:
    """It is an OpenAPI 3.1 document, as openapi-spec-validator reads it, and plain JSON."""
    OpenAPIV31SpecValidator(DOCUMENT).validate()
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT
    assert len(DOCUMENT["info"]["description"]) > 100
    assert DOCUMENT["info"]["license"] == {"name": "Apache-2.0", "identifier": "Apache-2.0"}


def test_names_are_unique() -> None:
    """Each operation has an id of its own, and belongs to one of the listed groups."""
    ids = [operation["operationId"] for item in DOCUMENT["paths"].values() for operation in item.values()]
    assert not [name for name, count in Counter(ids).items() if count > 1]
    groups = {tag["name"] for tag in DOCUMENT["tags"]}
    assert {tuple(operation["tags"]) for operation in OPERATIONS.values()} == {(name,) for name in groups}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_each_operation_is_described(name: str) -> None:
    """It has a summary, a description, a sentence per parameter and status, and declares what it refuses."""
    operation = OPERATIONS[name]
    assert 10 < len(operation["summary"]) < 120
    assert SENTENCE.fullmatch(operation["description"])
    assert not [it["name"] for it in operation["parameters"] if not SENTENCE.fullmatch(it["description"])]
    for status, response in operation["responses"].items():
        assert SENTENCE.fullmatch(response["description"]), status
        assert all(
            it["$ref"].rpartition("/")[2] in DOCUMENT["components"]["headers"] for it in response["headers"].values()
        )
    assert "422" in operation["responses"]
    assert [status for status in operation["responses"] if status[0] == "4"]


@pytest.mark.parametrize("name", sorted(COMPONENTS))
def test_each_field_is_described(name: str) -> None:
    """Each type and each of its fields has a sentence."""
    schema = COMPONENTS[name]
    assert SENTENCE.fullmatch(schema["description"])
    fields = schema.get("properties", {})
    assert not [field for field, it in fields.items() if not SENTENCE.fullmatch(it.get("description", ""))]


def test_docstrings_describe_fields_that_exist() -> None:
    """No ``Attributes:`` section names a field that its type does not have."""
    for kind in msgspec.inspect.multi_type_info(wire_types(msgspec.Struct)):
        fields = {field.name for field in kind.fields}  # type: ignore[attr-defined]
        assert set(described.attributes_of(kind.cls)) <= fields, kind.cls  # type: ignore[attr-defined]


def wire_types(base: type) -> list[type]:
    """Return the structs of the service, which the document has already made it import."""
    found = [*base.__subclasses__()]
    inner = [kind for each in found for kind in wire_types(each)]
    return [
        kind
        for kind in {*found, *inner}
        if kind.__module__.startswith(("kvyield_server.schemas", "kvyield_server.api"))
    ]


def test_nothing_is_untyped() -> None:
    """Each schema has a type or refers to one; each object has fields or a type for all of its values."""
    for way, schema in all_schemas():
        is_any = "Any JSON value." in schema.get("description", "") or way in (
            "FieldChangeOut/from",
            "FieldChangeOut/to",
        )
        assert {"type", "$ref", "anyOf", "enum", "const"} & schema.keys() or is_any, way
        if schema.get("type") == "object":
            assert schema.get("properties") or isinstance(schema.get("additionalProperties"), dict), way
        if schema.get("type") == "array":
            assert "items" in schema, way
    for name in ("PairOut", "ObservationOut"):
        assert COMPONENTS[name]["properties"]["model"]["$ref"].endswith("/ModelOut")
    assert COMPONENTS["RecommendationOut"]["properties"]["question"]["$ref"].endswith("/QuestionOut")
    scalars = {
        option["type"] for option in COMPONENTS["ObservationIn"]["properties"]["flags"]["additionalProperties"]["anyOf"]
    }
    assert scalars == {"null", "boolean", "integer", "number", "string"}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_each_operation_has_an_example(name: str) -> None:
    """Of its needed parameters, its body, and each answer with a body that is not a problem."""
    operation = OPERATIONS[name]
    assert [step for step in examples() if step["operation"] == name]
    needed = [it["name"] for it in operation["parameters"] if it["required"] and "example" not in it]
    assert not needed
    contents = [operation.get("requestBody", {})]
    contents += [response for status, response in operation["responses"].items() if status[0] == "2"]
    for content in contents:
        for kind, media in content.get("content", {}).items():
            assert "example" in media, kind


@pytest.fixture(scope="module")
def played() -> list[Played]:
    """All examples, played in their order."""
    return list(play(examples()))


@pytest.mark.parametrize("number", range(len(examples())))
def test_each_example_is_answered_so(played: list[Played], number: int) -> None:
    """The status, the media type, the declared headers, and the answer: its values where no model makes them.

    After an intended change, ``make openapi-examples`` records the answers anew.
    """
    step, response, answer = played[number]
    operation = OPERATIONS[step["operation"]]
    assert response.status_code == step["status"]
    declared = operation["responses"][str(step["status"])]
    assert {name.lower() for name in declared["headers"]} <= set(response.headers)
    sent = set(response.headers) & {name.lower() for name in DOCUMENT["components"]["headers"]}
    assert sent <= {name.lower() for name in declared["headers"]}
    if "answer" not in step:
        assert not response.content
        return
    assert response.headers["content-type"].partition(";")[0] == step["media_type"]
    media = declared["content"][step["media_type"]]
    assert is_valid(step["answer"], media["schema"])
    assert is_valid(answer, media["schema"])
    if step["operation"] not in MODELLED or step["media_type"] == PROBLEM:
        assert answer == expected(played[number])


def test_examples_of_requests_are_valid() -> None:
    """Bodies that are taken are what the schema of the body says; so are parameters."""
    for step in examples():
        operation = OPERATIONS[step["operation"]]
        if step["status"] >= 400:
            continue
        if "body" in step:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            items = step["body"].get("observations", [])
            assert step["operation"] == "post_observations" or is_valid(step["body"], schema)
            assert not items or is_valid(items[0], {"$ref": "#/components/schemas/ExportedIn"})
        known = {it["name"]: it["schema"] for it in operation["parameters"]}
        for name, value in {**step.get("path", {}), **step.get("query", {})}.items():
            assert is_valid(value, known[name]), name
