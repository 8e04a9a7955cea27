"""What is stuck, refused or away holds nothing else up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from customer import World
from placing import answer, assigned, claim_on, evidence_on, judge, lease, order_state, place, states
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.audits import report_evidence
from gateway.db import schema
from gateway.db.blobs import Blobs
from gateway.db.engine import Database
from gateway.dispatch import submit
from gateway.errors import Conflict, InvalidRequest
from gateway.sweeper import BATCH, Sweeper, sweep


async def test_a_claim_by_an_engine_that_nobody_can_judge_is_not_taken(world: World) -> None:
    await place(world, lines=2)
    first, second = await lease(world)
    unknown = claim_on(first).model_copy(update={"engine": "own/1"})
    with pytest.raises(Conflict, match="engine_not_calibrated"):
        await submit(world.services, "miner", unknown, world.now)
    assert sorted(await states(world, "tasks")) == ["leased", "leased"]
    assert await states(world, "miners") == ["active"]
    await answer(world, second)
    (audit,) = await assigned(world, max_audits=1)
    assert (await judge(world, audit)).status == "accepted"


async def test_evidence_that_is_not_signed_sends_the_audit_back(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    await answer(world, task)
    (audit,) = await assigned(world)
    strict = replace(world.services, verify_signature=lambda _message, _signature, _hotkey: False)
    with pytest.raises(InvalidRequest, match="bad_statement_signature"):
        await report_evidence(strict, "validator", evidence_on(audit), world.now)
    assert await states(world, "audits") == ["pending"]


@asynccontextmanager
async def many_running(world: World, order_id: str, count: int) -> AsyncIterator[None]:
    """So many more orders like this one, each with a task that nobody leases and an earlier deadline."""
    async with world.services.database.transaction() as conn:
        order = dict(
            (await conn.execute(schema.orders.select().where(schema.orders.c.id == order_id))).mappings().one()
        )
        ids = [f"other{number}" for number in range(count)]
        early = {**order, "expires_at": order["expires_at"] - 1}
        await conn.execute(schema.orders.insert(), [{**early, "id": other} for other in ids])
        task = {"line_number": 1, "first_sample": 0, "sample_count": 1, "state": "queued", "attempts": 0}
        await conn.execute(schema.tasks.insert(), [{**task, "id": other, "order_id": other} for other in ids])
    yield
    async with world.services.database.transaction() as conn:
        await conn.execute(delete(schema.tasks).where(schema.tasks.c.order_id.startswith("other")))
        await conn.execute(delete(schema.orders).where(schema.orders.c.id.startswith("other")))


async def test_a_finished_order_is_delivered_however_many_wait_before_it(world: World) -> None:
    order_id = await place(world, lines=1)
    (task,) = await lease(world)
    await answer(world, task)
    (audit,) = await assigned(world)
    await judge(world, audit)
    async with many_running(world, order_id, BATCH):
        await sweep(world.services, world.now)
    assert await order_state(world, order_id) == "delivered"


class AwayForAMoment(Database):
    """A database that cannot be read the first few times."""

    def __init__(self, under: Database, failures: int) -> None:
        self._under = under
        self._failures = failures
        self.came_back = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._under, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        async with self._under.transaction() as conn:
            yield conn

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        if self._failures:
            self._failures -= 1
            raise ConnectionError("away")
        self.came_back.set()
        async with self._under.snapshot() as conn:
            yield conn


async def test_a_database_that_is_away_for_a_moment_does_not_end_the_sweeper(world: World) -> None:
    away = AwayForAMoment(world.services.database, 20)
    settings = world.services.settings.model_copy(update={"sweep_interval_seconds": 0.01})
    stop = asyncio.Event()
    sweeper = Sweeper(replace(world.services, database=away, settings=settings), lambda: world.now)
    sweeping = asyncio.create_task(sweeper.run(stop))
    back = asyncio.create_task(away.came_back.wait())
    await asyncio.wait({sweeping, back}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    stop.set()
    back.cancel()
    await sweeping
    assert away.came_back.is_set()


class Undeletable(Blobs):
    """A store that takes the process with it at a deletion."""

    def __init__(self, under: Blobs) -> None:
        self._under = under

    def __getattr__(self, name: str) -> Any:
        return getattr(self._under, name)

    async def delete(self, key: str) -> None:
        raise OSError(f"died before {key} was deleted")


async def test_the_bytes_of_an_expired_file_go_also_when_the_sweeper_died_over_them(world: World) -> None:
    async with world.client() as client:
        made = await client.files.create(
            file=("a.jsonl", b"{}\n"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
    world.now += 3600
    await sweep(replace(world.services, blobs=Undeletable(world.services.blobs)), world.now)
    await sweep(world.services, world.now)
    async with world.services.database.snapshot() as conn:
        row = (await conn.execute(select(schema.files).where(schema.files.c.id == made.id))).one()
    assert row.deleted_at == world.now
    with pytest.raises(FileNotFoundError):
        await world.services.blobs.size(row.blob_key)
