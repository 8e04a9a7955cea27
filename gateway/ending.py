"""Ending an order before its work is done: cancelled by the customer, or its window passed."""

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.states import AUDIT, ORDER, SUBMISSION, TASK, AuditState, OrderState, SubmissionState, advance
from gateway.db import audits as audit_rows
from gateway.db import ledger, schema
from gateway.db.orders import OrderRecord
from gateway.db.tasks import LIVE_TASKS, TaskRecord, lock_tasks
from gateway.db.transitions import CHUNK, transition, transition_many

_TIMES = {
    OrderState.CANCELLING: ("cancelling_at",),
    OrderState.CANCELLED: ("cancelling_at", "cancelled_at"),
    OrderState.EXPIRING: ("finalizing_at",),
    OrderState.EXPIRED: ("expired_at",),
}


async def end_early(conn: AsyncConnection, order: OrderRecord, event: str, now: int) -> str:
    """Carry out "cancel" or "window_passed": stop the work, and release the hold if generation never began.

    Args:
        conn: a transaction that holds the order's row lock (gateway.db.orders.lock_order).
        order: the locked order.
        event: one of the two.
        now: Unix seconds.

    Returns:
        The order's new state: cancelled or expired at once, or cancelling or expiring until it is exported.

    Raises:
        IllegalTransition: the order is being exported or has ended.
    """
    target = OrderState(advance(ORDER, order.state, event))
    values: dict[str, int] = dict.fromkeys(_TIMES[target], now)
    if target in ORDER.final_states:
        values["refunded_micro"] = await ledger.settle(conn, order.id, 0, now)
        values |= {"completed_lines": 0, "accepted_samples": 0, "completion_tokens": 0}
    await _stop_tasks(conn, order.id, now)
    await transition(conn, ORDER, order.id, from_state=order.state, event=event, now=now, values=values)
    return target


async def _stop_tasks(conn: AsyncConnection, order_id: str, now: int) -> None:
    live = await lock_tasks(conn, schema.tasks.c.order_id == order_id, schema.tasks.c.state.in_(LIVE_TASKS))
    pending = [task.submission_id for task in live if task.submission_id is not None]
    await drop_submissions(conn, pending, now, "drop")
    cleared = {"lease_expires_at": None, "submission_id": None}
    for state, tasks in by_state(live).items():
        ids = [task.id for task in tasks]
        await transition_many(conn, TASK, ids, from_state=state, event="cancel", now=now, values=cleared)


def by_state(tasks: Sequence[TaskRecord]) -> dict[str, list[TaskRecord]]:
    """Tasks grouped by their state."""
    groups: dict[str, list[TaskRecord]] = defaultdict(list)
    for task in tasks:
        groups[task.state].append(task)
    return groups


async def drop_submissions(
    conn: AsyncConnection, submission_ids: Sequence[str], now: int, event: str, code: str | None = None
) -> None:
    """End pending claims by an event ("drop" or "reject") and drop their open audits."""
    if not submission_ids:
        return
    await transition_many(
        conn,
        SUBMISSION,
        submission_ids,
        from_state=SubmissionState.PENDING,
        event=event,
        now=now,
        values={"code": code},
    )
    columns = schema.audits.c
    for start in range(0, len(submission_ids), CHUNK):
        # Both states in one query: an audit that changes from one to the other meanwhile is waited for, not missed.
        found = await audit_rows.lock_audits(
            conn,
            columns.submission_id.in_(submission_ids[start : start + CHUNK]),
            columns.state.in_([AuditState.PENDING, AuditState.ASSIGNED]),
        )
        for state in (AuditState.PENDING, AuditState.ASSIGNED):
            ids = [audit.id for audit in found if audit.state == state]
            cleared = {"deadline_at": None}
            await transition_many(conn, AUDIT, ids, from_state=state, event="drop", now=now, values=cleared)
