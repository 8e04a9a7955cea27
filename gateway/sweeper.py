"""The sweeper brings time: deadlines, windows, beacon rounds, and orders whose work is done. One pass is sweep()."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from sqlalchemy import delete, exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.audits import time_out
from gateway.core.states import ORDER, TASK, AuditState, OrderState, TaskState
from gateway.db import schema
from gateway.db.files import expired_files
from gateway.db.miners import reinstate_due
from gateway.db.orders import OrderRecord, lock_order, orders_in_state
from gateway.db.quotes import forget_quotes
from gateway.db.tasks import LIVE_TASKS
from gateway.db.transitions import transition, transition_many
from gateway.db.uploads import broken_off
from gateway.ending import end_early
from gateway.export import export_order
from gateway.files import abandon_upload, drop_file
from gateway.orders import QUOTA_SECONDS
from gateway.services import Services
from protocol.beacon import published_at, verify_pulse
from protocol.draw import beacon_randomness

log = logging.getLogger("reliquary.gateway")

BATCH = 500
NONCE_SECONDS = 60
IDEMPOTENCY_SECONDS = 7 * 24 * 3600
UPLOAD_SECONDS = 24 * 3600
"""Longer than any upload lasts."""
EXPORTED_STATES = (OrderState.EXPORTING, OrderState.EXPIRING, OrderState.CANCELLING)
OrderStep = Callable[[Services, OrderRecord, int], Awaitable[None]]


async def sweep(services: Services, now: int) -> None:
    """One pass. A step that fails is logged and counted, holds up no other step, and is tried again next time."""
    for name, step in STEPS.items():
        await _guarded(services, name, step(services, now))
    for states, order_step in ORDER_STEPS:
        for state in states:
            await _guarded(services, f"{order_step.__name__}: listing", _each_order(services, now, state, order_step))


async def _each_order(services: Services, now: int, state: str, step: OrderStep) -> None:
    """All orders in the state, some at a time: the ones that are stuck must not hide those behind them."""
    last: OrderRecord | None = None
    while True:
        async with services.database.snapshot() as conn:
            found = await orders_in_state(conn, state, BATCH, last)
        if not found:
            return
        for order in found:
            await _guarded(services, f"{step.__name__} of order {order.id}", step(services, order, now))
        last = found[-1]


async def _guarded(services: Services, what: str, work: Awaitable[None]) -> None:
    try:
        await work
    except Exception:
        services.metrics.sweep_failures.inc()
        log.exception("sweeper step failed: %s", what, extra={"action": "sweep"})


async def expire_leases(services: Services, now: int) -> None:
    """Queue the tasks whose leases passed. miner and lease_id stay, so that a late answer can still count."""
    columns = schema.tasks.c
    due = select(columns.id).where(columns.state == TaskState.LEASED, columns.lease_expires_at <= now).limit(BATCH)
    async with services.database.transaction() as conn:
        ids = list((await conn.execute(due.with_for_update(skip_locked=True))).scalars())
        values = {"lease_expires_at": None}
        await transition_many(
            conn, TASK, ids, from_state=TaskState.LEASED, event="lease_expired", now=now, values=values
        )


async def expire_audits(services: Services, now: int) -> None:
    """Queue the audits whose validator did not answer in time."""
    columns = schema.audits.c
    due = select(columns.id).where(columns.state == AuditState.ASSIGNED, columns.deadline_at <= now).limit(BATCH)
    async with services.database.transaction() as conn:
        await time_out(conn, list((await conn.execute(due.with_for_update(skip_locked=True))).scalars()), now)


async def reinstate_miners(services: Services, now: int) -> None:
    """Let miners back in whose suspension is over."""
    async with services.database.transaction() as conn:
        await reinstate_due(conn, now)


async def delete_expired_files(services: Services, now: int) -> None:
    """Delete files whose time has passed; an expired file is not served, so nobody is handed bytes that are going."""
    async with services.database.snapshot() as conn:
        due = await expired_files(conn, now, BATCH)
    for record in due:
        await drop_file(services, record, now)


async def drop_broken_uploads(services: Services, now: int) -> None:
    """Drop what is left of uploads whose gateway died."""
    async with services.database.snapshot() as conn:
        due = await broken_off(conn, now - UPLOAD_SECONDS, BATCH)
    for upload in due:
        await abandon_upload(services, upload, now)


async def forget_old_keys(services: Services, now: int) -> None:
    """Drop nonces that freshness alone refuses by now, idempotency keys past their week, and quotes past their day."""
    nonces, keys = schema.nonces, schema.idempotency_keys
    async with services.database.transaction() as conn:
        await conn.execute(delete(nonces).where(nonces.c.seen_at < now - NONCE_SECONDS))
        await conn.execute(delete(keys).where(keys.c.created_at < now - IDEMPOTENCY_SECONDS))
        await forget_quotes(conn, now - QUOTA_SECONDS)


async def measure(services: Services, _now: int) -> None:
    """Set the gauges."""
    tasks, audits = schema.tasks, schema.audits
    async with services.database.snapshot() as conn:
        queued = select(func.count()).where(tasks.c.state == TaskState.QUEUED)
        services.metrics.queued_tasks.set((await conn.execute(queued)).scalar_one())
        pending = select(func.count()).where(audits.c.state == AuditState.PENDING)
        services.metrics.pending_audits.set((await conn.execute(pending)).scalar_one())


STEPS: Mapping[str, Callable[[Services, int], Awaitable[None]]] = {
    "expire_leases": expire_leases,
    "expire_audits": expire_audits,
    "reinstate_miners": reinstate_miners,
    "delete_expired_files": delete_expired_files,
    "drop_broken_uploads": drop_broken_uploads,
    "forget_old_keys": forget_old_keys,
    "measure": measure,
}


async def fix_randomness(services: Services, order: OrderRecord, now: int) -> None:
    """Give a reserved order the randomness of its round, once that is published."""
    chain = services.beacon.chain
    if order.beacon_round is None or published_at(chain, order.beacon_round) > now:
        return
    pulse = await services.beacon.pulse(order.beacon_round)
    if pulse is None:
        return  # the beacon is down: the order waits, it never falls back to something that anybody could choose
    if pulse.round != order.beacon_round or pulse.chain != chain.name or not verify_pulse(pulse):
        raise ValueError(f"the beacon's pulse of round {order.beacon_round} does not verify")
    values = {"randomness": beacon_randomness(pulse, order.id)}
    async with services.database.transaction() as conn:
        if await _still(conn, order) is not None:
            await transition(
                conn, ORDER, order.id, from_state=order.state, event="randomness_fixed", now=now, values=values
            )


async def close_window(services: Services, order: OrderRecord, now: int) -> None:
    """End an order whose completion window passed."""
    if order.expires_at > now:
        return
    async with services.database.transaction() as conn:
        locked = await _still(conn, order)
        if locked is not None:
            await end_early(conn, locked, "window_passed", now)


async def settle(services: Services, order: OrderRecord, now: int) -> None:
    """Send a running order to export when none of its tasks is open."""
    tasks = schema.tasks
    live = select(exists().where(tasks.c.order_id == order.id, tasks.c.state.in_(LIVE_TASKS)))
    async with services.database.transaction() as conn:
        if await _still(conn, order) is None or (await conn.execute(live)).scalar_one():
            return
        values = {"finalizing_at": now}
        await transition(conn, ORDER, order.id, from_state=order.state, event="all_settled", now=now, values=values)


async def export(services: Services, order: OrderRecord, now: int) -> None:
    """Write what was verified and end the order."""
    await export_order(services, order.id, now)


ORDER_STEPS: tuple[tuple[Sequence[str], OrderStep], ...] = (
    ((OrderState.RESERVED,), fix_randomness),
    ((OrderState.RESERVED, OrderState.QUEUED, OrderState.RUNNING), close_window),
    ((OrderState.RUNNING,), settle),
    (EXPORTED_STATES, export),
)


async def _still(conn: AsyncConnection, order: OrderRecord) -> OrderRecord | None:
    """The order, locked, unless it has left the state in which it was listed."""
    locked = await lock_order(conn, order.id)
    return locked if locked is not None and locked.state == order.state else None


class Sweeper:
    """Sweeps at intervals until it is told to stop."""

    def __init__(self, services: Services, clock: Callable[[], int]) -> None:
        self._services = services
        self._clock = clock

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep until stop is set; every pass is finished."""
        while not stop.is_set():
            await sweep(self._services, self._clock())
            try:
                await asyncio.wait_for(stop.wait(), self._services.settings.sweep_interval_seconds)
            except TimeoutError:
                continue
