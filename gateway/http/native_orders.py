"""The native order behind a batch: its money, its progress and how it was verified."""

from dataclasses import asdict

from aiohttp import web

from gateway import orders
from gateway.errors import InvalidRequest
from gateway.export import verification_of
from gateway.http.batch_objects import order_object
from gateway.http.keys import account_of, services_of
from gateway.orders import BatchView

DEFAULT_LIMIT = 1000
LARGEST_LINE_NUMBER = 999_999_999  # physical lines, blank ones included


async def get_order(request: web.Request) -> web.Response:
    """One order."""
    return web.json_response(order_object(await _view(request)))


async def get_verification(request: web.Request) -> web.Response:
    """What the audits showed of each accepted sample, by lines; miners are not named."""
    view = await _view(request)
    after = _number(request, "after_line", 0, LARGEST_LINE_NUMBER)
    limit = _number(request, "limit", DEFAULT_LIMIT, DEFAULT_LIMIT)
    report = await verification_of(services_of(request), view.order.id, after, limit)
    return web.json_response(asdict(report))


def _number(request: web.Request, name: str, default: int, largest: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) <= largest):
        raise InvalidRequest(f"invalid_{name}", f"{name} is a number up to {largest}", param=name)
    return int(text)


async def _view(request: web.Request) -> BatchView:
    return await orders.get_batch(services_of(request), account_of(request), request.match_info["order_id"])
