"""What miners and validators talk to, under /subnet/v1: signed requests in, protocol/messages.py in and out.

neurons/client.py is the other half. A request passes, in this order: a claimed hotkey on the role's list, a bounded
body, the btauth/1 signature, a nonce that was never seen, and only then its JSON is parsed.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict
from typing import TypeVar

from aiohttp import web
from pydantic import ValidationError

from gateway import audits, dispatch
from gateway.db.nonces import take_nonce
from gateway.db.standings import miner_standings
from gateway.errors import Forbidden, TooLarge
from gateway.http.keys import now_of, services_of
from gateway.services import Services
from protocol.errors import RemoteProtocolError
from protocol.messages import (
    AuditRequest,
    EvidenceReport,
    LeaseList,
    LeaseRequest,
    Message,
    Submission,
)
from protocol.params import V1
from protocol.signing import HEADER_HOTKEY, SignedRequest, verify_request

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Room for the largest submission: samples_per_task samples of max_new_tokens_limit ids of up to ten digits."""

RequestMessage = TypeVar("RequestMessage", bound=Message)
Operation = Callable[[Services, str, RequestMessage, int], Awaitable[Message]]


def add_subnet_routes(app: web.Application) -> None:
    """Add the subnet's routes; the application must hold its services and clock under the keys of keys.py."""
    app.add_routes(
        [
            web.get("/subnet/v1/info", get_info),
            web.get("/subnet/v1/status", get_status),
            web.post("/subnet/v1/leases", post_leases),
            web.post("/subnet/v1/leases/heartbeat", post_heartbeat),
            web.post("/subnet/v1/leases/release", post_release),
            web.post("/subnet/v1/submissions", post_submissions),
            web.post("/subnet/v1/audits", post_audits),
            web.post("/subnet/v1/evidence", post_evidence),
        ]
    )


async def get_info(request: web.Request) -> web.Response:
    """Whom to address signed requests to."""
    return web.json_response({"hotkey": services_of(request).settings.hotkey, "protocol_version": V1.version})


async def get_status(request: web.Request) -> web.Response:
    """How each miner stands; hotkeys are public on the chain."""
    async with services_of(request).database.snapshot() as conn:
        standings = await miner_standings(conn)
    return web.json_response({"miners": [asdict(standing) for standing in standings]})


async def post_leases(request: web.Request) -> web.Response:
    """Give a miner tasks."""
    return await _serve_miner(request, LeaseRequest, dispatch.lease_tasks)


async def post_heartbeat(request: web.Request) -> web.Response:
    """Keep a miner's leases alive."""
    return await _serve_miner(request, LeaseList, dispatch.heartbeat)


async def post_release(request: web.Request) -> web.Response:
    """Take leases back."""
    return await _serve_miner(request, LeaseList, dispatch.release)


async def post_submissions(request: web.Request) -> web.Response:
    """Take a finished task."""
    return await _serve_miner(request, Submission, dispatch.submit)


async def post_audits(request: web.Request) -> web.Response:
    """Give a validator claims to audit."""
    return await _serve_validator(request, AuditRequest, audits.assign_audits)


async def post_evidence(request: web.Request) -> web.Response:
    """Take a validator's evidence."""
    return await _serve_validator(request, EvidenceReport, audits.report_evidence)


async def _serve_miner(
    request: web.Request, message: type[RequestMessage], operation: Operation[RequestMessage]
) -> web.Response:
    return await _serve(request, services_of(request).settings.miners, message, operation)


async def _serve_validator(
    request: web.Request, message: type[RequestMessage], operation: Operation[RequestMessage]
) -> web.Response:
    return await _serve(request, services_of(request).settings.validators, message, operation)


async def _serve(
    request: web.Request,
    registered: Collection[str],
    message: type[RequestMessage],
    operation: Operation[RequestMessage],
) -> web.Response:
    services, now = services_of(request), now_of(request)
    # The claim is not proven yet, but a stranger need not be read, let alone verified.
    if request.headers.get(HEADER_HOTKEY) not in (None, *registered):
        raise Forbidden("not_registered", "this hotkey is not registered for this role")
    body = await _read_body(request)
    hotkey = await _authenticate(request, body, now)
    if hotkey not in registered:  # the check above was of a claim, this one is of the proven sender
        raise Forbidden("not_registered", "this hotkey is not registered for this role")
    answer = await operation(services, hotkey, _parse(message, body), now)
    return web.Response(body=answer.model_dump_json().encode(), content_type="application/json")


async def _read_body(request: web.Request) -> bytes:
    """The raw body.

    Raises:
        TooLarge: as soon as it is longer than any message.
    """
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge("message_too_large", f"a message has at most {MAX_BODY_BYTES} bytes")
    return bytes(body)


async def _authenticate(request: web.Request, body: bytes, now: int) -> str:
    """The hotkey that signed the request; its nonce is spent from here on, whatever becomes of the request."""
    services = services_of(request)
    signed = SignedRequest(request.method, request.raw_path, request.headers, body)
    caller = verify_request(signed, services.settings.hotkey, now * 10**9, services.verify_signature)
    async with services.database.transaction() as conn:
        is_fresh = await take_nonce(conn, caller.hotkey, caller.nonce_ns, now)
    if not is_fresh:
        raise RemoteProtocolError("replayed_request", "this nonce was used before")
    return caller.hotkey


def _parse(message: type[RequestMessage], body: bytes) -> RequestMessage:
    try:
        return message.model_validate_json(body)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(key) for key in fault["loc"]) or "body"
        raise RemoteProtocolError("invalid_message", f"{where}: {fault['msg']}") from error
