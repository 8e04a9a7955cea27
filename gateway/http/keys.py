"""What the application and each request carry, under typed keys."""

from collections.abc import Callable

from aiohttp import web

from gateway.core.rate import TokenBuckets
from gateway.db.accounts import ApiKey
from gateway.http.locks import KeyedLocks
from gateway.services import Services

Clock = Callable[[], int]
"""Unix seconds, now."""

SERVICES = web.AppKey("services", Services)
CLOCK: web.AppKey[Clock] = web.AppKey("clock", Callable[[], int])  # type: ignore[arg-type]
IN_FLIGHT = web.AppKey("in_flight", KeyedLocks)
BUCKETS = web.AppKey("buckets", TokenBuckets)
PUBLIC: web.AppKey[frozenset[str]] = web.AppKey("public", frozenset)
"""Paths below /api/ that need no key."""

REQUEST_ID = web.RequestKey("request_id", str)
ANSWERED = web.RequestKey("answered", bool)
"""Set once the head of an answer has been sent: from then on there can be no other."""
CALLER = web.RequestKey("caller", ApiKey)


def services_of(request: web.Request) -> Services:
    """The services behind this application."""
    return request.app[SERVICES]


def now_of(request: web.Request) -> int:
    """Unix seconds, now, by the application's clock."""
    return request.app[CLOCK]()


def account_of(request: web.Request) -> str:
    """The id of the account whose key came with the request."""
    return request[CALLER].account_id
