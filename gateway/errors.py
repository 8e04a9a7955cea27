"""Why the gateway says no, in terms that know nothing of HTTP.

An operation raises a Refusal; gateway/http/errors.py is the one place that gives it a status and OpenAI's shape.
The class says what kind of no it is, the code which one exactly (the specification's codes), and the retry hint
whether trying the same again can help.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Retry(StrEnum):
    """What a client that retries by itself should do."""

    AUTOMATIC = "automatic"
    POINTLESS = "pointless"


@dataclass(frozen=True)
class RetryHint:
    """Whether the same request may succeed later.

    Attributes:
        kind: whether a client should try again by itself.
        after_seconds: when; None where nobody can know.
    """

    kind: Retry
    after_seconds: int | None = None


NEVER = RetryHint(Retry.POINTLESS)


def retry_after(seconds: int) -> RetryHint:
    """The same request may succeed after this many seconds."""
    return RetryHint(Retry.AUTOMATIC, seconds)


def pointless_before(seconds: int) -> RetryHint:
    """Nothing changes for so many seconds that a client should not wait for it by itself."""
    return RetryHint(Retry.POINTLESS, seconds)


class Refusal(Exception):
    """A request that is not carried out, with its reason.

    Attributes:
        code: stable machine-readable reason, as the specification names it.
        message: one sentence for a person; never holds another account's data.
        param: the field of the request that is at fault, if one is.
        retry: whether the same request can succeed later; None leaves it to the client.
    """

    default_retry: ClassVar[RetryHint | None] = None

    def __init__(self, code: str, message: str, *, param: str | None = None, retry: RetryHint | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.param = param
        self.retry = retry if retry is not None else self.default_retry


class InvalidRequest(Refusal):
    """The request is malformed or a field is out of range."""


class Unauthorized(Refusal):
    """The caller did not say who it is, or not credibly."""


class PaymentRequired(Refusal):
    """The balance, or the ceiling that the customer set, does not cover the price."""


class Forbidden(Refusal):
    """The caller is known and may not do this."""


class NotFound(Refusal):
    """There is no such thing, or it belongs to somebody else (the two look the same on purpose)."""


class Conflict(Refusal):
    """The request does not fit the present state of what it names."""

    default_retry = NEVER


class LengthRequired(Refusal):
    """The request must say how long its body is."""


class TooLarge(Refusal):
    """The body is over the limit."""


class RangeNotSatisfiable(Refusal):
    """The byte range lies outside the file.

    Attributes:
        size_bytes: how long the file is.
    """

    def __init__(self, size_bytes: int) -> None:
        super().__init__("range_not_satisfiable", f"the range lies outside the file's {size_bytes} bytes")
        self.size_bytes = size_bytes


class Unprocessable(Refusal):
    """The request is well formed, but what it refers to cannot be used."""


class LimitReached(Refusal):
    """A limit on how much one caller may have open or ask for; lasting ones are marked never by the raiser."""


class Unavailable(Refusal):
    """Something that the gateway depends on does not answer now."""

    default_retry = retry_after(10)


class DatabaseBusy(Unavailable):
    """Others hold what the request needs; nothing was written."""

    default_retry = retry_after(2)
