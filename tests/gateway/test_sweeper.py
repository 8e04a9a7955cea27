"""What time brings."""

import pytest
from customer import World, five_tokens
from placing import answer, assigned, judge, lease, order_state, place, states
from sqlalchemy import select

from gateway.db import schema
from gateway.db.ledger import balance
from gateway.sweeper import sweep

DAY = 24 * 3600


async def money(world: World) -> tuple[int, int]:
    async with world.services.database.snapshot() as conn:
        found = await balance(conn, world.account_id)
    return found.available_micro, found.held_micro


async def test_an_order_without_a_seed_waits_for_its_round(world: World) -> None:
    order_id = await place(world, seed=None)
    await sweep(world.services, world.now)
    assert await order_state(world, order_id) == "reserved"
    assert await lease(world) == ()
    world.now += 60
    await sweep(world.services, world.now)
    assert await order_state(world, order_id) == "queued"
    assert len(await lease(world)) == 2


async def test_two_orders_of_the_same_file_without_a_seed_draw_differently(world: World) -> None:
    for _ in range(2):
        await place(world, lines=1, seed=None)
    world.now += 60
    await sweep(world.services, world.now)
    first, second = await lease(world)
    assert first.prompt_token_ids == second.prompt_token_ids
    assert first.sample_keys != second.sample_keys


async def test_an_order_that_never_started_expires_with_a_full_release(world: World) -> None:
    before = await money(world)
    order_id = await place(world)
    world.now += DAY
    await sweep(world.services, world.now)
    assert await order_state(world, order_id) == "expired"
    assert await money(world) == before


async def test_a_running_order_expires_with_what_was_verified(world: World) -> None:
    order_id = await place(world)
    first, _ = await lease(world)
    await answer(world, first)
    (audit,) = await assigned(world)
    await judge(world, audit)
    world.now += DAY
    await sweep(world.services, world.now)
    assert await order_state(world, order_id) == "expired"
    async with world.services.database.snapshot() as conn:
        row = (await conn.execute(select(schema.orders))).one()
    assert row.completion_tokens == 3
    assert row.output_file_id is not None
    assert row.error_file_id is not None
    assert 0 < row.refunded_micro < row.price_micro


async def test_sweeping_again_and_again_changes_nothing_more(world: World) -> None:
    order_id = await place(world)
    await world.finish(five_tokens)
    assert await order_state(world, order_id) == "delivered"
    before = (await money(world), await states(world, "transfers"))
    for _ in range(3):
        await sweep(world.services, world.now)
    assert (await money(world), await states(world, "transfers")) == before


async def test_a_suspension_ends(world: World) -> None:
    await place(world, lines=2)
    first, _ = await lease(world)
    await answer(world, first, (1, 2))
    assert await states(world, "miners") == ["suspended"]
    world.now += world.services.settings.suspension_seconds
    await sweep(world.services, world.now)
    assert await states(world, "miners") == ["active"]
    assert len(await lease(world)) == 1


async def test_one_failing_step_holds_up_no_other_order(world: World, caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = await place(world), await place(world)
    world.now += 1
    while await world.work(five_tokens):
        pass
    async with world.services.database.transaction() as conn:
        await conn.execute(
            schema.orders.update().where(schema.orders.c.id == broken).values(model_repo="nobody/nothing")
        )
    await sweep(world.services, world.now)
    assert await order_state(world, broken) == "exporting"
    assert await order_state(world, sound) == "delivered"
    assert any("sweeper step failed" in record.message for record in caplog.records)


async def test_an_expired_file_is_deleted_with_its_bytes(world: World) -> None:
    async with world.client() as client:
        made = await client.files.create(
            file=("a.jsonl", b"{}\n"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        world.now += 3600
        await sweep(world.services, world.now)
        async with world.services.database.snapshot() as conn:
            row = (await conn.execute(select(schema.files).where(schema.files.c.id == made.id))).one()
        assert row.deleted_at == world.now
        with pytest.raises(FileNotFoundError):
            await world.services.blobs.size(row.blob_key)
