"""The gateway's web application: its routes and what happens around every request."""

import secrets

from aiohttp import web
from prometheus_client import generate_latest

from gateway.core.rate import TokenBuckets
from gateway.http import account, catalog, native_orders, openai_routes
from gateway.http.auth import require_api_key
from gateway.http.documents import DOCUMENT_PATH, PAGE_PATH, Documents
from gateway.http.errors import Handler, answer_errors
from gateway.http.keys import ANSWERED, BUCKETS, CLOCK, IN_FLIGHT, PUBLIC, REQUEST_ID, SERVICES, Clock, services_of
from gateway.http.locks import KeyedLocks
from gateway.http.routes import Endpoint
from gateway.http.subnet import add_subnet_routes
from gateway.services import Services

MAX_JSON_BYTES = 1024 * 1024
REQUEST_ID_HEADER = "x-request-id"


def build_app(services: Services, clock: Clock) -> web.Application:
    """The application; starting and stopping the services and the sweeper is the composition root's business.

    Args:
        services: what the operations use.
        clock: Unix seconds, now.
    """
    app = web.Application(
        middlewares=[identify_request, answer_errors, require_api_key], client_max_size=MAX_JSON_BYTES
    )
    app[SERVICES] = services
    app[CLOCK] = clock
    app[IN_FLIGHT] = KeyedLocks()
    app[BUCKETS] = TokenBuckets(services.settings.requests_per_second, services.settings.request_burst)
    app.on_response_prepare.append(mark_answer)
    add_customer_routes(app)
    add_subnet_routes(app)
    app.router.add_get("/healthz", get_health)
    app.router.add_get("/metrics", get_metrics)
    return app


def add_customer_routes(app: web.Application) -> None:
    """What customers call, with an API key but for what describes the API."""
    for route in openai_routes.ROUTES:
        app.router.add_route(route.method, route.path, Endpoint(route).handle)
    documents = Documents()
    app[PUBLIC] = frozenset({DOCUMENT_PATH})
    app.add_routes(
        [
            web.get(DOCUMENT_PATH, documents.get_document, allow_head=False),
            web.get(PAGE_PATH, documents.get_page, allow_head=False),
            web.get("/api/v1/balance", account.get_balance, allow_head=False),
            web.get("/api/v1/generation/catalog", catalog.get_catalog, allow_head=False),
            web.get("/api/v1/dataset-orders/{order_id}", native_orders.get_order, allow_head=False),
            web.get("/api/v1/dataset-orders/{order_id}/verification", native_orders.get_verification, allow_head=False),
        ]
    )


@web.middleware
async def identify_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every request an id to quote."""
    request[REQUEST_ID] = _new_request_id()
    return await handler(request)


async def mark_answer(request: web.Request, response: web.StreamResponse) -> None:
    """Send the id with every answer, streamed ones and errors included, and note that one is being sent."""
    request[ANSWERED] = True
    # A request that is refused before any middleware runs, for its Expect header, has no id yet.
    response.headers[REQUEST_ID_HEADER] = request[REQUEST_ID] if REQUEST_ID in request else _new_request_id()


def _new_request_id() -> str:
    return f"req_{secrets.token_hex(16)}"


async def get_health(request: web.Request) -> web.Response:
    """Whether the database answers."""
    async with services_of(request).database.snapshot():
        return web.json_response({"status": "ok"})


async def get_metrics(request: web.Request) -> web.Response:
    """The gateway's metrics in Prometheus' text format."""
    body = generate_latest(services_of(request).metrics.registry)
    return web.Response(body=body, content_type="text/plain")
