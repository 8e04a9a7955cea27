"""What became of claims that were not accepted, without naming who made them."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.states import SubmissionState
from gateway.db.schema import submissions


async def rejections_by_code(conn: AsyncConnection, order_id: str) -> dict[str, int]:
    """How many claims on an order's tasks were rejected or revoked, by reason code."""
    query = (
        select(submissions.c.code, func.count())
        .where(
            submissions.c.order_id == order_id,
            submissions.c.state.in_([SubmissionState.REJECTED, SubmissionState.REVOKED]),
            submissions.c.code.is_not(None),
        )
        .group_by(submissions.c.code)
        .order_by(submissions.c.code)
    )
    return {code: int(count) for code, count in await conn.execute(query)}
