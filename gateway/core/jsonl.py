"""The rules of a batch file: bytes → lines → requests or refusals. One line in, exactly one outcome out."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gateway.core import strict_json
from gateway.core.line_fields import (
    CHAT_URL,
    COMPLETIONS_URL,
    FieldRefused,
    ParsedBody,
    parse_body,
)

MAX_LINES = 50_000
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_CUSTOM_ID = 64
ENVELOPE = {"custom_id": str, "method": str, "url": str, "body": dict}
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class RawLine:
    """A physical line without its ending; number counts from 1, blank lines included.

    data is None for a line over MAX_LINE_BYTES, whose bytes were not kept.
    """

    number: int
    data: bytes | None


@dataclass(frozen=True)
class ParsedLine:
    """A usable line, as far as that can be told without the model."""

    line_number: int
    custom_id: str
    url: str
    body: ParsedBody


@dataclass(frozen=True)
class LineRefusal:
    """A line that will not run, with its reason; custom_id is None where it could not be read."""

    line_number: int
    custom_id: str | None
    code: str
    message: str


class LineSplitter:
    """Splits a stream of bytes at LF; holds at most one line."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._number = 0

    def feed(self, chunk: bytes) -> Iterator[RawLine]:
        """The non-blank lines that end in this chunk."""
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            self._keep(part)
            yield from self._end()
        self._keep(rest)

    def finish(self) -> Iterator[RawLine]:
        """The last line, if it has no LF."""
        if self._size:
            yield from self._end()

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= MAX_LINE_BYTES:
            self._parts.append(part)
        else:
            self._parts.clear()

    def _end(self) -> Iterator[RawLine]:
        self._number += 1
        data = b"".join(self._parts) if self._size <= MAX_LINE_BYTES else None
        self._parts.clear()
        self._size = 0
        if data is not None:
            data = (data.removeprefix(_BOM) if self._number == 1 else data).removesuffix(b"\r")
            if not data.strip():
                return
        yield RawLine(self._number, data)


def read_lines(chunks: Iterable[bytes]) -> Iterator[RawLine]:
    """The non-blank lines of a file."""
    splitter = LineSplitter()
    for chunk in chunks:
        yield from splitter.feed(chunk)
    yield from splitter.finish()


def _read_object(data: bytes) -> tuple[str, dict[str, Any]]:
    try:
        text = data.decode()
        value = strict_json.parse(text)
    except (UnicodeDecodeError, strict_json.NotStrictJson) as error:
        raise FieldRefused("invalid_json", f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise FieldRefused("invalid_json", "a line must be one JSON object")
    return text, value


def _readable_custom_id(line: dict[str, Any]) -> str | None:
    """The custom_id as far as it can be echoed, also for a line that is refused for something else."""
    value = line.get("custom_id")
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_CUSTOM_ID:
        return None
    # UTF-8 has no lone surrogates, which JSON's escapes can smuggle in.
    return value if value == value.encode(errors="replace").decode() else None


def _check_envelope(line: dict[str, Any]) -> None:
    for key, kind in ENVELOPE.items():
        if key not in line:
            raise FieldRefused("invalid_line", f"the key {key} is missing")
        if not isinstance(line[key], kind):
            raise FieldRefused("invalid_line", f"{key} must be {'an object' if kind is dict else 'a text'}")
    for key in line:
        if key not in ENVELOPE:
            raise FieldRefused("invalid_line", f"the key {key[:64]} is not known")
    if not 1 <= len(line["custom_id"]) <= MAX_CUSTOM_ID:
        raise FieldRefused("invalid_custom_id", f"custom_id has 1 to {MAX_CUSTOM_ID} characters")
    if line["method"] != "POST":
        raise FieldRefused("invalid_method", "method must be POST")
    if line["url"] not in (CHAT_URL, COMPLETIONS_URL):
        raise FieldRefused("invalid_url", f"url must be {CHAT_URL} or {COMPLETIONS_URL}")


def parse_line(raw: RawLine) -> ParsedLine | LineRefusal:
    """The outcome of one line; never raises, whatever the bytes."""
    custom_id = None
    try:
        if raw.data is None:
            raise FieldRefused("invalid_line", f"the line is longer than {MAX_LINE_BYTES} bytes")
        text, line = _read_object(raw.data)
        custom_id = _readable_custom_id(line)
        if strict_json.holds_lone_surrogate(text, line):
            raise FieldRefused("invalid_text", "a text holds a lone surrogate")
        _check_envelope(line)
        return ParsedLine(raw.number, line["custom_id"], line["url"], parse_body(line["url"], line["body"]))
    except FieldRefused as refused:
        return LineRefusal(raw.number, custom_id, refused.code, refused.message)


class _Numbered(Protocol):
    """An outcome of a line, whatever else is known of it."""

    @property
    def line_number(self) -> int: ...

    @property
    def custom_id(self) -> str | None: ...


Outcome = TypeVar("Outcome", bound=_Numbered)


class DuplicateCheck:
    """Refuses a custom_id that stood before; the first line with it is kept, refused or not."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def check(self, outcome: Outcome) -> Outcome | LineRefusal:
        """The outcome, or its refusal as a duplicate."""
        if outcome.custom_id is None:
            return outcome
        first = self._seen.setdefault(outcome.custom_id, outcome.line_number)
        if first == outcome.line_number:
            return outcome
        message = f"custom_id is that of line {first} already"
        return LineRefusal(outcome.line_number, outcome.custom_id, "duplicate_custom_id", message)
