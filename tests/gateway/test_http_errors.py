"""Every error in OpenAI's shape, whatever raised it."""

import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway import errors
from gateway.http.app import identify_request, mark_answer
from gateway.http.errors import STATUS_OF_REFUSAL, answer_errors
from protocol.errors import RemoteProtocolError

RAISED: dict[str, Exception] = {
    "payment": errors.PaymentRequired("insufficient_balance", "too poor", param="p"),
    "never": errors.LimitReached("order_limit", "too many", retry=errors.NEVER),
    "later": errors.LimitReached("rate_limited", "too fast", retry=errors.retry_after(7)),
    "conflict": errors.Conflict("idempotency_conflict", "another body"),
    "retry": errors.Conflict("order_refused", "try again", retry=errors.retry_after(1)),
    "unavailable": errors.Unavailable("batch_unavailable", "down"),
    "stranger": RemoteProtocolError("bad_signature", "not signed"),
    "malformed": RemoteProtocolError("invalid_message", "not a message"),
    "bug": KeyError("secret detail"),
}


async def fail(request: web.Request) -> web.Response:
    raise RAISED[request.match_info["what"]]


@pytest.fixture
async def client() -> AsyncIterator[TestClient[web.Request, web.Application]]:
    app = web.Application(middlewares=[identify_request, answer_errors])
    app.on_response_prepare.append(mark_answer)
    app.router.add_get("/{what}", fail)
    async with TestClient(TestServer(app)) as running:
        yield running


@pytest.mark.parametrize(
    ("what", "status", "kind", "code", "headers"),
    [
        ("payment", 402, "invalid_request_error", "insufficient_balance", {}),
        ("never", 429, "rate_limit_error", "order_limit", {"x-should-retry": "false"}),
        ("later", 429, "rate_limit_error", "rate_limited", {"Retry-After": "7"}),
        ("conflict", 409, "invalid_request_error", "idempotency_conflict", {"x-should-retry": "false"}),
        ("retry", 409, "invalid_request_error", "order_refused", {"Retry-After": "1"}),
        ("unavailable", 503, "server_error", "batch_unavailable", {"Retry-After": "10"}),
        ("stranger", 401, "authentication_error", "bad_signature", {}),
        ("malformed", 400, "invalid_request_error", "invalid_message", {}),
        ("bug", 500, "server_error", "internal_error", {}),
    ],
)
async def test_an_exception_becomes_an_answer(
    client: TestClient[web.Request, web.Application],
    what: str,
    status: int,
    kind: str,
    code: str,
    headers: dict[str, str],
) -> None:
    async with client.get(f"/{what}") as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["type"], error["code"]) == (status, kind, code)
        assert set(error) == {"message", "type", "param", "code"}
        retry = {name: answer.headers[name] for name in ("x-should-retry", "Retry-After") if name in answer.headers}
        assert retry == headers
        assert answer.headers["x-request-id"].startswith("req_")


async def test_an_unforeseen_exception_is_logged_and_shows_only_its_request_id(
    client: TestClient[web.Request, web.Application], caplog: pytest.LogCaptureFixture
) -> None:
    async with client.get("/bug") as answer:
        text = await answer.text()
    assert "secret detail" not in text
    assert answer.headers["x-request-id"] in text
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None


def test_every_kind_of_refusal_has_a_status() -> None:
    assert set(errors.Refusal.__subclasses__()) == set(STATUS_OF_REFUSAL)
