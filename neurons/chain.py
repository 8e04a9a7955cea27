"""Hotkeys: the only importer of bittensor.

A keyfile is what btcli writes without a password (one JSON object), or a text file that holds a 0x seed of 32 bytes.
Nobody but its owner may be able to read it.
"""

import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from bittensor_core import (
    CRYPTO_SR25519,
    KeyfileError,
    Keypair,
    deserialize_keypair_from_keyfile_data,
    keyfile_data_is_encrypted,
    serialized_keypair_to_keyfile_data,
)
from bittensor_core import verify as verify_sr25519


class KeyfileUnusable(Exception):
    """The keyfile cannot be used; the message names the file and the reason, never its content."""


@dataclass(frozen=True)
class Hotkey:
    """An sr25519 hotkey in memory; a protocol.signing.Signer.

    Attributes:
        ss58_address: its public name on the subnet.
    """

    ss58_address: str
    _keypair: Keypair = field(repr=False)

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature of message."""
        return bytes(self._keypair.sign(message))


def load_signer(path: Path) -> Hotkey:
    """The hotkey in a keyfile.

    Raises:
        KeyfileUnusable: when the file is missing, readable by others, encrypted, or no keyfile at all.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise KeyfileUnusable(f"{path}: {error.strerror or error}") from error
    with os.fdopen(descriptor, "rb") as handle:
        # The mode of the open file: the path could have been given another file in between.
        if stat.S_IMODE(os.fstat(handle.fileno()).st_mode) & 0o077:
            raise KeyfileUnusable(f"{path}: readable by others; chmod 600 it")
        data = handle.read()
    return _hotkey(_parse_keyfile(path, data))


def create_hotkey(path: Path) -> Hotkey:
    """A new random hotkey, stored at path with mode 0600.

    The file appears complete or not at all, so a process killed in between can simply be started again.

    Raises:
        KeyfileUnusable: when the file is there already or cannot be written.
    """
    keypair = Keypair.create_from_seed(secrets.token_bytes(32))
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as handle:
                handle.write(serialized_keypair_to_keyfile_data(keypair))
                handle.flush()
                os.fsync(handle.fileno())
            os.link(unfinished, path)  # unlike a rename, this never replaces an existing key
        finally:
            unfinished.unlink()
    except OSError as error:
        raise KeyfileUnusable(f"{path}: {error.strerror or error}") from error
    return _hotkey(keypair)


def verify_signature(message: bytes, signature: bytes, ss58: str) -> bool:
    """Whether signature is the hotkey's sr25519 signature of message; False for anything that is not a signature."""
    try:
        return bool(verify_sr25519(message, signature, ss58))
    except ValueError:  # no such address, or a signature of another length
        return False


def _hotkey(keypair: Keypair) -> Hotkey:
    return Hotkey(keypair.ss58_address, keypair)


def _parse_keyfile(path: Path, data: bytes) -> Keypair:
    if keyfile_data_is_encrypted(data):
        raise KeyfileUnusable(f"{path}: encrypted; a process that runs unattended needs a keyfile without a password")
    try:
        keypair = deserialize_keypair_from_keyfile_data(data.strip())
        keypair.sign(b"can it sign?")  # a keyfile may hold a public key alone
    except (KeyfileError, ValueError) as error:
        raise KeyfileUnusable(f"{path}: not an sr25519 hotkey that can sign: {error}") from error
    if keypair.crypto_type != CRYPTO_SR25519:
        raise KeyfileUnusable(f"{path}: not an sr25519 hotkey")
    return keypair
