"""Upload forms, as real clients and careless ones write them."""

from collections.abc import AsyncIterator

import pytest

from gateway.errors import InvalidRequest
from gateway.http.disposition import BadName, PartNames, parse_disposition
from gateway.http.multipart import FormReader, boundary_of


async def _in_pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def _read(body: bytes, size: int = 7) -> list[tuple[str, bytes]]:
    parts = FormReader(_in_pieces(body, size), b"xyz").parts()
    return [(part.names.field, b"".join([chunk async for chunk in part.content])) async for part in parts]


FORM = (
    b'--xyz\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--xyz\r\nContent-Type: text/plain\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    b"one\r\n--xy\r\n\r\ntwo\n\r\n--xyz--"
)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000])
async def test_a_form_reads_the_same_however_it_is_cut_into_chunks(size: int) -> None:
    assert await _read(FORM, size) == [("purpose", b"batch"), ("file", b"one\r\n--xy\r\n\r\ntwo\n")]


async def test_a_preamble_an_epilogue_and_an_empty_part_are_fine() -> None:
    body = b"hello\r\n--xyz  \r\ncontent-disposition:form-data;name=file\r\n\r\n\r\n--xyz--\r\nbye"
    assert await _read(body) == [("file", b"")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no boundary at all",
        FORM[:40],
        FORM[:-9],
        FORM[:-1],
        b"--xyz junk\r\n\r\n--xyz--",
        b"--xyz\r\n\r\nno name\r\n--xyz--",
        b'--xyz\r\nContent-Disposition: attachment; name="a"\r\n\r\n\r\n--xyz--',
        b'--xyz\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n\r\n--xyz--',
        b"--xyz\r\nX: " + b"a" * 20_000 + b"\r\n\r\n\r\n--xyz--",
        b"--xyz\r\n" + b"X: y\r\n" * 5000 + b"\r\n\r\n--xyz--",
    ],
)
async def test_a_broken_form_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await _read(body, 4096)
    assert refused.value.code == "invalid_multipart"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "application/json",
        "multipart/form-data",
        "multipart/mixed; boundary=a",
        f"multipart/form-data; boundary={'a' * 71}",
    ],
)
def test_a_body_that_is_no_form_has_no_boundary(header: str) -> None:
    with pytest.raises(InvalidRequest):
        boundary_of(header)


def test_a_boundary_may_be_quoted() -> None:
    assert boundary_of('multipart/form-data; charset=utf-8; Boundary="a b"') == b"a b"


@pytest.mark.parametrize(
    ("parameters", "filename"),
    [
        ("", None),
        ('; filename=""', ""),
        ("; filename=plain.jsonl", "plain.jsonl"),
        ('; filename="строки.jsonl"', "строки.jsonl"),
        ('; filename="a;b; c=d.jsonl"', "a;b; c=d.jsonl"),
        ('; filename="say %22hi%22.jsonl"', 'say "hi".jsonl'),
        (r'; filename="say \"hi\".jsonl"', 'say "hi".jsonl'),
        (r'; filename="C:\\dir\\a.jsonl"', r"C:\dir\a.jsonl"),
        ('; filename="100%25 %41.jsonl"', "100%25 %41.jsonl"),
        ('; filename="two%0D%0Alines"', "two\r\nlines"),
        ('; filename="/etc/passwd"', "/etc/passwd"),
        ("; filename=x; filename*=UTF-8''na%C3%AFve%20%22q%22.jsonl", 'naïve "q".jsonl'),
        ("; filename*=iso-8859-1'en'%A3.jsonl", "£.jsonl"),
        ('; filename*0="first "; filename*1="second"', "first second"),
        ("; filename*1*=%81%82; filename*0*=utf-8''%E3", "あ"),
    ],
)
def test_a_file_name_is_read_as_it_was_meant(parameters: str, filename: str | None) -> None:
    assert parse_disposition(f'form-data; name="f"{parameters}') == PartNames("f", filename)


@pytest.mark.parametrize(
    "header",
    [
        "form-data",
        'form-data; name="a%00b"',
        f'form-data; name="f"; filename="{"x" * 256}"',
        'form-data; name="f"; filename*=plain',
        "form-data; name=\"f\"; filename*=utf-8''%FF",
        "form-data; name=\"f\"; filename*=utf-16''%41%00",
        'form-data; name="f"; filename*1=b',
    ],
)
def test_a_name_that_cannot_be_read_is_refused(header: str) -> None:
    with pytest.raises(BadName):
        parse_disposition(header)


def test_a_file_name_may_have_255_characters_of_any_kind() -> None:
    assert parse_disposition(f'form-data; name="f"; filename="{"😀" * 255}"').filename == "😀" * 255
