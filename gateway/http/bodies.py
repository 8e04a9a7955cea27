"""JSON request bodies: parsed strictly, unknown keys named."""

import json
import re
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.errors import InvalidRequest
from protocol.encoding import canonical_json
from protocol.errors import LocalProtocolError


class Body(BaseModel):
    """Base of every request body: frozen, unknown keys refused, no coercion between types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


AnyBody = TypeVar("AnyBody", bound=Body)


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


def validate(model: type[AnyBody], value: dict[str, Any], codes: dict[str, str]) -> AnyBody:
    """The body as a model.

    Args:
        model: what to validate against.
        value: the parsed JSON object.
        codes: the code for each top-level field that is out of range.

    Raises:
        InvalidRequest: unknown_parameter, missing_required_parameter, or the field's code.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(key) for key in fault["loc"])
        field = str(fault["loc"][0])
        if fault["type"] == "extra_forbidden":
            raise InvalidRequest("unknown_parameter", f"unknown parameter: {where}", param=where) from error
        if fault["type"] == "missing" and where == field:
            message = f"missing required parameter: {where}"
            raise InvalidRequest("missing_required_parameter", message, param=where) from error
        message = f"{where}: {re.sub('^Value error, ', '', fault['msg'])}"
        raise InvalidRequest(codes.get(field, f"invalid_{field}"), message, param=where) from error
