"""OpenAI's batch routes: create, list, read, cancel."""

from dataclasses import replace

from aiohttp import web

from gateway import orders
from gateway.db.paging import UnknownCursor
from gateway.errors import NotFound
from gateway.http.batch_body import read_batch_request
from gateway.http.batch_objects import batch_object
from gateway.http.keys import CLOCK, IN_FLIGHT, account_of, now_of, services_of
from gateway.http.listing import list_object, read_page, unknown_cursor
from gateway.intake import BatchRequest
from gateway.orders import BATCH_PREFIX, BatchView

DEFAULT_LIMIT = 20
_LIST_PARAMETERS = frozenset({"after", "limit"})


async def create_batch(request: web.Request) -> web.Response:
    """Quote a file and place the order; requests with one Idempotency-Key wait for each other."""
    batch_request = await read_batch_request(request)
    if batch_request.idempotency is None:
        return web.json_response(batch_object(await _create(request, batch_request)))
    async with request.app[IN_FLIGHT].hold((account_of(request), batch_request.idempotency.key)):
        return web.json_response(batch_object(await _create(request, batch_request)))


async def _create(request: web.Request, batch_request: BatchRequest) -> BatchView:
    return await orders.create_batch(services_of(request), account_of(request), batch_request, request.app[CLOCK])


async def list_batches(request: web.Request) -> web.Response:
    """A page of the account's batches, newest first."""
    page = read_page(request, _LIST_PARAMETERS, DEFAULT_LIMIT)
    if page.after is not None:
        if not page.after.startswith(BATCH_PREFIX):
            raise unknown_cursor(page.after)
        page = replace(page, after=page.after.removeprefix(BATCH_PREFIX))
    try:
        views, has_more = await orders.list_batches(services_of(request), account_of(request), page)
    except UnknownCursor as error:
        raise unknown_cursor(request.query["after"]) from error
    return web.json_response(list_object([batch_object(view) for view in views], has_more))


async def get_batch(request: web.Request) -> web.Response:
    """One batch."""
    view = await orders.get_batch(services_of(request), account_of(request), _order_id(request))
    return web.json_response(batch_object(view))


async def cancel_batch(request: web.Request) -> web.Response:
    """Cancel a batch; the body, if there is one, means nothing."""
    view = await orders.cancel_batch(services_of(request), account_of(request), _order_id(request), now_of(request))
    return web.json_response(batch_object(view))


def _order_id(request: web.Request) -> str:
    batch_id = request.match_info["batch_id"]
    if not batch_id.startswith(BATCH_PREFIX):
        raise NotFound("batch_not_found", f"there is no batch {batch_id}", param="batch_id")
    return batch_id.removeprefix(BATCH_PREFIX)
