"""Rows of miners: who has been seen and who is suspended."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.states import MINER, MinerState
from gateway.db.schema import miners
from gateway.db.transitions import create, transition_many


@dataclass(frozen=True)
class MinerRecord:
    """One miner; the columns of the table."""

    hotkey: str
    state: str
    first_seen_at: int
    suspended_until: int | None
    suspension_code: str | None


async def lock_miner(conn: AsyncConnection, hotkey: str, now: int) -> MinerRecord:
    """A miner, noted on its first contact, its row locked until the transaction ends.

    Whatever gives a miner work, takes a claim of it or suspends it holds this lock, and takes it before any order's.
    """
    query = select(miners).where(miners.c.hotkey == hotkey).with_for_update()
    row = (await conn.execute(query)).mappings().first()
    if row is None:
        with contextlib.suppress(IntegrityError):  # its first contacts may come at once
            async with conn.begin_nested():
                await create(conn, MINER, [{"hotkey": hotkey, "first_seen_at": now}], now)
        row = (await conn.execute(query)).mappings().one()
    return MinerRecord(**row)


async def reinstate_due(conn: AsyncConnection, now: int) -> Sequence[str]:
    """Take back every miner whose suspension is over; their hotkeys."""
    query = select(miners.c.hotkey).where(miners.c.state == MinerState.SUSPENDED, miners.c.suspended_until <= now)
    hotkeys = list((await conn.execute(query.with_for_update(skip_locked=True))).scalars())
    values = {"suspended_until": None, "suspension_code": None}
    await transition_many(
        conn, MINER, hotkeys, from_state=MinerState.SUSPENDED, event="reinstate", now=now, values=values
    )
    return hotkeys
