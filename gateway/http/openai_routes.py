"""The routes under /api/openai/v1: what is served, and what the OpenAPI document says, are this table."""

from gateway.http import openai_batches, openai_files
from gateway.http.openai_files import UploadFields
from gateway.http.routes import Route

PREFIX = "/api/openai/v1"

MODEL_REFUSALS = (
    "model_not_found",
    "model_private",
    "model_unsupported",
    "architecture_unsupported",
    "context_too_long",
    "model_too_large",
    "model_lookup_unavailable",
)
FILE_REFUSALS = ("file_not_found", "file_not_ready")

ROUTES = (
    Route(
        "POST",
        f"{PREFIX}/files",
        openai_files.upload_file,
        ("orders_unavailable", "length_required", "file_too_large"),
        form=UploadFields,
    ),
    Route("GET", f"{PREFIX}/files", openai_files.list_files),
    Route("GET", f"{PREFIX}/files/{{file_id}}", openai_files.get_file, FILE_REFUSALS),
    Route("DELETE", f"{PREFIX}/files/{{file_id}}", openai_files.delete_file, FILE_REFUSALS),
    Route(
        "GET",
        f"{PREFIX}/files/{{file_id}}/content",
        openai_files.get_content,
        (*FILE_REFUSALS, "range_not_satisfiable"),
    ),
    Route(
        "POST",
        f"{PREFIX}/batches",
        openai_batches.create_batch,
        (
            "orders_unavailable",
            *FILE_REFUSALS,
            "invalid_file",
            "invalid_model",
            "invalid_revision",
            "endpoint_mismatch",
            "invalid_batch_file",
            "mixed_sampling",
            *MODEL_REFUSALS,
            "exceeds_generation_deadline",
            "pricing_unavailable",
            "price_above_max",
            "insufficient_balance",
            "order_limit",
            "idempotency_conflict",
            "order_refused",
        ),
    ),
    Route("GET", f"{PREFIX}/batches", openai_batches.list_batches),
    Route("GET", f"{PREFIX}/batches/{{batch_id}}", openai_batches.get_batch, ("batch_not_found",)),
    Route(
        "POST",
        f"{PREFIX}/batches/{{batch_id}}/cancel",
        openai_batches.cancel_batch,
        ("batch_not_found", "batch_not_cancellable"),
    ),
)
