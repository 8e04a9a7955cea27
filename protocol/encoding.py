"""Canonical bytes and domain-separated hashing.

A digest covers a list of fields, each written as its length (8 bytes, little-endian) and then its bytes, so no
two different lists share an encoding. Integers are 8-byte little-endian two's complement, floats the 8 bytes of
IEEE-754 binary64 (little-endian, -0.0 written as 0.0), text UTF-8, token ids 4-byte little-endian each.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from protocol.errors import LocalProtocolError

BYTES_PER_TOKEN_ID = 4
Field = bytes | str | int | float


def encode_field(value: Field) -> bytes:
    """The canonical bytes of one field.

    Raises:
        LocalProtocolError: for a bool, a number out of range or not finite, or text with a lone surrogate.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        raise LocalProtocolError("a boolean has no canonical encoding; use an integer")
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, int):
            return struct.pack("<q", value)
    except (UnicodeEncodeError, struct.error) as error:
        raise LocalProtocolError(f"cannot encode {type(value).__name__}: {error}") from error
    if not math.isfinite(value):
        raise LocalProtocolError("only finite floats have a canonical encoding")
    return struct.pack("<d", value + 0.0)


def encode_fields(fields: Iterable[Field]) -> bytes:
    """Length-prefixed concatenation of the fields' canonical bytes."""
    parts: list[bytes] = []
    for value in fields:
        data = encode_field(value)
        parts += (struct.pack("<Q", len(data)), data)
    return b"".join(parts)


def digest(domain: str, *fields: Field) -> bytes:
    """SHA-256 (32 bytes) over the domain and the fields, length-prefixed."""
    return hashlib.sha256(encode_fields((domain, *fields))).digest()


def encode_token_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as 4 little-endian bytes each.

    Raises:
        LocalProtocolError: for an id outside [0, 2**32).
    """
    try:
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error as error:
        raise LocalProtocolError(f"not a token id: {error}") from error


def decode_token_ids(data: bytes) -> list[int]:
    """The inverse of encode_token_ids."""
    return list(struct.unpack(f"<{len(data) // BYTES_PER_TOKEN_ID}I", data))


def token_ids_digest(token_ids: Sequence[int]) -> bytes:
    """SHA-256 (32 bytes) of the encoded token ids."""
    return hashlib.sha256(encode_token_ids(token_ids)).digest()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, no white space, UTF-8: equal values give equal bytes.

    Raises:
        LocalProtocolError: for NaN, infinities and values that JSON does not have.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except (ValueError, TypeError) as error:
        raise LocalProtocolError(f"not canonical JSON: {error}") from error
