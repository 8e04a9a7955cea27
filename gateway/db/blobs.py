"""Bytes in an object store: a local folder by default, S3 and others by URL."""

import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, MemoryStore, from_url

from gateway.errors import Unavailable

CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class StoredBlob:
    """What was written: its length and SHA-256."""

    bytes: int
    sha256: str


@contextmanager
def _named_failures() -> Iterator[None]:
    """A store that refuses is a dependency that does not answer; a missing blob stays a FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except BaseError as error:
        raise _unavailable() from error


def _unavailable() -> Unavailable:
    return Unavailable("batch_unavailable", "the file store does not answer; retry shortly")


class Blobs:
    """Keys are chosen by us, never by a customer. A key appears whole or not at all, and may be written again.

    Every method raises Unavailable (batch_unavailable) when the store refuses.
    """

    def __init__(self, url: str) -> None:
        """Open the store.

        Args:
            url: a folder's path (made if missing), memory:// for tests, or any URL that obstore knows.
        """
        if url == "memory://":
            self._store: LocalStore | MemoryStore = MemoryStore()
        elif "://" in url:
            self._store = from_url(url)  # type: ignore[assignment]
        else:
            self._store = LocalStore(prefix=Path(url), mkdir=True)

    async def put_stream(self, key: str, content: AsyncIterator[bytes]) -> StoredBlob:
        """Write bytes as they come; an exception from content leaves no blob behind."""
        hasher, total = hashlib.sha256(), 0
        with _named_failures():
            async with obstore.open_writer_async(self._store, key, buffer_size=8 * CHUNK_BYTES) as writer:
                async for chunk in content:
                    hasher.update(chunk)
                    total += len(chunk)
                    await writer.write(chunk)
        return StoredBlob(total, hasher.hexdigest())

    async def put(self, key: str, data: bytes) -> StoredBlob:
        """Write a small blob."""
        with _named_failures():
            await obstore.put_async(self._store, key, data)
        return StoredBlob(len(data), hashlib.sha256(data).hexdigest())

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Some bytes of a blob; FileNotFoundError without one."""
        if length == 0:
            return b""
        with _named_failures():
            data = bytes(await obstore.get_range_async(self._store, key, start=start, length=length))
        if len(data) != length:  # a store may clip what lies beyond a blob's end
            raise _unavailable()
        return data

    async def get_ranges(self, key: str, starts: list[int], lengths: list[int]) -> list[bytes]:
        """Several ranges of one blob, near ones fetched together."""
        if not starts:
            return []
        with _named_failures():
            found = await obstore.get_ranges_async(self._store, key, starts=starts, lengths=lengths)
        return [bytes(part) for part in found]

    async def stream(self, key: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """A blob's bytes, or a range of them, in chunks."""
        end = await self.size(key) if length is None else start + length
        while start < end:
            step = min(CHUNK_BYTES, end - start)
            yield await self.get_range(key, start, step)
            start += step

    async def size(self, key: str) -> int:
        """A blob's length in bytes; FileNotFoundError without one."""
        with _named_failures():
            return int((await obstore.head_async(self._store, key))["size"])

    async def delete(self, key: str) -> None:
        """Remove a blob; removing what is not there is fine."""
        try:
            with _named_failures():
                await obstore.delete_async(self._store, key)
        except FileNotFoundError:
            return
