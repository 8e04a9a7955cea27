"""Dying between the bytes and the rows: the rerun ends in the same place."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from customer import World, five_tokens
from placing import order_state, place
from specification import row
from sqlalchemy import select

from gateway.db import schema
from gateway.db.blobs import Blobs, StoredBlob
from gateway.export import export_order
from gateway.sweeper import sweep


class Dies(Exception):
    """The process is gone."""


class DyingBlobs(Blobs):
    """A store that writes a blob and then, at the nth, takes the process with it."""

    def __init__(self, store: Blobs, survives: int) -> None:
        self._under = store
        self._survives = survives

    def __getattr__(self, name: str) -> Any:
        return getattr(self._under, name)

    async def put_stream(self, key: str, content: AsyncIterator[bytes]) -> StoredBlob:
        blob = await self._under.put_stream(key, content)
        if self._survives == 0:
            raise Dies
        self._survives -= 1
        return blob

    async def delete(self, key: str) -> None:
        await self._under.delete(key)


async def to_the_export(world: World) -> str:
    order_id = await place(world, lines=3)
    while await world.work(five_tokens):
        pass
    async with world.services.database.transaction() as conn:
        change = schema.orders.update().where(schema.orders.c.id == order_id)
        await conn.execute(change.values(output_expires_after_seconds=7200))
    return order_id


@row("Cases: faults", "the exporter dies before the commit")
@pytest.mark.parametrize("survives", [0, 1])
async def test_an_exporter_that_dies_after_writing_a_file_is_run_again_to_the_same_end(
    world: World, survives: int
) -> None:
    order_id = await to_the_export(world)
    dying = replace(world.services, blobs=DyingBlobs(world.services.blobs, survives))
    await sweep(dying, world.now)
    assert await order_state(world, order_id) == "exporting"
    world.now += 1
    await sweep(world.services, world.now)
    assert await order_state(world, order_id) == "delivered"
    async with world.services.database.snapshot() as conn:
        files = (await conn.execute(select(schema.files).where(schema.files.c.purpose == "batch_output"))).all()
    assert len(files) == 1


async def test_exporting_a_delivered_order_again_changes_nothing(world: World) -> None:
    order_id = await to_the_export(world)
    await sweep(world.services, world.now)
    async with world.services.database.snapshot() as conn:
        before = (await conn.execute(select(schema.orders))).all(), (await conn.execute(select(schema.entries))).all()
    await export_order(world.services, order_id, world.now + 5)
    async with world.services.database.snapshot() as conn:
        after = (await conn.execute(select(schema.orders))).all(), (await conn.execute(select(schema.entries))).all()
    assert after == before
