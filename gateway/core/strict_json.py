"""JSON from strangers: one meaning or none, whatever the bytes, in bounded time."""

import json
import math
import re
from typing import Any, NoReturn

MAX_NESTING = 64
MAX_INTEGER_DIGITS = 20
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class NotStrictJson(ValueError):
    """The text is not JSON, or is JSON whose meaning depends on who reads it."""


def _integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise NotStrictJson(f"an integer of {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise NotStrictJson(f"{text[:20]} is no finite number")
    return value


def _constant(text: str) -> NoReturn:
    raise NotStrictJson(f"{text} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise NotStrictJson("a key stands twice in one object")
    return made


_DECODER = json.JSONDecoder(
    parse_int=_integer, parse_float=_number, parse_constant=_constant, object_pairs_hook=_object
)


def parse(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        NotStrictJson: bad syntax, NaN or infinities (1e999 too), absurdly long integers, a key twice in one object,
            or containers nested deeper than MAX_NESTING.
    """
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise NotStrictJson("nested too deep") from error
    except json.JSONDecodeError as error:
        raise NotStrictJson(str(error)) from error
    if _nests_too_deep(value):
        raise NotStrictJson(f"nested deeper than {MAX_NESTING}")
    return value


def _nests_too_deep(value: Any) -> bool:
    """Level by level, so that the check itself does not recurse."""
    level = [value]
    for _ in range(MAX_NESTING):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return False
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    return any(isinstance(item, dict | list) for item in level)


def holds_lone_surrogate(text: str, value: Any) -> bool:
    """Whether a string of value, parsed from text, holds half a surrogate pair: no encoding of Unicode has it."""
    if _SURROGATE_ESCAPE.search(text) is None:  # the usual case, without building anything
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
