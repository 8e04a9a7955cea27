"""Signed requests: btauth/1, byte for byte as Bittensor's SDK signs and verifies them. SPEC.md §8.

The signature itself (sr25519) comes through two ports, so that nothing here needs a key library.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from protocol.errors import RemoteProtocolError
from protocol.params import V1

SCHEME = "sr25519"
HEADER_VERSION = "X-Bittensor-Version"
HEADER_HOTKEY = "X-Bittensor-Hotkey"
HEADER_RECEIVER = "X-Bittensor-Receiver"
HEADER_NONCE = "X-Bittensor-Nonce"
HEADER_CRYPTO = "X-Bittensor-Crypto"
HEADER_SIGNATURE = "X-Bittensor-Signature"

Verifier = Callable[[bytes, bytes, str], bool]
"""verify(message, signature, ss58 address): whether the hotkey signed the message. Never raises."""


class Signer(Protocol):
    """A hotkey that can sign."""

    @property
    def ss58_address(self) -> str:
        """The hotkey's public address."""
        ...

    def sign(self, message: bytes) -> bytes:
        """The 64-byte sr25519 signature of the message."""
        ...


@dataclass(frozen=True)
class SignedRequest:
    """A request as it was received: target is the raw path with its query, body the raw bytes."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Caller:
    """Who signed a request, and the nonce that may be used once."""

    hotkey: str
    nonce_ns: int


@dataclass(frozen=True)
class RequestParties:
    """Sender and receiver (ss58) and the nonce: the sender's clock in nanoseconds."""

    sender: str
    receiver: str
    nonce_ns: int


def request_payload(method: str, target: str, body: bytes, parties: RequestParties) -> bytes:
    """The eight signed lines of a btauth/1 request."""
    lines = (
        "btauth/1",
        SCHEME,
        method.upper(),
        target,
        hashlib.sha256(body).hexdigest(),
        str(parties.nonce_ns),
        parties.sender,
        parties.receiver,
    )
    return "\n".join(lines).encode()


def sign_request(
    signer: Signer, *, method: str, target: str, body: bytes, receiver: str, nonce_ns: int
) -> dict[str, str]:
    """The headers that authenticate a request; every attempt needs a nonce of its own."""
    parties = RequestParties(signer.ss58_address, receiver, nonce_ns)
    return {
        HEADER_VERSION: "1",
        HEADER_HOTKEY: parties.sender,
        HEADER_RECEIVER: receiver,
        HEADER_NONCE: str(nonce_ns),
        HEADER_SIGNATURE: "0x" + signer.sign(request_payload(method, target, body, parties)).hex(),
    }


def _single(headers: Mapping[str, str]) -> dict[str, str]:
    """The btauth headers by lower-case name; twice the same one would let two readers see two senders."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower()
        if key.startswith("x-bittensor-") and (key in found or not value.isascii()):
            raise RemoteProtocolError("malformed_auth", f"{name} is there twice or is not ASCII")
        found[key] = value
    return found


def _required(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name.lower())
    if not value:
        raise RemoteProtocolError("malformed_auth", f"{name} is missing")
    return value


def verify_request(request: SignedRequest, receiver: str, now_ns: int, verify: Verifier) -> Caller:
    """Authenticate a request; the caller must still refuse a nonce that it has seen from this hotkey.

    Raises:
        RemoteProtocolError: malformed_auth, wrong_receiver, stale_request or bad_signature, in this order.
    """
    headers = _single(request.headers)
    if headers.get(HEADER_VERSION.lower()) != "1" or headers.get(HEADER_CRYPTO.lower(), SCHEME) != SCHEME:
        raise RemoteProtocolError("malformed_auth", f"expected {HEADER_VERSION} 1 and {SCHEME}")
    sender = _required(headers, HEADER_HOTKEY)
    nonce_text = _required(headers, HEADER_NONCE)
    signature_text = _required(headers, HEADER_SIGNATURE).removeprefix("0x")
    if not (nonce_text.isascii() and nonce_text.isdigit() and len(nonce_text) < 20):
        raise RemoteProtocolError("malformed_auth", f"{HEADER_NONCE} is not a decimal integer")
    try:
        signature = bytes.fromhex(signature_text)
    except ValueError:
        raise RemoteProtocolError("malformed_auth", f"{HEADER_SIGNATURE} is not hex") from None
    if headers.get(HEADER_RECEIVER.lower()) != receiver:
        raise RemoteProtocolError("wrong_receiver", "the request was signed for another receiver")
    nonce_ns = int(nonce_text)
    age_ns = now_ns - nonce_ns
    if not -V1.signature_max_skew_seconds * 10**9 <= age_ns <= V1.signature_max_age_seconds * 10**9:
        raise RemoteProtocolError("stale_request", "the nonce is outside the freshness window; check the clock")
    parties = RequestParties(sender, receiver, nonce_ns)
    if not verify(request_payload(request.method, request.target, request.body, parties), signature, sender):
        raise RemoteProtocolError("bad_signature", "the signature does not verify for the claimed hotkey")
    return Caller(sender, nonce_ns)
