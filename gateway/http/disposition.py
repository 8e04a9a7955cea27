"""Field and file names of a multipart part, as clients really write them.

A name may hold any Unicode and quotes. Browsers, curl and httpx write UTF-8 in a quoted string with the quote as %22
(WHATWG HTML, multipart/form-data encoding), older curl writes backslash escapes, others RFC 5987's filename*= or
RFC 2231's continuations filename*0=, filename*1*=.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

MAX_NAME_LENGTH = 255

_PARAMETER = re.compile(r""";\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;"]*)""")
_QUOTED_PAIR = re.compile(r'\\(["\\])')
# What the WHATWG rules escape: the quote and control characters; a "%" itself stays, so nothing else is decoded.
_FORM_ESCAPE = re.compile(r"%(22|[01][0-9A-Fa-f])")
_CONTINUATION = re.compile(r"filename\*(\d+)(\*?)")


class BadName(ValueError):
    """The part's name or file name cannot be read."""


@dataclass(frozen=True)
class PartNames:
    """A part's field name, and its file name when it is a file (perhaps empty)."""

    field: str
    filename: str | None


def parse_disposition(header: str) -> PartNames:
    """The names in a Content-Disposition header of multipart/form-data.

    Raises:
        BadName: when there is no field name, the text is not Unicode, or the file name is too long.
    """
    kind, _, rest = header.partition(";")
    if kind.strip().lower() != "form-data":
        raise BadName("every part needs Content-Disposition: form-data")
    parameters = {name.lower(): value.strip() for name, value in _PARAMETER.findall(";" + rest)}
    if "name" not in parameters:
        raise BadName("every part needs a name")
    return PartNames(_checked(_plain(parameters["name"])), _filename(parameters))


def _filename(parameters: dict[str, str]) -> str | None:
    if "filename*" in parameters:
        return _checked(_extended(parameters["filename*"]))
    if "filename" in parameters:
        return _checked(_plain(parameters["filename"]))
    pieces = {int(m[1]): (m[2], value) for key, value in parameters.items() if (m := _CONTINUATION.fullmatch(key))}
    if not pieces:
        return None
    if sorted(pieces) != list(range(len(pieces))):
        raise BadName("the file name is incomplete")
    return _checked(_continued([pieces[number] for number in range(len(pieces))]))


def _plain(value: str) -> str:
    """A token or quoted string."""
    if value.startswith('"'):
        value = _QUOTED_PAIR.sub(r"\1", value[1:-1])
    return _FORM_ESCAPE.sub(lambda match: chr(int(match[1], 16)), value)


def _extended(value: str) -> str:
    """RFC 5987: charset'language'percent-encoded."""
    charset, separator, encoded = value.partition("'")
    _, second_separator, encoded = encoded.partition("'")
    if not separator or not second_separator:
        raise BadName("a file name in extended form needs its character set")
    return _decode(unquote_to_bytes(encoded), charset)


def _continued(pieces: list[tuple[str, str]]) -> str:
    """RFC 2231: pieces in order, those marked with a star percent-encoded, the first naming the character set."""
    first_star, first = pieces[0]
    charset = ""
    if first_star:
        charset, _, rest = first.partition("'")
        pieces = [(first_star, rest.partition("'")[2]), *pieces[1:]]
    return _decode(
        b"".join(unquote_to_bytes(value) if star else _plain(value).encode() for star, value in pieces), charset
    )


def _decode(data: bytes, charset: str) -> str:
    if charset.lower() not in ("", "utf-8", "us-ascii", "iso-8859-1"):
        raise BadName(f"file names in the character set {charset!r} are not read")
    try:
        return data.decode(charset or "utf-8")
    except UnicodeDecodeError as error:
        raise BadName("the file name does not fit its character set") from error


def _checked(name: str) -> str:
    if "\0" in name:
        raise BadName("a name may not hold a NUL character")
    if len(name) > MAX_NAME_LENGTH:
        raise BadName(f"a name has at most {MAX_NAME_LENGTH} characters")
    return name
