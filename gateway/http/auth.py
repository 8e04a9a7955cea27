"""Who is calling: Bearer API keys on every route under /api/."""

import asyncio

from aiohttp import web

from gateway.db.accounts import ORDERS_WRITE, ApiKey, find_api_key
from gateway.errors import Forbidden, LimitReached, Unauthorized, retry_after
from gateway.http.errors import Handler
from gateway.http.keys import BUCKETS, CALLER, PUBLIC, services_of

CUSTOMER_PREFIX = "/api/"


async def authenticate(request: web.Request) -> ApiKey:
    """The API key of the request.

    Raises:
        Unauthorized: without a Bearer key, or with one that is unknown or revoked.
        Forbidden: when the key lacks the scope of the customer routes.
    """
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip() or not key.isascii():
        raise Unauthorized("invalid_api_key", "send an API key: Authorization: Bearer <key>")
    async with services_of(request).database.snapshot() as connection:
        caller = await find_api_key(connection, key.strip())
    if caller is None:
        raise Unauthorized("invalid_api_key", "the API key is unknown or was revoked")
    if ORDERS_WRITE not in caller.scopes:
        raise Forbidden("insufficient_scope", f"the API key lacks the {ORDERS_WRITE} scope")
    return caller


@web.middleware
async def require_api_key(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Authenticate customer routes and keep each key to its pace; a route that does not exist is a 404 for everybody.

    Raises:
        Unauthorized, Forbidden: as authenticate.
        LimitReached: rate_limited.
    """
    is_route = request.path.startswith(CUSTOMER_PREFIX) and request.match_info.http_exception is None
    if is_route and request.path not in request.app[PUBLIC]:
        caller = await authenticate(request)
        wait_seconds = request.app[BUCKETS].take(caller.id, asyncio.get_running_loop().time())
        if wait_seconds:
            raise LimitReached("rate_limited", "too many requests with this key", retry=retry_after(wait_seconds))
        request[CALLER] = caller
    return await handler(request)


def require_orders_allowed(request: web.Request) -> None:
    """Refuse what prepares or places an order to an account that may not order; its other rights it keeps.

    Raises:
        Forbidden: orders_unavailable.
    """
    if request[CALLER].orders_allowed_at is None:
        raise Forbidden("orders_unavailable", "the account does not have dataset access yet")
