"""Many large uploads at once: the gateway's memory does not grow with them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from network import running
from specification import row

from neurons.localnet import Plan

pytestmark = pytest.mark.acceptance
MIB = 1024 * 1024
SIZE_BYTES = 32 * MIB
UPLOADS = 8
CHUNK = b"x" * 65_536


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had at once (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = (each for each in status.splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


async def slowly(head: bytes, tail: bytes) -> AsyncIterator[bytes]:
    """A form around a file of the largest size."""
    yield head
    for _ in range(SIZE_BYTES // len(CHUNK)):
        yield CHUNK
        await asyncio.sleep(0)
    yield tail


@row("Cases: faults", "8 uploads of the largest size at once")
async def test_eight_uploads_of_the_largest_size_at_once_take_bounded_memory(tmp_path: Path) -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
    head += b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    tail = b"\r\n--x--\r\n"
    async with running(Plan(0, tmp_path, miners=0, validators=0)) as network:
        headers = {
            "Authorization": f"Bearer {network.description.api_key}",
            "Content-Type": "multipart/form-data; boundary=x",
            "Content-Length": str(len(head) + SIZE_BYTES + len(tail)),
        }

        async def upload(session: aiohttp.ClientSession) -> int:
            url = f"{network.description.base_url}/files"
            async with session.post(url, data=slowly(head, tail), headers=headers) as answer:
                return int((await answer.json())["bytes"])

        pid = network.pid("gateway")
        assert pid is not None
        before = peak_bytes(pid)
        async with aiohttp.ClientSession() as session:
            sizes = await asyncio.gather(*(upload(session) for _ in range(UPLOADS)))
        grown = peak_bytes(pid) - before
    assert sizes == [SIZE_BYTES] * UPLOADS
    # Of 256 MiB on their way, a buffer of 8 MiB for each upload and its next chunks are in memory.
    assert grown < UPLOADS * 16 * MIB
