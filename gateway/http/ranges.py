"""Single byte ranges of a file (RFC 9110 §14)."""

import re
from dataclasses import dataclass

from gateway.errors import RangeNotSatisfiable

_SINGLE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@dataclass(frozen=True)
class ByteRange:
    """Bytes start … start + length − 1 of size_bytes."""

    start: int
    length: int
    size_bytes: int

    @property
    def content_range(self) -> str:
        """The value of the Content-Range header."""
        return f"bytes {self.start}-{self.start + self.length - 1}/{self.size_bytes}"


def read_range(header: str | None, size_bytes: int) -> ByteRange | None:
    """The range that a Range header asks for; None means the whole file, which any other form of it gets.

    Raises:
        RangeNotSatisfiable: when no byte of the file lies in the range.
    """
    found = None if header is None else _SINGLE.fullmatch(header.replace(" ", ""))
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        start, end = max(0, size_bytes - int(found[2])), size_bytes - 1
    else:
        start, end = int(found[1]), min(int(found[2]) if found[2] else size_bytes, size_bytes - 1)
        if found[2] and int(found[2]) < start:
            return None
    if start > end:
        raise RangeNotSatisfiable(size_bytes)
    return ByteRange(start, end - start + 1, size_bytes)
