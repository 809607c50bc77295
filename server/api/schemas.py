"""The OpenAPI document: what can be sent, what comes back, and every problem there can be.

Made from the served models, the decoder's media types and the error tree, so that it cannot say
what they do not. Knows nothing of how requests are routed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from models.base import ServedModel
from server.api import decode, encode
from server.api.forms import FORM
from server.api.keys import PROBES
from server.config import ServerSection
from server.errors import (
    ClientGone,
    ClientTooSlow,
    DeadlineExceeded,
    GearshiftError,
    InvalidInput,
    ModeUnavailable,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    Unauthorized,
    Unavailable,
    UnknownModel,
)
from server.types import Mode, ModelStatus

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer"}
_BOOLEAN: Schema = {"type": "boolean"}
_BINARY: Schema = {"type": "string", "format": "binary"}
_BEARER: Schema = {"type": "http", "scheme": "bearer"}
_ADMIN_PROBLEMS = (
    *(Unauthorized, ClientTooSlow, ModeUnavailable, PayloadTooLarge, InvalidInput, NotReady),
    DeadlineExceeded,
)
_RESPONSE_HEADERS = {
    "X-Request-Id": "The request's own id, or a new one.",
    "X-Gearshift-Mode": "`eager` or `compiled`; `mixed` when the samples of a list differ.",
    "X-Gearshift-Bucket": "The buckets of the samples, each once.",
    "X-Gearshift-Fallback": "Why a compiled server ran this eager. Only when it did.",
    "Server-Timing": "Milliseconds in `queue`, `preprocess` and `inference`.",
    "Retry-After": "Seconds after which to try again.",
}
_REQUEST_HEADERS = {
    "X-Request-Id": "Id to answer and log with. A new one is made when it is missing or unsafe.",
    "X-Request-Timeout": "Seconds after which the answer is no longer wanted.",
    "X-Tensor-Shape": "Raw tensors: sizes, like `3,224,224`; one more in front for a list.",
    "X-Tensor-Dtype": "Raw tensors: the dtype of the input, like `float32`.",
    "X-Tensor-Name": "Raw and `.npy` tensors: the name of the input.",
}


def openapi(models: Sequence[ServedModel], version: str, section: ServerSection) -> Schema:
    """OpenAPI 3.1 for a server of `models`; `/predict` goes to the first."""
    names = [model.name for model in models]
    name = {"name": "name", "in": "path", "required": True, "schema": {"enum": names}}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Gearshift", "version": version},
        "paths": {
            "/predict": {"post": _predict("predict", models[:1], absent=(UnknownModel,))},
            "/models/{name}/predict": {"parameters": [name], "post": _predict("predictBy", models)},
            "/livez": {"get": _get("livez", {"200": _text("The process runs")})},
            "/readyz": {"get": _get("readyz", _readiness())},
            "/info": {"get": _get("info", {"200": _json("What is served, and how", "Info")})},
            "/metrics": {"get": _get("metrics", {"200": _text("All metrics, for Prometheus")})},
        },
        "components": {
            "schemas": _sample_schemas(models) | _own_schemas(names),
            "headers": {key: _header(text) for key, text in _RESPONSE_HEADERS.items()},
            "parameters": {
                key: {"name": key, "in": "header"} | _header(text)
                for key, text in _REQUEST_HEADERS.items()
            },
        },
    }
    if section.api_key is not None:
        _add_key(document)
    if section.admin_key is not None:
        _add_admin(document)
    return document


def _add_key(document: Schema) -> None:
    """Everything needs the key, but for the probes."""
    document["components"].setdefault("securitySchemes", {})["key"] = _BEARER
    document["security"] = [{"key": []}]
    for path, item in document["paths"].items():
        if path in PROBES:
            item["get"]["security"] = []
        elif "get" in item:
            item["get"]["responses"] |= _problems([Unauthorized])


def _add_admin(document: Schema) -> None:
    document["components"].setdefault("securitySchemes", {})["adminKey"] = _BEARER
    schema = _object(mode={"enum": list(get_args(Mode))})
    content = {encode.JSON: {"schema": schema}}
    document["paths"]["/admin/mode"] = {
        "post": {
            "operationId": "shift",
            "summary": "Run every model in another mode from now on, without a restart",
            "security": [{"adminKey": []}],
            "requestBody": {"required": True, "content": content},
            "responses": {
                "200": {"description": "It runs in that mode", "content": content},
                **_problems(_ADMIN_PROBLEMS),
            },
        }
    }


def _predict(
    operation: str, models: Sequence[ServedModel], absent: tuple[type[GearshiftError], ...] = ()
) -> Schema:
    answer = _json("A prediction for a sample, a list of them for a list", "Answer")
    never = (ClientGone, ModeUnavailable, *absent)
    problems = _problems(kind for kind in _leaves(GearshiftError) if kind not in never)
    made = [key for key in _RESPONSE_HEADERS if key != "Retry-After"]
    return {
        "operationId": operation,
        "summary": f"Predict with {' or '.join(model.name for model in models)}",
        "parameters": [_ref("parameters", key) for key in _REQUEST_HEADERS],
        "requestBody": {"required": True, "content": _bodies(models)},
        "responses": {"200": answer | {"headers": _headers(made)}} | problems,
    }


def _bodies(models: Sequence[ServedModel]) -> Schema:
    """Every media type that one of `models` takes, with its schema."""
    content = {
        media: {"schema": _STRING if media.startswith("text/") else _BINARY}
        for model in models
        for media in decode.media_types(model)
    }
    samples = [_ref("schemas", _sample_name(model)) for model in models]
    content[decode.JSON] = {"schema": {"anyOf": [*samples, *map(_samples_of, samples)]}}
    parts = {name for model in models for name in decode.part_names(model)}
    if parts:
        properties = {name: _samples_of(_BINARY) for name in sorted(parts)}
        content[FORM] = {"schema": {"type": "object", "properties": properties}}
    return content


def _problems(kinds: Iterable[type[GearshiftError]]) -> Schema:
    """A response for each status among `kinds`."""
    by_status: dict[int, list[type[GearshiftError]]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    return {str(status): _problem(same) for status, same in sorted(by_status.items())}


def _leaves(kind: type[GearshiftError]) -> list[type[GearshiftError]]:
    children = kind.__subclasses__()
    return [leaf for child in children for leaf in _leaves(child)] if children else [kind]


def _problem(kinds: list[type[GearshiftError]]) -> Schema:
    types = {"properties": {"type": {"enum": [encode.problem_type(kind) for kind in kinds]}}}
    schema = {"allOf": [_ref("schemas", "Problem"), types]}
    again = any(issubclass(kind, Overloaded | Unavailable) for kind in kinds)
    return {
        "description": ", ".join(kind.title for kind in kinds),
        "headers": _headers(["X-Request-Id", *(["Retry-After"] if again else [])]),
        "content": {encode.PROBLEM_JSON: {"schema": schema}},
    }


def _readiness() -> Schema:
    return {
        "200": _json("Every model takes requests", "Readiness"),
        "503": _json("Some model does not take requests (yet)", "Readiness"),
    }


def _text(description: str) -> Schema:
    return {"description": description, "content": {"text/plain": {"schema": _STRING}}}


def _get(operation: str, responses: Schema) -> Schema:
    return {"operationId": operation, "responses": responses}


def _json(description: str, schema: str) -> Schema:
    content = {encode.JSON: {"schema": _ref("schemas", schema)}}
    return {"description": description, "content": content}


def _header(text: str) -> Schema:
    return {"description": text, "schema": _STRING}


def _headers(names: Iterable[str]) -> Schema:
    return {name: _ref("headers", name) for name in names}


def _ref(kind: str, name: str) -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


def _array_of(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _map_of(value: Schema) -> Schema:
    return {"type": "object", "additionalProperties": value}


def _samples_of(item: Schema) -> Schema:
    return _array_of(item) | {"minItems": 1, "maxItems": decode.MAX_SAMPLES}


def _sample_name(model: ServedModel) -> str:
    """Name of the sample's schema: with a dot, as no schema of ours has."""
    return f"{model.name}.sample"


def _sample_schemas(models: Sequence[ServedModel]) -> Schema:
    classes = list(dict.fromkeys(model.sample for model in models))
    refs, document = models_json_schema(
        [(sample, "validation") for sample in classes],
        ref_template="#/components/schemas/sample.{model}",
    )
    definitions = {f"sample.{name}": schema for name, schema in document["$defs"].items()}
    return definitions | {_sample_name(model): refs[model.sample, "validation"] for model in models}


def _own_schemas(names: list[str]) -> Schema:
    return {
        **_status_schemas(),
        "Answer": {
            "oneOf": [_answer(names, prediction={}), _answer(names, predictions=_array_of({}))]
        },
        "Problem": _object(
            type=_STRING, title=_STRING, status=_INTEGER, detail=_STRING, request_id=_STRING
        ),
    }


def _status_schemas() -> Schema:
    status = TypeAdapter(ModelStatus).json_schema(
        mode="serialization", ref_template="#/components/schemas/{model}"
    )
    known = status["properties"]
    told = {key: schema for key, schema in known.items() if key != "facts"}
    workers: dict[str, Schema] = {"workers_ready": _INTEGER, "workers_total": _INTEGER}
    progress = _object(
        state=known["state"],
        mode=known["mode"],
        detail=_STRING,
        buckets_done=_INTEGER,
        buckets_total=_INTEGER,
        served_eager=_map_of({"type": ["string", "null"]}),
        partly_compiled=_map_of(_STRING),
        **workers,
    )
    return {
        **status["$defs"],
        "Model": _object(**told, random_weights=_BOOLEAN, **workers),
        "Info": _object(version=_STRING, models=_array_of(_ref("schemas", "Model"))),
        "Readiness": _object(ready=_BOOLEAN, models=_map_of(progress)),
    }


def _answer(names: list[str], **prediction: Schema) -> Schema:
    answer = _object(model={"enum": names}, **prediction)
    answer["properties"]["warning"] = {"const": encode.RANDOM_WEIGHTS}
    return answer


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}
