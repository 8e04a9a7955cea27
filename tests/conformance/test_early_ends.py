"""Batches that end before their work is done: cancelled, or their window passed."""

import openai
import pytest
from asking import balance, create, order_of, upload
from customer import DEPOSIT_MICRO, START, World, five_tokens
from specification import row

DAY_SECONDS = 24 * 3600


@row("Cancel and list", "cancel before generation")
@row("Batch states", "cancelled")
@row("Price, reservation and refund", "released in full")
@row("Error codes", "409 batch_not_cancellable")
@row("Routes", "POST /batches/{id}/cancel")
async def test_a_batch_that_never_started_is_cancelled_at_once_and_released(world: World) -> None:
    async with world.client() as client:
        made = await create(client, await upload(client))
        world.now += 5
        ended = await client.batches.cancel(made.id)
        assert (ended.status, ended.cancelling_at, ended.cancelled_at) == ("cancelled", START + 5, START + 5)
        assert ended.request_counts is not None
        assert ended.request_counts.to_dict() == {"total": 2, "completed": 0, "failed": 2}
        assert ended.usage is not None
        assert (ended.usage.total_tokens, ended.output_file_id, ended.error_file_id) == (0, None, None)
        assert (await balance(world))["available_micro"] == DEPOSIT_MICRO
        with pytest.raises(openai.ConflictError) as refused:
            await client.batches.cancel(made.id)
        assert refused.value.code == "batch_not_cancellable"
        assert refused.value.response.headers["x-should-retry"] == "false"


@row("Cancel and list", "cancel a running batch")
@row("Batch states", "cancelling")
@row("Batch states", "in_progress")
@row("Cases: call sequences", "cancel twice")
@row("Decided: routes", "cancel")
async def test_a_running_batch_that_is_cancelled_delivers_what_was_verified(world: World) -> None:
    async with world.client() as client:
        made = await create(client, await upload(client))
        assert await world.work(five_tokens, max_tasks=1) == 1
        assert (await client.batches.retrieve(made.id)).status == "in_progress"
        first, second = await client.batches.cancel(made.id), await client.batches.cancel(made.id)
        assert first == second
        assert (first.status, first.cancelling_at) == ("cancelling", START)
        await world.sweep()
        ended = await client.batches.retrieve(made.id)
        assert (ended.status, ended.request_counts and ended.request_counts.completed) == ("cancelled", 1)
        assert ended.output_file_id is not None
        assert ended.error_file_id is not None
        assert (await balance(world))["held_micro"] == 0
        assert (await balance(world))["available_micro"] < DEPOSIT_MICRO


@row("Batch states", "expired")
@row("Batch body", "completion_window")
async def test_a_window_that_passes_ends_the_batch(world: World) -> None:
    async with world.client() as client:
        running = await create(client, await upload(client))
        assert await world.work(five_tokens, max_tasks=1) == 1
        waiting = await create(client, await upload(client))
        world.now += DAY_SECONDS
        await world.sweep()
        ended, never = await client.batches.retrieve(running.id), await client.batches.retrieve(waiting.id)
        assert (ended.status, ended.expired_at) == ("expired", START + DAY_SECONDS)
        assert ended.output_file_id is not None
        assert (never.status, never.output_file_id) == ("expired", None)
        order = await order_of(world, waiting)
        assert order["refunded_micro"] == order["price_micro"]
