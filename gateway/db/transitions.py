"""The one place that writes a state: compare-and-swap, its event row and its count, in the caller's transaction."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Table, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import states
from gateway.core.states import Machine, advance
from gateway.db import schema

_TABLES: Mapping[str, tuple[Table, Column[Any]]] = {
    states.UPLOAD.name: (schema.uploads, schema.uploads.c.id),
    states.ORDER.name: (schema.orders, schema.orders.c.id),
    states.TASK.name: (schema.tasks, schema.tasks.c.id),
    states.SUBMISSION.name: (schema.submissions, schema.submissions.c.id),
    states.AUDIT.name: (schema.audits, schema.audits.c.id),
    states.TRANSFER.name: (schema.transfers, schema.transfers.c.id),
    states.MINER.name: (schema.miners, schema.miners.c.hotkey),
}
CHUNK = 250  # below the parameter limit of both databases, and prepared while other requests wait


class StateConflict(Exception):
    """Somebody else moved the row first; read again and decide anew."""

    def __init__(self, machine: str, subject_ids: Sequence[str], from_state: str) -> None:
        super().__init__(f"{machine}: {len(subject_ids)} row(s) not all in state {from_state}: {subject_ids[0]} …")
        self.machine = machine


async def create(conn: AsyncConnection, machine: Machine, rows: Sequence[Mapping[str, Any]], now: int) -> None:
    """Insert rows in the machine's initial state, with an event row each."""
    table, key = _TABLES[machine.name]
    for start in range(0, len(rows), CHUNK):
        chunk = rows[start : start + CHUNK]
        await conn.execute(insert(table), [{**row, "state": machine.initial} for row in chunk])
        await _record(conn, machine, [row[key.name] for row in chunk], ("create", None, machine.initial), now)


async def transition(  # noqa: PLR0913 - a transition is all of these
    conn: AsyncConnection,
    machine: Machine,
    subject_id: str,
    *,
    from_state: str,
    event: str,
    now: int,
    values: Mapping[str, Any] | None = None,
) -> str:
    """Move one row by an event and set other columns with it; the new state.

    Raises:
        IllegalTransition: the event does not apply in from_state.
        StateConflict: the row is not in from_state any more.
    """
    await transition_many(conn, machine, [subject_id], from_state=from_state, event=event, now=now, values=values)
    return advance(machine, from_state, event)


async def transition_many(  # noqa: PLR0913 - as above
    conn: AsyncConnection,
    machine: Machine,
    subject_ids: Sequence[str],
    *,
    from_state: str,
    event: str,
    now: int,
    values: Mapping[str, Any] | None = None,
) -> None:
    """Move several rows that are all in from_state; all or none (the caller's transaction rolls back).

    Raises:
        IllegalTransition, StateConflict: as transition().
    """
    table, key = _TABLES[machine.name]
    target = advance(machine, from_state, event)
    for start in range(0, len(subject_ids), CHUNK):
        chunk = list(subject_ids[start : start + CHUNK])
        change = update(table).where(key.in_(chunk), table.c.state == from_state)
        result = await conn.execute(change.values(state=target, **(values or {})))
        if result.rowcount != len(chunk):
            raise StateConflict(machine.name, chunk, from_state)
        await _record(conn, machine, chunk, (event, from_state, target), now)


async def _record(
    conn: AsyncConnection,
    machine: Machine,
    subject_ids: Sequence[str],
    change: tuple[str, str | None, str],
    now: int,
) -> None:
    event, from_state, to_state = change
    rows = [
        {
            "machine": machine.name,
            "subject_id": subject_id,
            "event": event,
            "from_state": from_state,
            "to_state": to_state,
            "at": now,
        }
        for subject_id in subject_ids
    ]
    await conn.execute(insert(schema.events), rows)
    connection = conn.sync_connection
    observe = None if connection is None else connection.get_execution_options().get("observe")
    if observe is not None:
        for _ in rows:
            observe(machine.name, event)
