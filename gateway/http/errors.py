"""The one mapping from what went wrong to an answer in OpenAI's error shape."""

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway import errors
from gateway.http.keys import ANSWERED, REQUEST_ID
from protocol.errors import RemoteProtocolError

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

STATUS_OF_REFUSAL: dict[type[errors.Refusal], int] = {
    errors.InvalidRequest: 400,
    errors.Unauthorized: 401,
    errors.PaymentRequired: 402,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.LengthRequired: 411,
    errors.TooLarge: 413,
    errors.RangeNotSatisfiable: 416,
    errors.Unprocessable: 422,
    errors.LimitReached: 429,
    errors.Unavailable: 503,
}

# A peer of the subnet that could not prove who it is, as against one that sent something malformed.
_AUTHENTICATION_CODES = frozenset(
    {"malformed_auth", "wrong_receiver", "stale_request", "bad_signature", "replayed_request"}
)

_TYPE_OF_STATUS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

_CODE_OF_HTTP_ERROR = {404: "unknown_route", 405: "method_not_allowed", 413: "request_too_large"}


def error_body(status: int, code: str, message: str, param: str | None = None) -> dict[str, dict[str, str | None]]:
    """OpenAI's error object."""
    kind = _TYPE_OF_STATUS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def refusal_response(refusal: errors.Refusal) -> web.Response:
    """The answer that a refusal becomes."""
    status = next(STATUS_OF_REFUSAL[kind] for kind in type(refusal).__mro__ if kind in STATUS_OF_REFUSAL)
    headers: dict[str, str] = {}
    if refusal.retry is not None and refusal.retry.kind is errors.Retry.POINTLESS:
        headers["x-should-retry"] = "false"
    if refusal.retry is not None and refusal.retry.after_seconds is not None:
        headers["Retry-After"] = str(refusal.retry.after_seconds)
    if isinstance(refusal, errors.RangeNotSatisfiable):
        headers["Content-Range"] = f"bytes */{refusal.size_bytes}"
    body = error_body(status, refusal.code, refusal.message, refusal.param)
    return web.json_response(body, status=status, headers=headers)


def peer_error_response(error: RemoteProtocolError) -> web.Response:
    """The answer to a miner or validator that broke a rule of the protocol."""
    status = 401 if error.code in _AUTHENTICATION_CODES else 400
    return web.json_response(error_body(status, error.code, error.message), status=status)


def _http_error_response(request: web.Request, error: web.HTTPException) -> web.Response:
    code = _CODE_OF_HTTP_ERROR.get(error.status, "invalid_request")
    messages = {
        404: f"there is no {request.method} {request.path}",
        405: f"{request.path} does not take {request.method}",
        413: "the request body is too large",
    }
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
    body = error_body(error.status, code, messages.get(error.status, error.reason))
    return web.json_response(body, status=error.status, headers=headers)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception of a handler into an answer; what nobody foresaw becomes an opaque 500."""
    try:
        return await handler(request)
    except errors.Refusal as refusal:
        if ANSWERED in request:
            raise  # half an answer is out: only breaking the connection tells the client that it is not whole
        return refusal_response(refusal)
    except RemoteProtocolError as error:
        return peer_error_response(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _http_error_response(request, error)
    except (ConnectionError, web.RequestPayloadError):
        raise  # the client is gone: nobody is left to answer, and nothing went wrong here
    except Exception:
        request_id = request[REQUEST_ID]
        logger.exception("A request failed", extra={"action": "request", "request_id": request_id})
        if ANSWERED in request:
            raise  # as above
        message = f"the server failed; quote request id {request_id} when you report it"
        return web.json_response(error_body(500, "internal_error", message), status=500)
