"""What requests carry besides their path: JSON bodies, query strings, headers and form fields, each as one model.

The models are strict and name what they do not know. The OpenAPI document is made from the same ones.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from aiohttp import web
from multidict import MultiMapping
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from gateway.errors import InvalidRequest
from protocol.encoding import canonical_json
from protocol.errors import LocalProtocolError


class Input(BaseModel):
    """Base of everything that a request carries: frozen, unknown names refused.

    Attributes:
        codes: the error code of a field that is out of range, where it is not invalid_<field>.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    codes: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The fields' names on the wire."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())

    @classmethod
    def code_of(cls, field: str) -> str:
        """The code of the refusal of a top-level field, by its name on the wire."""
        return cls.codes.get(field, f"invalid_{field}")


class Body(Input):
    """Base of JSON bodies: no coercion between types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Query(Input):
    """Base of query strings: every value is a text."""


class Headers(Input):
    """Base of the headers that a route reads; others are none of its business."""

    model_config = ConfigDict(frozen=True, extra="ignore")


AnyInput = TypeVar("AnyInput", bound=Input)


def _digits(value: Any) -> Any:
    """A number written in plain digits; pydantic alone would take " 1_0 " too."""
    if isinstance(value, str) and not (value.isascii() and value.isdigit() and len(value) <= 15):
        raise ValueError("not a number in digits")
    return value


Digits = Annotated[int, BeforeValidator(_digits)]
"""An integer that arrives as text."""


async def read_json(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object whose every text can be written as UTF-8.

    Raises:
        InvalidRequest: invalid_json.
    """
    try:
        value = json.loads(await request.read())
        canonical_json(value)  # NaN, infinities and lone surrogates have no canonical form
    except (ValueError, RecursionError, LocalProtocolError) as error:
        raise InvalidRequest("invalid_json", "the body is not valid JSON") from error
    if not isinstance(value, dict):
        raise InvalidRequest("invalid_json", "the body must be a JSON object")
    return value


def once_each(values: MultiMapping[str], model: type[Input]) -> dict[str, str]:
    """Values by name.

    Raises:
        InvalidRequest: with the field's code, when one that the model knows stands twice.
    """
    found: dict[str, str] = {}
    for name, value in values.items():
        if name in found and name in model.names():
            raise InvalidRequest(model.code_of(name), f"{name} stands twice", param=name)
        found[name] = value
    return found


def headers_of(request: web.Request, model: type[AnyInput]) -> AnyInput:
    """The headers that a model names, whatever their case.

    Raises:
        InvalidRequest: as validate.
    """
    return validate(model, {name: request.headers[name] for name in model.names() if name in request.headers})


def validate(model: type[AnyInput], value: Mapping[str, Any]) -> AnyInput:
    """Parsed input as a model.

    Raises:
        InvalidRequest: unknown_parameter, missing_required_parameter, or the field's code.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _refusal(model, error) from error


def _refusal(model: type[Input], error: ValidationError) -> InvalidRequest:
    fault = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(key) for key in fault["loc"])
    field = str(fault["loc"][0]) if fault["loc"] else ""
    if fault["type"] == "extra_forbidden":
        return InvalidRequest("unknown_parameter", f"unknown parameter: {where[:200]}", param=where)
    if fault["type"] == "missing" and where == field:
        return InvalidRequest("missing_required_parameter", f"missing required parameter: {where}", param=where)
    message = f"{where[:200]}: {_rule(model, field) or fault['msg']}"
    return InvalidRequest(model.code_of(field), message, param=where)


def _rule(model: type[Input], field: str) -> str | None:
    """What a field must be, in words."""
    found = next((info for name, info in model.model_fields.items() if field in (name, info.alias)), None)
    return None if found is None else found.description
