"""An order as OpenAI's batch object and as the native order."""

from typing import Any

from gateway.core.states import BATCH_STATUS, ORDER, OrderState
from gateway.db.orders import OrderRecord
from gateway.intake import usd
from gateway.orders import BATCH_PREFIX, BatchView


def batch_object(view: BatchView) -> dict[str, Any]:
    """OpenAI's batch object: every key of the SDK's model, null when unset, and two of our own."""
    order = view.order
    return {
        "id": BATCH_PREFIX + order.id,
        "object": "batch",
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


def request_counts(view: BatchView) -> dict[str, int]:
    """Lines by fate: refused ones have failed from the start, those short of samples once the order has ended."""
    total, completed = view.order.total_lines, view.progress.completed_lines
    failed = total - completed if has_ended(view.order) else view.order.refused_lines
    return {"total": total, "completed": completed, "failed": failed}


def has_ended(order: OrderRecord) -> bool:
    """Whether nothing about the order will change any more."""
    return order.state in ORDER.final_states


def _errors(order: OrderRecord) -> dict[str, Any] | None:
    if order.state != OrderState.FAILED:
        return None
    error = {"code": order.failure_code, "message": order.failure_message, "param": None, "line": None}
    return {"object": "list", "data": [error]}


def _usage(order: OrderRecord) -> dict[str, Any] | None:
    """Tokens of an order that has ended; one that never started has read none."""
    if not has_ended(order):
        return None
    read = order.prompt_tokens if order.in_progress_at is not None else 0
    drawn = order.completion_tokens or 0
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": drawn,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + drawn,
    }


def _queue(view: BatchView) -> dict[str, Any] | None:
    if view.orders_ahead is None:
        return None
    # No estimate is honest before the speed of the miners that will come is known.
    return {"position": view.orders_ahead + 1, "orders_ahead": view.orders_ahead, "estimated_start_at": None}


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
            "lines": request_counts(view),
            "accepted_samples": view.progress.accepted_samples,
            "completion_tokens": view.progress.completion_tokens,
        },
    }
