"""Every state machine, every pair of state and event, in memory and in the databases."""

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from gateway.core.states import BATCH_STATUS, MACHINES, MINER, ORDER, IllegalTransition, Machine, OrderState, advance
from gateway.db import schema
from gateway.db.engine import Database
from gateway.db.transitions import StateConflict, create, transition, transition_many

PAIRS = [
    pytest.param(machine, state, event, id=f"{machine.name} {state} {event}")
    for machine in MACHINES
    for state in sorted(machine.states)
    for event in sorted(machine.events)
]


@pytest.mark.parametrize(("machine", "state", "event"), PAIRS)
def test_an_event_leads_where_the_table_says_or_nowhere(machine: Machine, state: str, event: str) -> None:
    if (state, event) in machine.table:
        assert advance(machine, state, event) == machine.table[(state, event)]
        assert advance(machine, state, event) in machine.states
    else:
        with pytest.raises(IllegalTransition):
            advance(machine, state, event)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_state_can_be_reached(machine: Machine) -> None:
    reached, grows = {machine.initial}, True
    while grows:
        more = {str(end) for (start, _), end in machine.table.items() if start in reached} - reached
        reached |= more
        grows = bool(more)
    assert reached == set(machine.states)


def test_every_order_but_a_quote_has_a_batch_status_and_all_eight_occur() -> None:
    assert set(BATCH_STATUS) == set(ORDER.states) - {OrderState.QUOTED}
    assert set(BATCH_STATUS.values()) == {
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled",
    }  # fmt: skip


async def test_a_transition_moves_one_row_and_leaves_an_event(database: Database) -> None:
    async with database.transaction() as conn:
        await create(conn, MINER, [{"hotkey": "a", "first_seen_at": 1}], 1)
        state = await transition(
            conn, MINER, "a", from_state="active", event="suspend", now=2, values={"suspended_until": 9}
        )
    assert state == "suspended"
    async with database.snapshot() as conn:
        row = (await conn.execute(select(schema.miners))).one()
        events = [
            (each.event, each.from_state, each.to_state, each.at) for each in await conn.execute(select(schema.events))
        ]
    assert (row.state, row.suspended_until) == ("suspended", 9)
    assert events == [("create", None, "active", 1), ("suspend", "active", "suspended", 2)]


async def test_a_row_that_somebody_else_moved_is_a_conflict_and_nothing_is_written(database: Database) -> None:
    async with database.transaction() as conn:
        await create(conn, MINER, [{"hotkey": name, "first_seen_at": 1} for name in "ab"], 1)
        await transition(conn, MINER, "b", from_state="active", event="suspend", now=2)
    with pytest.raises(StateConflict):
        async with database.transaction() as conn:
            await transition_many(conn, MINER, ["a", "b"], from_state="active", event="suspend", now=3)
    async with database.snapshot() as conn:
        states = list((await conn.execute(select(schema.miners.c.state).order_by(schema.miners.c.hotkey))).scalars())
        assert states == ["active", "suspended"]
        assert (await conn.execute(select(func.count()).select_from(schema.events))).scalar_one() == 3


async def test_an_unknown_state_cannot_be_stored(database: Database) -> None:
    with pytest.raises(IntegrityError):
        async with database.transaction() as conn:
            await conn.execute(schema.miners.insert().values(hotkey="a", state="banana", first_seen_at=1))


async def test_transitions_are_observed(database_url: str) -> None:
    seen: list[tuple[str, str]] = []
    opened = Database.connect(database_url, lambda machine, event: seen.append((machine, event)))
    await opened.migrate()
    async with opened.transaction() as conn:
        await create(conn, MINER, [{"hotkey": "a", "first_seen_at": 1}], 1)
        await transition(conn, MINER, "a", from_state="active", event="suspend", now=2)
    await opened.close()
    assert seen == [("miner", "create"), ("miner", "suspend")]
