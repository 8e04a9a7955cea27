"""OpenAI's batch routes: create, list, read, cancel."""

from aiohttp import web

from gateway import orders
from gateway.db.paging import Page, UnknownCursor
from gateway.errors import NotFound
from gateway.http.auth import require_orders_allowed
from gateway.http.batch_body import BatchBody, BatchHeaders, batch_request
from gateway.http.batch_objects import BatchList, BatchObject, batch_object
from gateway.http.keys import CLOCK, IN_FLIGHT, account_of, now_of, services_of
from gateway.http.listing import BatchesQuery, unknown_cursor
from gateway.intake import BatchRequest
from gateway.orders import BATCH_PREFIX


async def create_batch(request: web.Request, body: BatchBody, headers: BatchHeaders) -> BatchObject:
    """Quote a file and place the order, in one call.

    Requests with one Idempotency-Key wait for each other.
    """
    require_orders_allowed(request)
    asked = batch_request(body, headers)
    if asked.idempotency is None:
        return await _create(request, asked)
    async with request.app[IN_FLIGHT].hold((account_of(request), asked.idempotency.key)):
        return await _create(request, asked)


async def _create(request: web.Request, asked: BatchRequest) -> BatchObject:
    return batch_object(await orders.create_batch(services_of(request), account_of(request), asked, request.app[CLOCK]))


async def list_batches(request: web.Request, query: BatchesQuery) -> BatchList:
    """List batches, newest first."""
    after = query.after
    if after is not None and not after.startswith(BATCH_PREFIX):
        raise unknown_cursor(after)
    page = Page(query.limit, None if after is None else after.removeprefix(BATCH_PREFIX))
    try:
        views, has_more = await orders.list_batches(services_of(request), account_of(request), page)
    except UnknownCursor as error:
        raise unknown_cursor(after) from error
    return BatchList.of([batch_object(view) for view in views], has_more=has_more)


async def get_batch(request: web.Request) -> BatchObject:
    """Read a batch."""
    return batch_object(await orders.get_batch(services_of(request), account_of(request), _order_id(request)))


async def cancel_batch(request: web.Request) -> BatchObject:
    """Cancel a batch; what was verified by then is delivered."""
    view = await orders.cancel_batch(services_of(request), account_of(request), _order_id(request), now_of(request))
    return batch_object(view)


def _order_id(request: web.Request) -> str:
    batch_id = request.match_info["batch_id"]
    if not batch_id.startswith(BATCH_PREFIX):
        raise NotFound("batch_not_found", f"there is no batch {batch_id}", param="batch_id")
    return batch_id.removeprefix(BATCH_PREFIX)
