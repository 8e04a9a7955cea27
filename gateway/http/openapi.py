"""The OpenAPI 3.1 document, made from the routes and the models that serve the requests."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.http.bodies import Input
from gateway.http.codes import CODES
from gateway.http.routes import Contract, Route

Json = dict[str, Any]

SCHEMA_REF = "#/components/schemas/{model}"
ALWAYS = ("invalid_api_key", "insufficient_scope", "rate_limited", "internal_error", "batch_unavailable")
"""Refusals that any route with a key may answer with."""

PARAMETERS = {"file_id": "the file's id", "batch_id": "the batch's id"}
REQUEST_ID = {"x-request-id": {"schema": {"type": "string"}, "description": "names this request, for support"}}
RETRY_HEADERS = {
    "Retry-After": {"schema": {"type": "string"}, "description": "seconds after which the same may succeed"},
    "x-should-retry": {"schema": {"const": "false"}, "description": "there when a retry cannot succeed"},
}


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """OpenAI's error object."""

    error: ErrorDetail


def refusals_of(route: Route) -> tuple[str, ...]:
    """Every code that a route may answer with, each once."""
    contract = route.contract
    codes = [*ALWAYS, *route.refusals]
    for given in (contract.query, contract.headers, contract.body, route.form):
        if given is not None:
            codes += [given.code_of(name) for name in given.names()]
    if contract.query is not None:
        codes.append("unknown_parameter")
    if contract.body is not None:
        codes += ["unknown_parameter", "missing_required_parameter", "invalid_json", "request_too_large"]
    if route.form is not None:
        codes += ["unknown_parameter", "missing_required_parameter", "invalid_multipart"]
    documented = [code for code in codes if code in CODES]  # any text is a fine If-Range: there is no such code
    return tuple(dict.fromkeys(documented))


def document(routes: Sequence[Route]) -> Json:
    """The document of some routes."""
    schemas, components = _schemas(routes)
    paths: dict[str, Json] = defaultdict(dict)
    for route in routes:
        paths[route.path][route.method.lower()] = _operation(route, schemas, _links(route, routes))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Reliquary batch API",
            "version": version("reliquary-node"),
            "description": "OpenAI's files and batches on models pinned at a commit, every token verified.",
        },
        "servers": [{"url": "/"}],
        "security": [{"api_key": []}],
        "paths": dict(paths),
        "components": {
            "schemas": components,
            "securitySchemes": {"api_key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(routes: Iterable[Route]) -> tuple[Mapping[type[BaseModel], Json], Json]:
    """A reference for each model that a route reads or answers, and the schemas referred to."""
    inputs: dict[Any, None] = {}  # what is no JSON body stands in its operation
    outputs: dict[Any, None] = {ErrorBody: None}
    for route in routes:
        contract = route.contract
        if contract.body is not None:
            inputs[contract.body] = None
        if contract.answer is not None:
            outputs[contract.answer] = None
    wanted = [(model, "validation") for model in inputs] + [(model, "serialization") for model in outputs]
    found, top = models_json_schema(wanted, ref_template=SCHEMA_REF)  # type: ignore[arg-type]
    references = {model: schema for (model, _), schema in found.items() if issubclass(model, BaseModel)}
    return references, top["$defs"]


def _links(route: Route, routes: Iterable[Route]) -> Json:
    """What can be done with the thing that a route makes: the routes that take its id in their path or their body."""
    if route.method != "POST" or "{" in route.path:
        return {}
    made = "$response.body#/id"
    in_body = f"input_{route.path.rsplit('/', 1)[1].removesuffix('s')}_id"
    links: Json = {}
    for each in routes:
        link: Json = {"operationId": each.handler.__name__}
        if each.path.startswith(f"{route.path}/{{"):
            links[each.handler.__name__] = {**link, "parameters": {_path_names(each.path)[0]: made}}
        elif each.contract.body is not None and in_body in each.contract.body.model_fields:
            links[each.handler.__name__] = {**link, "requestBody": {in_body: made}}
    return links


def _operation(route: Route, schemas: Mapping[type[BaseModel], Json], links: Json) -> Json:
    contract = route.contract
    operation: Json = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "tags": [route.path.split("/")[4]],
        "parameters": [
            *_path_parameters(route.path),
            *_parameters("query", contract.query),
            *_parameters("header", contract.headers),
        ],
        "responses": {**_answers(contract, schemas), **_refusals(refusals_of(route), schemas)},
    }
    if links:
        operation["responses"]["200"]["links"] = links
    if contract.body is not None:
        operation["requestBody"] = _content("application/json", schemas[contract.body], required=True)
    if route.form is not None:
        operation["requestBody"] = _content("multipart/form-data", _form(route.form), required=True)
    return operation


def _content(media_type: str, schema: Json, **more: Any) -> Json:
    return {"content": {media_type: {"schema": schema}}, **more}


def _path_parameters(path: str) -> list[Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PARAMETERS[name],
            "schema": {"type": "string", "minLength": 1},
        }
        for name in _path_names(path)
    ]


def _path_names(path: str) -> list[str]:
    return re.findall(r"{(\w+)}", path)


def _own_schema(model: type[Input]) -> Json:
    """A model's schema with everything in it; query, header and form models nest nothing."""
    return model.model_json_schema(by_alias=True)


def _parameters(place: str, model: type[Input] | None) -> list[Json]:
    if model is None:
        return []
    schema = _own_schema(model)
    return [
        {
            "name": name,
            "in": place,
            "required": name in schema.get("required", ()),
            "schema": _without_null(field),
            **({"description": field["description"]} if "description" in field else {}),
        }
        for name, field in schema["properties"].items()
    ]


def _without_null(schema: Json) -> Json:
    """The schema of what can be sent as text: leaving it out is how it is null."""
    kept = {key: value for key, value in schema.items() if key not in ("title", "description", "default", "anyOf")}
    if schema.get("default") is not None:
        kept["default"] = schema["default"]
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            kept |= choice
    return kept


def _form(model: type[Input]) -> Json:
    schema = _own_schema(model)
    fields = {name: _without_null(field) for name, field in schema["properties"].items()}
    return {
        "type": "object",
        "properties": {"file": {"type": "string", "contentMediaType": "application/jsonl"}, **fields},
        "required": ["file", *schema.get("required", ())],
        "additionalProperties": False,
    }


def _answers(contract: Contract, schemas: Mapping[type[BaseModel], Json]) -> Json:
    if contract.answer is not None:
        body = _content("application/json", schemas[contract.answer])
        return {"200": {"description": "The answer.", "headers": REQUEST_ID, **body}}
    headers = {
        **REQUEST_ID,
        "ETag": {"schema": {"type": "string"}, "description": "SHA-256 of the whole file"},
        "Accept-Ranges": {"schema": {"const": "bytes"}},
    }
    body = _content("application/octet-stream", {})
    ranged = {**headers, "Content-Range": {"schema": {"type": "string"}}}
    return {
        "200": {"description": "The file's bytes.", "headers": headers, **body},
        "206": {"description": "A range of them.", "headers": ranged, **body},
    }


def _refusals(codes: Sequence[str], schemas: Mapping[type[BaseModel], Json]) -> Json:
    by_status: dict[int, list[str]] = defaultdict(list)
    for code in codes:
        by_status[CODES[code].status].append(code)
    answers = {}
    for status, group in sorted(by_status.items()):
        narrowed = {"properties": {"error": {"properties": {"code": {"enum": group}}}}}
        answers[str(status)] = {
            "description": " ".join(f"`{code}`: {CODES[code].meaning}" for code in group),
            "headers": {**REQUEST_ID, **(RETRY_HEADERS if status in (409, 429, 503) else {})},
            **_content("application/json", {"allOf": [schemas[ErrorBody], narrowed]}),
        }
    return answers
