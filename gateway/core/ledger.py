"""Rules of the ledger: double entry, append-only, integer micro-USD."""

from dataclasses import dataclass

WORLD = "world"
REVENUE = "revenue"


def available(account_id: str) -> str:
    """The ledger account of what a customer can spend."""
    return f"available:{account_id}"


def held(account_id: str) -> str:
    """The ledger account of what a customer's open orders hold."""
    return f"held:{account_id}"


@dataclass(frozen=True)
class Entry:
    """One side of a transfer: amount_micro is added to the ledger account."""

    ledger_account: str
    amount_micro: int


def deposit_entries(account_id: str, amount_micro: int) -> tuple[Entry, ...]:
    """Money comes in."""
    _require_amount(amount_micro)
    return Entry(WORLD, -amount_micro), Entry(available(account_id), amount_micro)


def hold_entries(account_id: str, amount_micro: int) -> tuple[Entry, ...]:
    """An order reserves its worst case."""
    _require_amount(amount_micro)
    return Entry(available(account_id), -amount_micro), Entry(held(account_id), amount_micro)


def settle_entries(account_id: str, held_micro: int, capture_micro: int) -> tuple[Entry, ...]:
    """A hold ends: what was verified is earned, the rest goes back; zero amounts make no entry.

    Raises:
        ValueError: when more would be captured than is held.
    """
    _require_amount(capture_micro)
    if capture_micro > held_micro:
        raise ValueError(f"cannot capture {capture_micro} of a hold of {held_micro} micro-USD")
    entries = (
        Entry(held(account_id), -held_micro),
        Entry(REVENUE, capture_micro),
        Entry(available(account_id), held_micro - capture_micro),
    )
    return tuple(entry for entry in entries if entry.amount_micro)


def _require_amount(amount_micro: int) -> None:
    if amount_micro < 0:
        raise ValueError("amounts are not negative")
