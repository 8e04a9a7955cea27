"""Pages of lists, as OpenAI's cursors do them."""

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from gateway.core.identifiers import can_be_id
from gateway.db.paging import Order, Page
from gateway.errors import InvalidRequest

MAX_LIMIT = 100


def read_page(request: web.Request, allowed: frozenset[str], default_limit: int) -> Page:
    """The page that the query string asks for.

    Raises:
        InvalidRequest: for an unknown parameter, a limit out of range or an order that is neither asc nor desc.
    """
    for name in request.query:
        if name not in allowed:
            raise InvalidRequest("unknown_parameter", f"unknown parameter: {name}", param=name)
    return Page(
        limit=_limit(request.query.get("limit"), default_limit),
        after=_after(request.query.get("after")),
        order=_order(request.query.get("order", "desc")),
        purpose=_purpose(request.query.get("purpose")),
    )


def _limit(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= MAX_LIMIT):
        raise InvalidRequest("invalid_limit", f"limit is a number from 1 to {MAX_LIMIT}", param="limit")
    return int(text)


def _after(text: str | None) -> str | None:
    if text is not None and not can_be_id(text):
        raise unknown_cursor(text)
    return text


def _purpose(text: str | None) -> str | None:
    if text is not None and not can_be_id(text):
        raise InvalidRequest("invalid_purpose", "purpose is a word such as batch or batch_output", param="purpose")
    return text


def _order(text: str) -> Order:
    if text == "asc":
        return "asc"
    if text == "desc":
        return "desc"
    raise InvalidRequest("invalid_order", "order is asc or desc", param="order")


def unknown_cursor(after: str | None) -> InvalidRequest:
    """The refusal of a cursor that is not in the list."""
    return InvalidRequest("invalid_after", f"there is nothing with the id {after} to begin after", param="after")


def list_object(items: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:  # noqa: FBT001 - a fact, no mode
    """OpenAI's list envelope."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
