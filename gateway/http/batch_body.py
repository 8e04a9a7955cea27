"""The body of POST /batches, down to what each metadata key means."""

import hashlib
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field, StringConstraints

from gateway.errors import InvalidRequest
from gateway.http.bodies import Body, read_json, validate
from gateway.http.openai_files import MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS
from gateway.intake import BatchRequest, IdempotencyKey
from protocol.encoding import canonical_json
from protocol.models import is_repo, is_revision

MIN_WINDOW_HOURS, MAX_WINDOW_HOURS = 24, 168
ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
MAX_METADATA_PAIRS = 16

_WINDOW = re.compile(r"([1-9]\d{1,2})h")
_KEY = re.compile(r"[A-Za-z0-9_.:-]{16,80}")
_PRICE = re.compile(r"\d{1,9}(\.\d{1,6})?")

MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]


class ExpiresAfter(Body):
    """When the output files expire."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS)]


class BatchBody(Body):
    """What POST /batches takes."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    completion_window: str
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=MAX_METADATA_PAIRS)] | None = None
    output_expires_after: ExpiresAfter | None = None


async def read_batch_request(request: web.Request) -> BatchRequest:
    """The order that a request asks for.

    Raises:
        InvalidRequest: for any field, or the Idempotency-Key, that is malformed or out of range.
    """
    value = await read_json(request)
    body = validate(BatchBody, value, {})
    metadata = body.metadata or {}
    expires = body.output_expires_after
    return BatchRequest(
        input_file_id=body.input_file_id,
        endpoint=body.endpoint,
        window_hours=_window_hours(body.completion_window),
        metadata=body.metadata,
        model=_model(metadata),
        revision=_revision(metadata),
        max_price_micro=_max_price(metadata),
        output_expires_after_seconds=None if expires is None else expires.seconds,
        idempotency=_idempotency(request, value),
    )


def _window_hours(text: str) -> int:
    found = _WINDOW.fullmatch(text)
    if found is None or not MIN_WINDOW_HOURS <= int(found[1]) <= MAX_WINDOW_HOURS:
        message = f'completion_window is "{MIN_WINDOW_HOURS}h" to "{MAX_WINDOW_HOURS}h"'
        raise InvalidRequest("invalid_completion_window", message, param="completion_window")
    return int(found[1])


def _invalid_metadata(key: str, rule: str) -> InvalidRequest:
    return InvalidRequest("invalid_metadata", f"metadata.{key} {rule}", param=f"metadata.{key}")


def _model(metadata: Mapping[str, str]) -> str | None:
    if "reliquary_grader" in metadata:
        raise _invalid_metadata("reliquary_grader", "is not offered yet: evaluations cannot be ordered")
    model = metadata.get("model")
    if model is not None and not is_repo(model):
        raise _invalid_metadata("model", "must be a Hugging Face repository in org/name form")
    return model


def _revision(metadata: Mapping[str, str]) -> str | None:
    revision = metadata.get("revision")
    if revision is not None and not is_revision(revision):
        message = "metadata.revision must be a full 40-character commit"
        raise InvalidRequest("invalid_revision", message, param="metadata.revision")
    return revision


def _max_price(metadata: Mapping[str, str]) -> int | None:
    text = metadata.get("max_price_usd")
    if text is None:
        return None
    if not text.isascii() or _PRICE.fullmatch(text) is None:
        raise _invalid_metadata("max_price_usd", 'must be an amount in USD such as "3" or "2.50"')
    return int(Decimal(text) * 1_000_000)


def _idempotency(request: web.Request, value: dict[str, Any]) -> IdempotencyKey | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if _KEY.fullmatch(key) is None:
        message = "Idempotency-Key is 16 to 80 letters, digits, underscores, periods, colons or hyphens"
        raise InvalidRequest("invalid_idempotency_key", message, param="Idempotency-Key")
    return IdempotencyKey(key, hashlib.sha256(canonical_json(value)).hexdigest())
