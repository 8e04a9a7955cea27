"""Rows of miners: who has been seen and who is suspended."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
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


async def find_miner(conn: AsyncConnection, hotkey: str) -> MinerRecord | None:
    """A miner that has been seen before."""
    query = select(miners).where(miners.c.hotkey == hotkey)
    row = (await conn.execute(query)).mappings().first()
    return None if row is None else MinerRecord(**row)


async def insert_miner(conn: AsyncConnection, hotkey: str, now: int) -> None:
    """Note a miner on its first contact."""
    await create(conn, MINER, [{"hotkey": hotkey, "first_seen_at": now}], now)


async def reinstate_due(conn: AsyncConnection, now: int) -> Sequence[str]:
    """Take back every miner whose suspension is over; their hotkeys."""
    query = select(miners.c.hotkey).where(miners.c.state == MinerState.SUSPENDED, miners.c.suspended_until <= now)
    hotkeys = list((await conn.execute(query.with_for_update(skip_locked=True))).scalars())
    values = {"suspended_until": None, "suspension_code": None}
    await transition_many(
        conn, MINER, hotkeys, from_state=MinerState.SUSPENDED, event="reinstate", now=now, values=values
    )
    return hotkeys
