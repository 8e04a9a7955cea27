"""Every error code of the customers' API: its HTTP status and what it means."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """An error code.

    Attributes:
        status: HTTP status.
        meaning: one sentence for a customer.
    """

    status: int
    meaning: str


CODES: Mapping[str, Code] = {
    # Who is calling
    "invalid_api_key": Code(401, "No API key was sent, or one that is unknown or revoked."),
    "insufficient_scope": Code(403, "The key lacks the orders:write scope."),
    "orders_unavailable": Code(403, "The account does not have dataset access yet."),
    "rate_limited": Code(429, "Too many requests with this key, or too many quotes in 24 hours: see Retry-After."),
    # What is malformed
    "invalid_json": Code(400, "The body is not a JSON object, or holds what JSON does not have."),
    "invalid_multipart": Code(400, "The body is not the multipart/form-data that it should be."),
    "unknown_parameter": Code(400, "The request names something that this route does not take; param says what."),
    "missing_required_parameter": Code(400, "The request lacks what this route needs; param says what."),
    "invalid_input_file_id": Code(400, "input_file_id is not a text."),
    "invalid_endpoint": Code(400, "endpoint is neither /v1/chat/completions nor /v1/completions."),
    "invalid_completion_window": Code(400, "completion_window is not 24h to 168h, in whole hours."),
    "invalid_metadata": Code(400, "metadata, or the meaning of one of its keys, is out of range."),
    "invalid_output_expires_after": Code(400, "output_expires_after is out of range."),
    "invalid_idempotency_key": Code(400, "The Idempotency-Key is not 16 to 80 of the characters that it may have."),
    "invalid_model": Code(400, "No model on the first usable line or in metadata.model, or one that is not org/name."),
    "invalid_revision": Code(400, "metadata.revision is not a full 40-character commit, or main could not be read."),
    "endpoint_mismatch": Code(400, "endpoint differs from the url of the file's lines."),
    "invalid_file": Code(400, "The file is not one that was uploaded for a batch."),
    "invalid_purpose": Code(400, "The purpose is not one that files have here."),
    "invalid_expires_after": Code(400, "expires_after is out of range."),
    "invalid_after": Code(400, "There is nothing with this id to begin a page after."),
    "invalid_limit": Code(400, "limit is not a number from 1 to 100."),
    "invalid_order": Code(400, "order is neither asc nor desc."),
    # What is not there
    "file_not_found": Code(404, "There is no such file: it never was, was deleted, has expired or is not yours."),
    "batch_not_found": Code(404, "There is no such batch, or it is not yours."),
    "unknown_route": Code(404, "There is no such route."),
    "method_not_allowed": Code(405, "The route does not take this method."),
    # What cannot be used
    "length_required": Code(411, "An upload needs a Content-Length."),
    "file_too_large": Code(413, "The upload is over the limit."),
    "request_too_large": Code(413, "The request's body is over the limit."),
    "range_not_satisfiable": Code(416, "The range lies outside the file."),
    "invalid_batch_file": Code(422, "The whole file is refused: too_many_lines, too_many_tokens or no_usable_line."),
    "mixed_sampling": Code(422, "The file's usable lines differ in url or sampling."),
    "model_not_found": Code(422, "There is no such repository, or not this commit of it."),
    "model_private": Code(422, "The repository is private or gated."),
    "model_unsupported": Code(422, "The repository's files cannot be used, for example without safetensors weights."),
    "architecture_unsupported": Code(422, "The model's architecture is not served; the message names those that are."),
    "context_too_long": Code(422, "The longest prompt plus max_tokens do not fit the model's context."),
    "model_too_large": Code(422, "The model and the caches of eight sequences do not fit one node."),
    "exceeds_generation_deadline": Code(422, "The file cannot be generated within the completion window."),
    # Money and limits
    "price_above_max": Code(402, "The price is above metadata.max_price_usd."),
    "insufficient_balance": Code(402, "The balance does not cover the price."),
    "order_limit": Code(429, "Five orders are open already."),
    # The present state of things
    "idempotency_conflict": Code(409, "The Idempotency-Key was used with another body."),
    "order_refused": Code(409, "The order could not be placed just now; the same request may succeed."),
    "batch_not_cancellable": Code(409, "The batch is finalizing or has ended."),
    "pricing_unavailable": Code(409, "No price is published for a model of this size."),
    "file_not_ready": Code(409, "The file's upload is still in progress."),
    # What is down
    "internal_error": Code(500, "The server failed; quote the request id."),
    "batch_unavailable": Code(503, "Something that batches depend on does not answer; retry shortly."),
    "model_lookup_unavailable": Code(503, "The model hub does not answer; retry shortly."),
}
