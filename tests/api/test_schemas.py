"""The OpenAPI document holds together and says what the server does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import openapi_spec_validator
import orjson
from fastapi.openapi.models import OpenAPI
from pydantic import BaseModel, SecretStr

from server.api import decode, encode
from server.api.health import Board
from server.api.schemas import openapi
from server.config import ServerSection
from server.errors import GearshiftError, InvalidInput, NotReady, ShuttingDown, UnknownModel
from server.types import Reply, Timings
from tests.fakes import Colors, Double, Tokens

MODELS = (Double(), Tokens(), Colors())
DOCUMENT = openapi(MODELS, "1.2.3", ServerSection())
KEY = SecretStr("correct-horse-battery")
SCHEMAS = DOCUMENT["components"]["schemas"]
PREDICT = DOCUMENT["paths"]["/predict"]["post"]
PREDICT_BY = DOCUMENT["paths"]["/models/{name}/predict"]["post"]


def refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from refs(item)


def resolve(ref: str) -> Any:
    node: Any = DOCUMENT
    for step in ref.removeprefix("#/").split("/"):
        node = node[step]
    return node


def test_it_is_plain_json_and_every_reference_leads_somewhere():
    assert orjson.loads(orjson.dumps(DOCUMENT)) == DOCUMENT
    assert (DOCUMENT["openapi"], DOCUMENT["info"]["version"]) == ("3.1.0", "1.2.3")
    OpenAPI.model_validate(DOCUMENT)
    found = set(refs(DOCUMENT))
    assert found
    for ref in found:
        assert resolve(ref)


def test_every_schema_is_referred_to_and_every_operation_is_named_once():
    found = set(refs(DOCUMENT))
    for kind, components in DOCUMENT["components"].items():
        for name in components:
            assert f"#/components/{kind}/{name}" in found
    operations = [op for path in DOCUMENT["paths"].values() for op in path.values()]
    names = [op["operationId"] for op in operations if isinstance(op, dict)]
    assert len(names) == len(set(names)) == 6


def test_predict_is_the_first_model_and_the_other_route_is_any():
    assert set(PREDICT["requestBody"]["content"]) == set(decode.media_types(MODELS[0]))
    assert set(PREDICT_BY["requestBody"]["content"]) == {
        media for model in MODELS for media in decode.media_types(model)
    }
    (name,) = DOCUMENT["paths"]["/models/{name}/predict"]["parameters"]
    assert name["schema"]["enum"] == ["double", "tokens", "colors"]


def test_a_json_body_is_a_sample_or_a_list_of_them():
    one, many = PREDICT["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    assert resolve(resolve(one["$ref"])["$ref"]) == Double.sample.model_json_schema()
    assert (many["type"], many["items"]) == ("array", one)
    assert many["maxItems"] == decode.MAX_SAMPLES


def test_a_form_has_the_parts_that_the_decoder_takes():
    form = PREDICT_BY["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert set(form["properties"]) == {"image", "text", "file", "files"}


def test_sample_classes_of_one_name_stay_apart():
    class Picture(BaseModel):
        x: list[float]

    class Other(Double):
        sample = Picture

    other = Other()
    other.name = "other"
    schemas = openapi([Colors(), other], "1", ServerSection())["components"]["schemas"]
    first, second = schemas["colors.sample"]["$ref"], schemas["other.sample"]["$ref"]
    assert first != second


def test_every_error_that_a_client_can_meet_is_there_with_its_type():
    for kind in (InvalidInput, NotReady, ShuttingDown):
        response = PREDICT["responses"][str(kind.status)]
        schema = response["content"]["application/problem+json"]["schema"]
        assert encode.problem_type(kind) in schema["allOf"][1]["properties"]["type"]["enum"]
    statuses = [200, 401, 408, 413, 415, 422, 429, 500, 503, 504]
    assert sorted(PREDICT["responses"]) == [str(status) for status in statuses]
    assert set(PREDICT_BY["responses"]) == {*PREDICT["responses"], str(UnknownModel.status)}
    assert "Retry-After" in PREDICT["responses"]["429"]["headers"]
    assert "Retry-After" not in PREDICT["responses"]["422"]["headers"]


def test_a_problem_has_the_fields_it_is_said_to_have():
    *_, body = encode.problem(GearshiftError("broken"), "id")
    assert list(orjson.loads(body)) == SCHEMAS["Problem"]["required"]


def test_an_answer_has_the_fields_and_headers_it_is_said_to_have():
    model = Double()
    model.random_weights = True
    for schema, is_list in zip(SCHEMAS["Answer"]["oneOf"], (False, True), strict=True):
        body = orjson.loads(encode.success(model, [1], is_list))
        assert set(body) == set(schema["properties"])
    reply = Reply({}, "eager", "1", Timings(0, 0), "why")
    sent = set(encode.success_headers("id", [reply], 0)) - {"Content-Type"}
    assert sent == set(PREDICT["responses"]["200"]["headers"])


def test_the_probes_have_the_fields_they_are_said_to_have():
    board = Board({model.name: model for model in MODELS}, ["worker-0"])
    assert list(board.readiness()) == SCHEMAS["Readiness"]["required"]
    progress = SCHEMAS["Readiness"]["properties"]["models"]["additionalProperties"]
    assert all(
        set(told) == set(progress["required"]) for told in board.readiness()["models"].values()
    )
    assert list(board.info()) == SCHEMAS["Info"]["required"]
    assert all(set(told) == set(SCHEMAS["Model"]["required"]) for told in board.info()["models"])


def test_it_says_what_needs_which_key():
    document = openapi(MODELS, "1", ServerSection(api_key=KEY, admin_key=KEY))
    openapi_spec_validator.validate(document)
    assert document["security"] == [{"key": []}]
    paths = document["paths"]
    assert {
        path
        for path, item in paths.items()
        if "401" not in next(op for op in item.values() if isinstance(op, dict))["responses"]
    } == {"/livez", "/readyz"}
    assert paths["/readyz"]["get"]["security"] == []
    shift = paths["/admin/mode"]["post"]
    assert shift["security"] == [{"adminKey": []}]
    assert {"200", "401", "409", "422"} <= shift["responses"].keys()
    assert KEY.get_secret_value() not in str(document)


def test_the_document_is_valid_openapi():
    openapi_spec_validator.validate(DOCUMENT)


def test_answers_validate_against_their_schema():
    schema = {"$ref": "#/components/schemas/Answer", "components": DOCUMENT["components"]}
    jsonschema.validate(orjson.loads(encode.success(Double(), [1], True)), schema)
