"""The subnet's routes: who gets in, and that nothing gets in twice."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession
from aiohttp.test_utils import TestServer
from bittensor_core import Keypair, verify
from customer import MODEL, REVISION, START, World, running_world
from multidict import CIMultiDict

from gateway.http.app import build_app
from protocol.signing import HEADER_HOTKEY, sign_request

GATEWAY, MINER, VALIDATOR, STRANGER = (Keypair.create_from_uri(f"//{name}") for name in ("G", "M", "V", "S"))
LEASE = {"models": [{"repo": MODEL, "revision": REVISION}], "max_tasks": 1}
NOW_NS = START * 10**9


def is_signed(message: bytes, signature: bytes, hotkey: str) -> bool:
    try:
        return bool(verify(message, signature, hotkey))
    except ValueError:
        return False


@pytest.fixture
async def strict_world(tmp_path: Path) -> AsyncIterator[World]:
    """A gateway that checks signatures and knows one miner and one validator."""
    people: dict[str, Any] = {"miners": (MINER.ss58_address,), "validators": (VALIDATOR.ss58_address,)}
    async with running_world(tmp_path, **people) as world:
        settings = world.services.settings.model_copy(update={"hotkey": GATEWAY.ss58_address})
        strict = replace(world.services, verify_signature=is_signed, settings=settings)
        server = TestServer(build_app(strict, lambda: world.now))
        await server.start_server()
        world.url = str(server.make_url("")).rstrip("/")
        yield world
        await server.close()


@pytest.fixture
async def session(strict_world: World) -> AsyncIterator[ClientSession]:
    """A client of it."""
    async with ClientSession(strict_world.url) as made:
        yield made


def signed(path: str, body: bytes, by: Any = MINER, nonce_ns: int = NOW_NS) -> dict[str, str]:
    return sign_request(by, method="POST", target=path, body=body, receiver=GATEWAY.ss58_address, nonce_ns=nonce_ns)


async def code_of(response: ClientResponse) -> tuple[int, str]:
    return response.status, (await response.json())["error"]["code"]


async def test_a_registered_miner_gets_an_answer(session: ClientSession) -> None:
    body = json.dumps(LEASE).encode()
    async with session.post("/subnet/v1/leases", data=body, headers=signed("/subnet/v1/leases", body)) as response:
        assert response.status == 200
        assert (await response.json())["tasks"] == []


async def test_a_replayed_request_is_refused(session: ClientSession) -> None:
    body = json.dumps(LEASE).encode()
    headers = signed("/subnet/v1/leases", body)
    async with session.post("/subnet/v1/leases", data=body, headers=headers) as response:
        assert response.status == 200
    async with session.post("/subnet/v1/leases", data=body, headers=headers) as response:
        assert await code_of(response) == (401, "replayed_request")


@pytest.mark.parametrize(
    ("path", "by", "wanted"),
    [
        ("/subnet/v1/leases", STRANGER, (403, "not_registered")),
        ("/subnet/v1/leases", VALIDATOR, (403, "not_registered")),
        ("/subnet/v1/submissions", VALIDATOR, (403, "not_registered")),
        ("/subnet/v1/audits", MINER, (403, "not_registered")),
        ("/subnet/v1/evidence", MINER, (403, "not_registered")),
    ],
)
async def test_nobody_acts_in_a_role_that_is_not_theirs(
    session: ClientSession, path: str, by: Any, wanted: tuple[int, str]
) -> None:
    async with session.post(path, data=b"{}", headers=signed(path, b"{}", by)) as response:
        assert await code_of(response) == wanted


@pytest.mark.parametrize(("path", "victim"), [("/subnet/v1/leases", MINER), ("/subnet/v1/audits", VALIDATOR)])
async def test_a_second_hotkey_header_opens_no_door(session: ClientSession, path: str, victim: Any) -> None:
    headers = CIMultiDict({HEADER_HOTKEY: victim.ss58_address})
    for name, value in signed(path, b"{}", STRANGER).items():
        headers.add(name, value)
    async with session.post(path, data=b"{}", headers=headers) as response:
        assert await code_of(response) == (401, "malformed_auth")


async def test_an_unsigned_an_old_and_a_changed_request_are_refused(session: ClientSession) -> None:
    path, body = "/subnet/v1/leases", json.dumps(LEASE).encode()
    cases = [
        ({}, body, "malformed_auth"),
        (signed(path, body, nonce_ns=NOW_NS - 11 * 10**9), body, "stale_request"),
        (signed(path, body), body + b" ", "bad_signature"),
        (signed("/subnet/v1/audits", body), body, "bad_signature"),
    ]
    for headers, sent, code in cases:
        async with session.post(path, data=sent, headers=headers) as response:
            assert await code_of(response) == (401, code)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"models": []}', b'{"models": 1, "x": 2}', b"[" * 10_000])
async def test_a_message_out_of_its_form_is_refused(session: ClientSession, body: bytes) -> None:
    path = "/subnet/v1/leases"
    async with session.post(path, data=body, headers=signed(path, body)) as response:
        assert await code_of(response) == (400, "invalid_message")


async def test_anybody_may_ask_whom_to_sign_for(session: ClientSession) -> None:
    async with session.get("/subnet/v1/info") as response:
        assert await response.json() == {"hotkey": GATEWAY.ss58_address, "protocol_version": 1}
