"""The body and headers of POST /batches, down to what each metadata key means."""

import hashlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from gateway.errors import InvalidRequest
from gateway.http.bodies import Body, Headers
from gateway.http.openai_files import MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS
from gateway.intake import BatchRequest, IdempotencyKey
from protocol.encoding import canonical_json
from protocol.models import REPO_PATTERN, REVISION_PATTERN, is_repo, is_revision

MIN_WINDOW_HOURS, MAX_WINDOW_HOURS = 24, 168
MAX_METADATA_PAIRS = 16
WINDOW_PATTERN = r"^(2[4-9]|[3-9][0-9]|1[0-5][0-9]|16[0-8])h$"
IDEMPOTENCY_PATTERN = r"^[A-Za-z0-9_.:-]{16,80}$"
PRICE_PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,6})?$"

MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]

_STEERING_KEYS = {
    "model": {"pattern": REPO_PATTERN, "description": "overrides the first line's body.model"},
    "revision": {"pattern": REVISION_PATTERN, "description": "the model's commit; without it what main names now"},
    "max_price_usd": {"pattern": PRICE_PATTERN, "description": "refuse a higher price (402 price_above_max)"},
}


class ExpiresAfter(Body):
    """When the output files expire."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS)]


class BatchBody(Body):
    """What POST /batches takes."""

    input_file_id: Annotated[str, Field(description="the id of an uploaded file")]
    endpoint: Annotated[
        Literal["/v1/chat/completions", "/v1/completions"],
        Field(description="the url of the file's lines: /v1/chat/completions or /v1/completions"),
    ]
    completion_window: Annotated[
        str,
        StringConstraints(pattern=WINDOW_PATTERN),
        Field(description=f'"{MIN_WINDOW_HOURS}h" to "{MAX_WINDOW_HOURS}h", in whole hours'),
    ]
    metadata: Annotated[
        dict[MetadataKey, MetadataValue] | None,
        Field(
            max_length=MAX_METADATA_PAIRS,
            description=f"up to {MAX_METADATA_PAIRS} pairs of texts, keys of up to 64 characters, values of up to 512",
            json_schema_extra={"properties": {key: {"type": "string", **rule} for key, rule in _STEERING_KEYS.items()}},
        ),
    ] = None
    output_expires_after: Annotated[
        ExpiresAfter | None,
        Field(
            description=f'{{"anchor": "created_at", "seconds": from {MIN_EXPIRY_SECONDS} to {MAX_EXPIRY_SECONDS}}}',
        ),
    ] = None


class BatchHeaders(Headers):
    """What POST /batches reads of the headers."""

    idempotency_key: Annotated[
        str | None,
        Field(
            alias="Idempotency-Key",
            pattern=IDEMPOTENCY_PATTERN,
            description="16 to 80 letters, digits, underscores, periods, colons or hyphens",
        ),
    ] = None

    codes = {"Idempotency-Key": "invalid_idempotency_key"}  # noqa: RUF012 - declared a ClassVar where it comes from


def batch_request(body: BatchBody, headers: BatchHeaders) -> BatchRequest:
    """The order that a request asks for.

    Raises:
        InvalidRequest: invalid_metadata, invalid_revision.
    """
    metadata = body.metadata or {}
    expires, key = body.output_expires_after, headers.idempotency_key
    return BatchRequest(
        input_file_id=body.input_file_id,
        endpoint=body.endpoint,
        window_hours=int(body.completion_window.removesuffix("h")),
        metadata=body.metadata,
        model=_model(metadata),
        revision=_revision(metadata),
        max_price_micro=_max_price(metadata),
        output_expires_after_seconds=None if expires is None else expires.seconds,
        idempotency=None if key is None else IdempotencyKey(key, _digest(body)),
    )


def _digest(body: BatchBody) -> str:
    """Of the body as it was sent, however its keys were ordered."""
    return hashlib.sha256(canonical_json(body.model_dump(exclude_unset=True))).hexdigest()


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


_PRICE: TypeAdapter[str] = TypeAdapter(Annotated[str, StringConstraints(pattern=PRICE_PATTERN)])


def _max_price(metadata: Mapping[str, str]) -> int | None:
    text = metadata.get("max_price_usd")
    if text is None:
        return None
    try:
        _PRICE.validate_python(text)
    except ValidationError as error:
        raise _invalid_metadata("max_price_usd", 'must be an amount in USD such as "3" or "2.50"') from error
    return int(Decimal(text) * 1_000_000)
