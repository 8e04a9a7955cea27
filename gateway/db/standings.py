"""How each miner stands: its state and what became of its submissions."""

from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.schema import miners, submissions


@dataclass(frozen=True)
class MinerStanding:
    """One miner.

    Attributes:
        suspended_until: Unix seconds; None unless suspended.
        suspension_code: the reason code of the suspension; None unless suspended.
        submissions: how many of its submissions are in each state, states without any left out.
    """

    hotkey: str
    state: str
    suspended_until: int | None
    suspension_code: str | None
    submissions: dict[str, int] = field(default_factory=dict)


async def miner_standings(conn: AsyncConnection) -> list[MinerStanding]:
    """Every miner that was ever seen, by hotkey."""
    known = select(miners.c.hotkey, miners.c.state, miners.c.suspended_until, miners.c.suspension_code)
    standings = {row.hotkey: MinerStanding(*row) for row in await conn.execute(known.order_by(miners.c.hotkey))}
    counts = select(submissions.c.miner, submissions.c.state, func.count()).group_by(
        submissions.c.miner, submissions.c.state
    )
    for miner, state, count in await conn.execute(counts):
        if miner in standings:
            standings[miner].submissions[state] = count
    return list(standings.values())
