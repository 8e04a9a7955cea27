"""Suspending a miner: what it holds goes back, and nothing of it that is undelivered gets through."""

import logging

from sqlalchemy import and_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.states import MINER, SUBMISSION, TASK, MinerState, OrderState, SubmissionState, TaskState
from gateway.db import schema
from gateway.db.miners import lock_miner
from gateway.db.tasks import lock_tasks
from gateway.db.transitions import transition, transition_many
from gateway.ending import drop_submissions

log = logging.getLogger("reliquary.gateway")

FREED = {"miner": None, "lease_id": None, "lease_expires_at": None, "submission_id": None}


async def suspend(conn: AsyncConnection, hotkey: str, code: str, until: int, now: int) -> None:
    """Suspend a miner whose claim was refused, in the transaction that refuses it, under lock_miner_and_orders().

    Its leases return to the queue, its pending claims are rejected with "miner_suspended", and its accepted claims of
    orders that are still running are revoked, so that somebody else draws those samples again. Accepted claims of an
    order that is already being exported stay: they passed their audit, and what is being written must not change.
    Claims lost this way are no attempts of their tasks.
    """
    held = await lock_tasks(
        conn,
        schema.tasks.c.miner == hotkey,
        schema.tasks.c.state.in_([TaskState.LEASED, TaskState.SUBMITTED, TaskState.ACCEPTED]),
        schema.tasks.c.order_id.in_(select(schema.orders.c.id).where(schema.orders.c.state == OrderState.RUNNING)),
    )
    groups = {state: [task for task in held if task.state == state] for state in TaskState}
    pending = [task.submission_id for task in groups[TaskState.SUBMITTED] if task.submission_id]
    accepted = [task.submission_id for task in groups[TaskState.ACCEPTED] if task.submission_id]
    await drop_submissions(conn, pending, now, "reject", "miner_suspended")
    await transition_many(conn, SUBMISSION, accepted, from_state=SubmissionState.ACCEPTED, event="revoke", now=now)
    for state, event in (
        (TaskState.LEASED, "release"),
        (TaskState.SUBMITTED, "reject"),
        (TaskState.ACCEPTED, "revoke"),
    ):
        ids = [task.id for task in groups[state]]
        await transition_many(conn, TASK, ids, from_state=state, event=event, now=now, values=FREED)
    miner = await lock_miner(conn, hotkey, now)
    if miner.state == MinerState.ACTIVE:
        values = {"suspended_until": until, "suspension_code": code}
        await transition(conn, MINER, hotkey, from_state=MinerState.ACTIVE, event="suspend", now=now, values=values)
    log.warning(
        "miner suspended",
        extra={"action": "suspend", "miner": hotkey, "code": code, "revoked": len(accepted), "until": until},
    )


async def lock_miner_and_orders(conn: AsyncConnection, hotkey: str, order_id: str, now: int) -> None:
    """Take every lock that refusing a claim needs, in the one order that everybody keeps: the miner, then orders by id.

    The miner's other running orders are among them, so that none is exported while its claims are revoked.
    """
    await lock_miner(conn, hotkey, now)
    theirs = select(schema.tasks.c.order_id).where(schema.tasks.c.miner == hotkey)
    columns = schema.orders.c
    wanted = or_(columns.id == order_id, and_(columns.state == OrderState.RUNNING, columns.id.in_(theirs)))
    await conn.execute(select(columns.id).where(wanted).order_by(columns.id).with_for_update())
