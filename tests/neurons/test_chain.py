"""Hotkeys: created private, loaded only when private, signatures checked without ever raising."""

import json
import os
import stat
from pathlib import Path

import pytest

from neurons.chain import KeyfileUnusable, create_hotkey, load_signer, verify_signature

SEED = "0x" + "11" * 32
SEED_ADDRESS = "5DtDLm5rQHShDqojQpsvcN8tRXHVFaecfDoRet1SU6BFD9Fi"


def _keyfile(tmp_path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path = tmp_path / "hotkey"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def test_a_created_hotkey_signs_and_is_loaded_again(tmp_path: Path) -> None:
    created = create_hotkey(tmp_path / "hotkey")
    loaded = load_signer(tmp_path / "hotkey")
    assert loaded.ss58_address == created.ss58_address
    assert verify_signature(b"message", loaded.sign(b"message"), created.ss58_address)


def test_a_created_hotkey_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    create_hotkey(tmp_path / "hotkey")
    assert stat.S_IMODE((tmp_path / "hotkey").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["hotkey"]


def test_an_existing_hotkey_is_never_replaced(tmp_path: Path) -> None:
    first = create_hotkey(tmp_path / "hotkey")
    with pytest.raises(KeyfileUnusable, match="exists"):
        create_hotkey(tmp_path / "hotkey")
    assert load_signer(tmp_path / "hotkey").ss58_address == first.ss58_address
    assert os.listdir(tmp_path) == ["hotkey"]


def test_a_seed_in_a_text_file_is_a_keyfile(tmp_path: Path) -> None:
    assert load_signer(_keyfile(tmp_path, SEED + "\n")).ss58_address == SEED_ADDRESS


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_keyfile_that_others_can_touch_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(KeyfileUnusable, match="readable by others"):
        load_signer(_keyfile(tmp_path, SEED, mode))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "0x1234",
        "garbage",
        b"\xff\xfe",
        "{}",
        "[]",
        json.dumps({"secretSeed": "0x01"}),
        json.dumps({"ss58Address": SEED_ADDRESS}),
        b"$NACL" + bytes(64),
    ],
)
def test_a_file_that_is_no_usable_keyfile_is_refused(tmp_path: Path, content: str | bytes) -> None:
    with pytest.raises(KeyfileUnusable):
        load_signer(_keyfile(tmp_path, content))


def test_a_missing_keyfile_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(KeyfileUnusable, match="nowhere: No such file"):
        load_signer(tmp_path / "nowhere")


def test_the_secret_is_not_in_the_text_of_a_hotkey(tmp_path: Path) -> None:
    assert "keypair" not in repr(load_signer(_keyfile(tmp_path, SEED)))


@pytest.mark.parametrize("ss58", ["", "5garbage", "\0", "\ud800", SEED_ADDRESS[:-1], SEED_ADDRESS])
@pytest.mark.parametrize("signature", [b"", b"1" * 63, b"1" * 64, b"\xff" * 65])
def test_garbage_is_not_a_signature(ss58: str, signature: bytes) -> None:
    assert verify_signature(b"message", signature, ss58) is False


def test_a_signature_holds_for_its_message_and_signer_alone(tmp_path: Path) -> None:
    signer = load_signer(_keyfile(tmp_path, SEED))
    other = create_hotkey(tmp_path / "other")
    signature = signer.sign(b"message")
    assert verify_signature(b"message", signature, SEED_ADDRESS)
    assert not verify_signature(b"massage", signature, SEED_ADDRESS)
    assert not verify_signature(b"message", signature, other.ss58_address)
