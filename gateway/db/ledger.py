"""Transfers and their entries: money, in the same transaction as the state that justifies it."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.ledger import Entry, available, deposit_entries, held, hold_entries, settle_entries
from gateway.core.states import TRANSFER, TransferState
from gateway.db.schema import accounts, entries, transfers
from gateway.db.transitions import create, transition


class InsufficientBalance(Exception):
    """The account's available balance is below the amount."""

    def __init__(self, available_micro: int, amount_micro: int) -> None:
        super().__init__(f"{available_micro} micro-USD available, {amount_micro} needed")
        self.available_micro = available_micro
        self.amount_micro = amount_micro


@dataclass(frozen=True)
class Balance:
    """What an account can spend and what its open orders hold."""

    available_micro: int
    held_micro: int


async def balance(conn: AsyncConnection, account_id: str) -> Balance:
    """The sums of the account's entries."""
    names = (available(account_id), held(account_id))
    query = (
        select(entries.c.ledger_account, func.sum(entries.c.amount_micro))
        .where(entries.c.ledger_account.in_(names))
        .group_by(entries.c.ledger_account)
    )
    sums = {name: int(total) for name, total in await conn.execute(query)}
    return Balance(sums.get(names[0], 0), sums.get(names[1], 0))


async def deposit(conn: AsyncConnection, account_id: str, amount_micro: int, now: int) -> None:
    """Credit an account."""
    transfer_id = await _begin(conn, account_id, "deposit", None, amount_micro, now)
    await _append(conn, transfer_id, deposit_entries(account_id, amount_micro), now)
    values = {"posted_micro": amount_micro}
    await transition(
        conn, TRANSFER, transfer_id, from_state=TransferState.PENDING, event="post", now=now, values=values
    )


async def hold(conn: AsyncConnection, account_id: str, order_id: str, amount_micro: int, now: int) -> None:
    """Reserve an order's price; holds of one account are taken one after another.

    Raises:
        InsufficientBalance: see there; nothing is written.
    """
    # SQLite has a single writer anyway; on PostgreSQL the account's row is the lock.
    await conn.execute(select(accounts.c.id).where(accounts.c.id == account_id).with_for_update())
    found = await balance(conn, account_id)
    if found.available_micro < amount_micro:
        raise InsufficientBalance(found.available_micro, amount_micro)
    transfer_id = await _begin(conn, account_id, "hold", order_id, amount_micro, now)
    await _append(conn, transfer_id, hold_entries(account_id, amount_micro), now)


async def settle(conn: AsyncConnection, order_id: str, capture_micro: int, now: int) -> int:
    """End an order's hold: capture that much, release the rest; returns what was released, in micro-USD.

    Raises:
        StateConflict: the hold has ended already.
        LookupError: the order has no hold.
    """
    row = (await conn.execute(select(transfers).where(transfers.c.order_id == order_id))).first()
    if row is None:
        raise LookupError(f"order {order_id} has no hold")
    await transition(
        conn,
        TRANSFER,
        row.id,
        from_state=TransferState.PENDING,
        event="post" if capture_micro else "void",
        now=now,
        values={"posted_micro": capture_micro},
    )
    await _append(conn, row.id, settle_entries(row.account_id, row.amount_micro, capture_micro), now)
    return int(row.amount_micro) - capture_micro


async def _begin(
    conn: AsyncConnection, account_id: str, kind: str, order_id: str | None, amount_micro: int, now: int
) -> str:
    transfer_id = secrets.token_hex(12)
    row = {
        "id": transfer_id,
        "kind": kind,
        "account_id": account_id,
        "order_id": order_id,
        "amount_micro": amount_micro,
        "created_at": now,
    }
    await create(conn, TRANSFER, [row], now)
    return transfer_id


async def _append(conn: AsyncConnection, transfer_id: str, new: Sequence[Entry], now: int) -> None:
    rows = [
        {"transfer_id": transfer_id, "ledger_account": e.ledger_account, "amount_micro": e.amount_micro, "at": now}
        for e in new
    ]
    if rows:
        await conn.execute(insert(entries), rows)
