"""Signed requests: byte for byte what Bittensor's SDK signs, and one fault at a time refused."""

from typing import Any

import pytest
from bittensor import http_auth
from bittensor_core import Keypair, verify
from multidict import CIMultiDict
from vectors import load

from protocol.errors import RemoteProtocolError
from protocol.signing import RequestParties, SignedRequest, request_payload, sign_request, verify_request

NOW_NS = 1_800_000_000_000_000_000
ALICE, BOB = Keypair.create_from_uri("//Alice"), Keypair.create_from_uri("//Bob")
BODY = b'{"max_tasks":1}'


def is_signed(message: bytes, signature: bytes, hotkey: str) -> bool:
    try:
        return bool(verify(message, signature, hotkey))
    except ValueError:
        return False


def request(**changes: Any) -> SignedRequest:
    headers = sign_request(
        ALICE, method="POST", target="/subnet/v1/leases", body=BODY, receiver=BOB.ss58_address, nonce_ns=NOW_NS
    )
    fields = {"method": "POST", "target": "/subnet/v1/leases", "headers": headers, "body": BODY}
    return SignedRequest(**{**fields, **changes})


def with_header(name: str, value: str | None) -> SignedRequest:
    headers = {key: text for key, text in request().headers.items() if key != name}
    return request(headers=headers if value is None else {**headers, name: value})


@pytest.mark.parametrize("vector", load("signing"), ids=lambda vector: vector["target"])
def test_the_payload_and_the_signature_are_those_of_the_vectors(vector: dict[str, Any]) -> None:
    parties = RequestParties(vector["sender"], vector["receiver"], vector["nonce_ns"])
    payload = request_payload(vector["method"], vector["target"], vector["body"].encode(), parties)
    assert payload.decode() == vector["payload"]
    assert is_signed(payload, bytes.fromhex(vector["signature"]), vector["sender"])


def test_the_sdk_accepts_what_we_sign() -> None:
    made = request()
    caller = http_auth.verify(
        dict(made.headers),
        made.body,
        method=made.method,
        path=made.target,
        self_hotkey_ss58=BOB.ss58_address,
        nonce_store=http_auth.InMemoryNonceStore(),
        now_ns=NOW_NS,
    )
    assert caller.hotkey_ss58 == ALICE.ss58_address


def test_we_accept_what_the_sdk_signs() -> None:
    headers = http_auth.sign(
        ALICE, method="POST", path="/x?y=1", body=BODY, receiver_ss58=BOB.ss58_address, nonce_ns=NOW_NS
    )
    made = SignedRequest("POST", "/x?y=1", headers, BODY)
    caller = verify_request(made, BOB.ss58_address, NOW_NS + 10**9, is_signed)
    assert (caller.hotkey, caller.nonce_ns) == (ALICE.ss58_address, NOW_NS)


@pytest.mark.parametrize(
    ("made", "late_ns", "code"),
    [
        (request(method="PUT"), 0, "bad_signature"),
        (request(target="/subnet/v1/audits"), 0, "bad_signature"),
        (request(body=BODY + b" "), 0, "bad_signature"),
        (with_header("X-Bittensor-Hotkey", BOB.ss58_address), 0, "bad_signature"),
        (with_header("X-Bittensor-Hotkey", "nobody"), 0, "bad_signature"),
        (with_header("X-Bittensor-Nonce", str(NOW_NS + 1)), 0, "bad_signature"),
        (with_header("X-Bittensor-Signature", "0x" + "00" * 64), 0, "bad_signature"),
        (with_header("X-Bittensor-Signature", "0xzz"), 0, "malformed_auth"),
        (with_header("X-Bittensor-Signature", None), 0, "malformed_auth"),
        (with_header("X-Bittensor-Hotkey", None), 0, "malformed_auth"),
        (with_header("X-Bittensor-Hotkey", "\udcff"), 0, "malformed_auth"),
        (with_header("X-Bittensor-Nonce", "-1"), 0, "malformed_auth"),
        (with_header("X-Bittensor-Nonce", "9" * 40), 0, "malformed_auth"),
        (with_header("X-Bittensor-Version", "2"), 0, "malformed_auth"),
        (with_header("X-Bittensor-Crypto", "ed25519"), 0, "malformed_auth"),
        (with_header("X-Bittensor-Receiver", ALICE.ss58_address), 0, "wrong_receiver"),
        (with_header("X-Bittensor-Receiver", None), 0, "wrong_receiver"),
        (request(), 10_000_000_001, "stale_request"),
        (request(), -2_000_000_001, "stale_request"),
    ],
)
def test_one_fault_is_refused_with_its_code(made: SignedRequest, late_ns: int, code: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        verify_request(made, BOB.ss58_address, NOW_NS + late_ns, is_signed)
    assert refused.value.code == code


@pytest.mark.parametrize("name", ["X-Bittensor-Hotkey", "X-Bittensor-Receiver", "x-bittensor-nonce"])
def test_a_header_that_is_there_twice_is_refused(name: str) -> None:
    headers = CIMultiDict(request().headers)
    headers.add(name, headers[name])
    with pytest.raises(RemoteProtocolError) as refused:
        verify_request(request(headers=headers), BOB.ss58_address, NOW_NS, is_signed)
    assert refused.value.code == "malformed_auth"


@pytest.mark.parametrize("late_ns", [10_000_000_000, -2_000_000_000])
def test_the_freshness_window_includes_its_edges(late_ns: int) -> None:
    assert verify_request(request(), BOB.ss58_address, NOW_NS + late_ns, is_signed).hotkey == ALICE.ss58_address
