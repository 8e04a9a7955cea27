"""multipart/form-data read as a stream (RFC 7578), part by part and never whole.

aiohttp has a reader of its own; it splits file names at semicolons, strips leading slashes from them and reports a
malformed body by half a dozen unrelated exceptions, so the small grammar is written out here.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from gateway.errors import InvalidRequest
from gateway.http.disposition import BadName, PartNames, parse_disposition

MAX_HEADER_BYTES = 16 * 1024
MAX_BOUNDARY_LENGTH = 70  # RFC 2046 §5.1.1

_BOUNDARY = re.compile(r'boundary=(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """One part of a form; its content must be read to the end before the next part is asked for."""

    names: PartNames
    content: AsyncIterator[bytes]


def malformed(reason: str) -> InvalidRequest:
    """The refusal of a body that is not the form it should be."""
    return InvalidRequest("invalid_multipart", reason)


def boundary_of(content_type: str) -> bytes:
    """The boundary that a Content-Type header names.

    Raises:
        InvalidRequest: when it is not multipart/form-data with a boundary.
    """
    found = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith("multipart/form-data") or found is None:
        raise malformed("send the file as multipart/form-data with a boundary")
    boundary = found[1] or found[2]
    if len(boundary) > MAX_BOUNDARY_LENGTH or not boundary.isascii():
        raise malformed(f"a boundary has at most {MAX_BOUNDARY_LENGTH} ASCII characters")
    return boundary.encode()


class FormReader:
    """Reads a form from chunks of bytes, holding no more than a chunk and a boundary in memory."""

    def __init__(self, chunks: AsyncIterator[bytes], boundary: bytes) -> None:
        self._chunks = chunks
        self._delimiter = b"\r\n--" + boundary
        # The first boundary may start the body; with this it looks like every other one.
        self._buffer = bytearray(b"\r\n")

    async def parts(self) -> AsyncIterator[Part]:
        """The parts in the order they come.

        Raises:
            InvalidRequest: invalid_multipart when the body breaks off or does not follow the grammar.
        """
        async for _ in self._until_delimiter():
            pass  # a preamble is allowed and means nothing
        while await self._another_part():
            try:
                names = parse_disposition(await self._disposition())
            except BadName as error:
                raise malformed(str(error)) from error
            yield Part(names, self._until_delimiter())

    async def _fill(self) -> None:
        try:
            self._buffer += await anext(self._chunks)
        except StopAsyncIteration as error:
            raise malformed("the form breaks off") from error

    async def _until_delimiter(self) -> AsyncIterator[bytes]:
        """Bytes up to the next delimiter, which is dropped."""
        keep = len(self._delimiter) - 1
        while (end := self._buffer.find(self._delimiter)) < 0:
            if len(self._buffer) > keep:
                yield bytes(self._buffer[:-keep])
                del self._buffer[:-keep]
            await self._fill()
        if end:
            yield bytes(self._buffer[:end])
        del self._buffer[: end + len(self._delimiter)]

    async def _another_part(self) -> bool:
        """Whether a part follows the delimiter just read; the end of the delimiter's line is dropped."""
        while len(self._buffer) < 2:
            await self._fill()
        if self._buffer.startswith(b"--"):
            return False
        if (await self._line()).strip(b" \t"):
            raise malformed("a boundary is followed by something else")
        return True

    async def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > MAX_HEADER_BYTES:
                raise malformed("a part's header is too long")
            await self._fill()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    async def _disposition(self) -> str:
        """Read a part's headers and return its Content-Disposition; the others mean nothing here."""
        disposition = ""
        total = 0
        while line := await self._line():
            total += len(line)
            if total > MAX_HEADER_BYTES:
                raise malformed("a part's header is too long")
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-disposition":
                try:
                    disposition = value.decode()
                except UnicodeDecodeError as error:
                    raise malformed("a part's name is not UTF-8 text") from error
        return disposition
