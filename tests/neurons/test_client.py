"""The signed client against a gateway that answers as each test says."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from neurons.chain import Hotkey, create_hotkey, verify_signature
from neurons.client import RetryPolicy, SignedClient
from protocol.errors import PeerRefused, PeerUnreachable
from protocol.messages import LeaseList, LeaseListResponse
from protocol.params import V1
from protocol.signing import Caller, SignedRequest, verify_request

HELD = LeaseList(lease_ids=("lease-1",))
NOW_NS = 1_700_000_000 * 10**9


def answer(status: int = 200, body: object = None, headers: dict[str, str] | None = None) -> Callable[[], web.Response]:
    return lambda: web.json_response(
        {"lease_ids": ["lease-1"]} if body is None else body, status=status, headers=headers
    )


def refusal(status: int, code: str, headers: dict[str, str] | None = None) -> Callable[[], web.Response]:
    return answer(status, {"error": {"code": code, "message": "because", "type": "x", "param": None}}, headers)


@dataclass
class ScriptedGateway:
    """Checks every signature, gives the scripted answers in turn and remembers who called."""

    hotkey: str
    script: list[Callable[[], web.Response]] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    version: int = V1.version

    async def info(self, _request: web.Request) -> web.Response:
        return web.json_response({"hotkey": self.hotkey, "protocol_version": self.version, "since": "later"})

    async def heartbeat(self, request: web.Request) -> web.Response:
        signed = SignedRequest(request.method, request.raw_path, request.headers, await request.read())
        self.callers.append(verify_request(signed, self.hotkey, NOW_NS, verify_signature))
        return self.script.pop(0)()

    async def wait(self, seconds: float) -> None:
        self.waits.append(seconds)


@pytest.fixture
def hotkey(tmp_path: Path) -> Hotkey:
    return create_hotkey(tmp_path / "miner")


@pytest.fixture
def gateway(tmp_path: Path) -> ScriptedGateway:
    return ScriptedGateway(create_hotkey(tmp_path / "gateway").ss58_address)


@pytest.fixture
async def server(gateway: ScriptedGateway) -> AsyncIterator[TestServer]:
    app = web.Application()
    app.add_routes(
        [web.get("/subnet/v1/info", gateway.info), web.post("/subnet/v1/leases/heartbeat", gateway.heartbeat)]
    )
    async with TestServer(app) as running:
        yield running


@pytest.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with ClientSession() as opened:
        yield opened


@pytest.fixture
def client(gateway: ScriptedGateway, server: TestServer, session: ClientSession, hotkey: Hotkey) -> SignedClient:
    return _client(gateway, server, session, hotkey)


def _client(
    gateway: ScriptedGateway, server: TestServer, session: ClientSession, hotkey: Hotkey, expected: str | None = None
) -> SignedClient:
    policy = RetryPolicy(attempts=4, first_delay_seconds=1, longest_delay_seconds=30, sleep=gateway.wait)
    return SignedClient(session, str(server.make_url("")), hotkey, expected, policy=policy, clock_ns=lambda: NOW_NS)


async def test_a_request_is_signed_for_the_gateway_that_named_itself(
    client: SignedClient, gateway: ScriptedGateway, hotkey: Hotkey
) -> None:
    gateway.script = [answer()]
    assert await client.heartbeat(HELD) == LeaseListResponse(lease_ids=("lease-1",))
    assert gateway.callers == [Caller(hotkey.ss58_address, NOW_NS)]


async def test_every_attempt_has_a_nonce_of_its_own_even_when_the_clock_stands_still(
    client: SignedClient, gateway: ScriptedGateway
) -> None:
    gateway.script = [answer(503), answer(500), answer(), answer()]
    await client.heartbeat(HELD)
    await client.heartbeat(HELD)
    nonces = [caller.nonce_ns for caller in gateway.callers]
    assert nonces == sorted(set(nonces))
    assert len(nonces) == 4


async def test_waits_double_and_retry_after_is_honoured_up_to_a_limit(
    client: SignedClient, gateway: ScriptedGateway
) -> None:
    gateway.script = [answer(502), answer(502), answer(503, headers={"Retry-After": "7"}), answer()]
    await client.heartbeat(HELD)
    assert gateway.waits == [1, 2, 7]
    gateway.script = [refusal(429, "rate_limited", {"Retry-After": "86400"}), answer()]
    await client.heartbeat(HELD)
    assert gateway.waits[3:] == [30]


async def test_a_gateway_that_keeps_failing_is_unreachable(client: SignedClient, gateway: ScriptedGateway) -> None:
    gateway.script = [answer(500)] * 4
    with pytest.raises(PeerUnreachable, match="HTTP 500"):
        await client.heartbeat(HELD)
    assert gateway.script == []


async def test_nobody_listening_is_unreachable(
    client: SignedClient, gateway: ScriptedGateway, server: TestServer
) -> None:
    await server.close()
    with pytest.raises(PeerUnreachable):
        await client.heartbeat(HELD)
    assert gateway.waits == [1, 2, 4]


async def test_a_refusal_is_not_tried_again_and_keeps_its_code(client: SignedClient, gateway: ScriptedGateway) -> None:
    gateway.script = [refusal(409, "lease_lost")]
    with pytest.raises(PeerRefused) as refused:
        await client.heartbeat(HELD)
    assert (refused.value.code, refused.value.message, refused.value.status) == ("lease_lost", "because", 409)


@pytest.mark.parametrize("body", ["text", [], {"error": "text"}, {}])
async def test_a_refusal_without_a_reason_is_still_a_refusal(
    client: SignedClient, gateway: ScriptedGateway, body: object
) -> None:
    gateway.script = [answer(404, body)]
    with pytest.raises(PeerRefused) as refused:
        await client.heartbeat(HELD)
    assert refused.value.code == "unreadable_refusal"


async def test_an_answer_that_is_no_message_is_not_a_gateway(client: SignedClient, gateway: ScriptedGateway) -> None:
    gateway.script = [answer(200, {"leases": []})]
    with pytest.raises(PeerUnreachable, match="not a gateway"):
        await client.heartbeat(HELD)


async def test_a_redirect_is_not_followed(client: SignedClient, gateway: ScriptedGateway) -> None:
    gateway.script = [answer(302, {}, {"Location": "http://127.0.0.1:1/"})]
    with pytest.raises(PeerRefused):
        await client.heartbeat(HELD)


async def test_a_gateway_with_another_hotkey_than_configured_is_refused(
    gateway: ScriptedGateway, server: TestServer, session: ClientSession, hotkey: Hotkey
) -> None:
    client = _client(gateway, server, session, hotkey, expected=hotkey.ss58_address)
    with pytest.raises(PeerRefused) as refused:
        await client.heartbeat(HELD)
    assert refused.value.code == "wrong_gateway"
    assert gateway.callers == []


async def test_a_gateway_of_another_protocol_version_is_refused(client: SignedClient, gateway: ScriptedGateway) -> None:
    gateway.version = V1.version + 1
    with pytest.raises(PeerRefused) as refused:
        await client.heartbeat(HELD)
    assert refused.value.code == "wrong_protocol"
