"""An order as OpenAI's batch object and as the native order."""

from typing import Any, Literal

from pydantic import BaseModel

from gateway.core.states import BATCH_STATUS, ORDER, OrderState
from gateway.db.orders import OrderRecord
from gateway.http.listing import Listed, ListObject
from gateway.orders import BATCH_PREFIX, BatchView
from gateway.quotes import usd


class BatchError(BaseModel):
    """Why a batch ended without a delivery."""

    code: str | None
    message: str | None
    param: str | None
    line: int | None


class BatchErrors(BaseModel):
    """The errors of a failed batch."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(BaseModel):
    """Lines by fate: refused ones have failed from the start, those short of samples once the batch has ended."""

    total: int
    completed: int
    failed: int


class InputTokensDetails(BaseModel):
    """Nothing is cached."""

    cached_tokens: Literal[0] = 0


class OutputTokensDetails(BaseModel):
    """Thinking is delivered, and counted, as text."""

    reasoning_tokens: Literal[0] = 0


class BatchUsage(BaseModel):
    """Tokens of a batch that has ended."""

    input_tokens: int
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int


class QueuePlace(BaseModel):
    """Where a batch that has not started stands; no estimate is made of when it will."""

    position: int
    orders_ahead: int
    estimated_start_at: int | None = None


class BatchObject(Listed):
    """OpenAI's batch object, null where something is not known yet, and two keys of our own; times in Unix seconds."""

    object: Literal["batch"] = "batch"
    endpoint: str
    model: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage | None
    metadata: dict[str, str] | None
    reliquary_revision: str
    reliquary_queue: QueuePlace | None


def batch_object(view: BatchView) -> BatchObject:
    """The batch that an order is."""
    order = view.order
    return BatchObject.model_validate(
        {
            "id": BATCH_PREFIX + order.id,
            "endpoint": order.endpoint,
            "model": order.model_repo,
            "errors": _errors(order),
            "input_file_id": order.input_file_id,
            "completion_window": order.completion_window,
            "status": BATCH_STATUS[order.state],
            "output_file_id": order.output_file_id,
            "error_file_id": order.error_file_id,
            "created_at": order.created_at,
            "in_progress_at": order.in_progress_at,
            "expires_at": order.expires_at,
            "finalizing_at": order.finalizing_at,
            "completed_at": order.completed_at,
            "failed_at": order.failed_at,
            "expired_at": order.expired_at,
            "cancelling_at": order.cancelling_at,
            "cancelled_at": order.cancelled_at,
            "request_counts": request_counts(view),
            "usage": _usage(order),
            "metadata": order.metadata,
            "reliquary_revision": order.model_revision,
            "reliquary_queue": _queue(view),
        }
    )


class BatchList(ListObject[BatchObject]):
    """A page of batches."""


def request_counts(view: BatchView) -> RequestCounts:
    """How the lines of an order stand."""
    total, completed = view.order.total_lines, view.progress.completed_lines
    failed = total - completed if has_ended(view.order) else view.order.refused_lines
    return RequestCounts(total=total, completed=completed, failed=failed)


def has_ended(order: OrderRecord) -> bool:
    """Whether nothing about the order will change any more."""
    return order.state in ORDER.final_states


def _errors(order: OrderRecord) -> BatchErrors | None:
    if order.state != OrderState.FAILED:
        return None
    error = BatchError(code=order.failure_code, message=order.failure_message, param=None, line=None)
    return BatchErrors(data=[error])


def _usage(order: OrderRecord) -> BatchUsage | None:
    """Tokens of an order that has ended; one that never started, or failed, is charged none."""
    if not has_ended(order):
        return None
    is_free = order.in_progress_at is None or order.state == OrderState.FAILED
    read = 0 if is_free else order.prompt_tokens
    drawn = order.completion_tokens or 0
    return BatchUsage(input_tokens=read, output_tokens=drawn, total_tokens=read + drawn)


def _queue(view: BatchView) -> QueuePlace | None:
    if view.orders_ahead is None:
        return None
    return QueuePlace(position=view.orders_ahead + 1, orders_ahead=view.orders_ahead)


def order_object(view: BatchView) -> dict[str, Any]:
    """The native order: its state, its money and its progress."""
    order = view.order
    refunded = order.refunded_micro
    return {
        "id": order.id,
        "object": "dataset_order",
        "state": order.state,
        "model": order.model_repo,
        "revision": order.model_revision,
        "created_at": order.created_at,
        "expires_at": order.expires_at,
        "price_usd": usd(order.price_micro),
        "price_micro": order.price_micro,
        "refunded_usd": None if refunded is None else usd(refunded),
        "refunded_micro": refunded,
        "pricing": order.pricing,
        "progress": {
            "lines": request_counts(view).model_dump(),
            "accepted_samples": view.progress.accepted_samples,
            "completion_tokens": view.progress.completion_tokens,
        },
    }
