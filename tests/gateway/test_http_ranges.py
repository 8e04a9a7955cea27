"""Byte ranges of a file of 10 bytes."""

import pytest

from gateway.errors import RangeNotSatisfiable
from gateway.http.ranges import read_range


@pytest.mark.parametrize(
    ("header", "content_range"),
    [
        ("bytes=0-0", "bytes 0-0/10"),
        ("bytes=3-5", "bytes 3-5/10"),
        ("bytes=7-", "bytes 7-9/10"),
        ("bytes=8-100", "bytes 8-9/10"),
        ("bytes=-4", "bytes 6-9/10"),
        ("bytes=-100", "bytes 0-9/10"),
    ],
)
def test_a_single_range_is_served(header: str, content_range: str) -> None:
    found = read_range(header, 10)
    assert found is not None
    assert found.content_range == content_range


@pytest.mark.parametrize(
    "header", [None, "", "bytes=", "bytes=-", "bytes=5-3", "bytes=0-1,4-5", "lines=1-2", "bytes=a-b"]
)
def test_anything_else_gets_the_whole_file(header: str | None) -> None:
    assert read_range(header, 10) is None


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=10-", 10), ("bytes=99-100", 10), ("bytes=-0", 10), ("bytes=0-", 0)]
)
def test_a_range_outside_the_file_is_refused_with_its_size(header: str, size: int) -> None:
    with pytest.raises(RangeNotSatisfiable) as refused:
        read_range(header, size)
    assert refused.value.size_bytes == size
