"""Leases and claims."""

import asyncio
from dataclasses import replace

import pytest
from customer import World
from placing import BROKEN, GOOD, answer, assigned, claim_on, judge, lease, order_state, place, states
from specification import row

from gateway.dispatch import heartbeat, release, submit
from gateway.errors import Conflict, Forbidden, NotFound
from gateway.sweeper import sweep
from protocol.messages import LeaseList, SubmissionReceipt


async def test_the_first_lease_starts_the_order(world: World) -> None:
    order_id = await place(world)
    assert await order_state(world, order_id) == "queued"
    await lease(world, max_tasks=1)
    assert await order_state(world, order_id) == "running"


async def test_samples_of_a_line_are_leased_together_with_keys_of_their_own(world: World) -> None:
    await place(world, lines=1, n=10)
    first, second = await lease(world)
    assert (first.first_sample, len(first.sample_keys)) == (0, 8)
    assert (second.first_sample, len(second.sample_keys)) == (8, 2)
    assert len({*first.sample_keys, *second.sample_keys}) == 10
    assert first.prompt_token_ids == second.prompt_token_ids


async def test_two_miners_at_once_never_get_the_same_task(world: World) -> None:
    await place(world, lines=12)
    answers = await asyncio.gather(*(lease(world, f"miner{number}", max_tasks=3) for number in range(6)))
    ids = [task.task_id for tasks in answers for task in tasks]
    assert len(ids) == len(set(ids))
    rest = await lease(world, "last")
    assert len(ids) + len(rest) == 12


async def test_a_model_that_the_miner_does_not_serve_is_not_leased(world: World) -> None:
    await place(world)
    async with world.services.database.transaction() as conn:
        await conn.exec_driver_sql("UPDATE orders SET model_revision = '" + "0" * 40 + "'")
    assert await lease(world) == ()


async def test_a_claim_waits_for_an_audit(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    assert (await answer(world, task)).status == "submitted"
    assert await states(world, "tasks") == ["submitted"]
    assert await states(world, "audits") == ["pending"]


async def test_the_same_claim_again_gets_the_same_receipt(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    receipts = [await answer(world, task) for _ in range(3)]
    assert receipts[0] == receipts[1] == receipts[2]
    assert await states(world, "submissions") == ["pending"]


async def test_many_copies_of_a_claim_at_once_make_one(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    found = await asyncio.gather(*(answer(world, task) for _ in range(5)), return_exceptions=True)
    assert await states(world, "submissions") == ["pending"]
    receipts = [receipt for receipt in found if isinstance(receipt, SubmissionReceipt)]
    assert receipts
    assert {receipt.status for receipt in receipts} == {"submitted"}


@row("Cases: faults", "a miner takes leases and never answers")
async def test_an_expired_lease_goes_back_to_the_queue(world: World) -> None:
    await place(world, lines=1)
    await lease(world)
    world.now += world.services.settings.lease_seconds
    await sweep(world.services, world.now)
    assert await states(world, "tasks") == ["queued"]
    assert len(await lease(world, "other")) == 1


@row("Cases: faults", "a miner answers after its lease expired")
async def test_a_late_answer_counts_while_nobody_else_holds_the_task(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    world.now += world.services.settings.lease_seconds
    await sweep(world.services, world.now)
    assert (await answer(world, task)).status == "submitted"


@row("Cases: faults", "a miner answers after its lease expired")
async def test_a_late_answer_is_lost_once_somebody_else_holds_the_task(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    world.now += world.services.settings.lease_seconds
    await sweep(world.services, world.now)
    (again,) = await lease(world, "other")
    with pytest.raises(Conflict, match="lease_lost"):
        await answer(world, task)
    assert (await answer(world, again, miner="other")).status == "submitted"


async def test_a_heartbeat_keeps_a_lease_and_tells_which_are_gone(world: World) -> None:
    await place(world, lines=2)
    first, second = await lease(world)
    await answer(world, second)
    world.now += world.services.settings.lease_seconds - 1
    held = await heartbeat(
        world.services, "miner", LeaseList(lease_ids=(first.lease_id, second.lease_id, "unknown")), world.now
    )
    assert held.lease_ids == (first.lease_id,)
    world.now += 5
    await sweep(world.services, world.now)
    assert sorted(await states(world, "tasks")) == ["leased", "submitted"]


async def test_a_released_lease_can_be_taken_at_once(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    ids = LeaseList(lease_ids=(task.lease_id,))
    assert (await release(world.services, "stranger", ids, world.now)).lease_ids == ()
    assert (await release(world.services, "miner", ids, world.now)).lease_ids == (task.lease_id,)
    assert len(await lease(world, "other")) == 1


async def test_a_claim_on_somebody_elses_lease_is_refused(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    with pytest.raises(Conflict, match="lease_lost"):
        await answer(world, task, miner="thief")


async def test_a_claim_on_a_task_that_does_not_exist_is_refused(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    made = claim_on(task).model_copy(update={"task_id": "nothing"})
    with pytest.raises(NotFound, match="unknown_task"):
        await submit(world.services, "miner", made, world.now)


async def test_a_claim_must_hold_exactly_the_samples_of_its_lease(world: World) -> None:
    await place(world, lines=1, n=3)
    (task,) = await lease(world)
    receipt = await submit(world.services, "miner", claim_on(task, count=2), world.now)
    assert (receipt.status, receipt.code) == ("rejected", "wrong_samples")
    assert await states(world, "tasks") == ["queued"]


async def test_a_claim_without_its_miners_signature_is_refused(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    strict = replace(world.services, verify_signature=lambda _message, _signature, _hotkey: False)
    receipt = await submit(strict, "miner", claim_on(task), world.now)
    assert (receipt.status, receipt.code) == ("rejected", "bad_statement_signature")
    assert await states(world, "miners") == ["suspended"]


async def test_a_broken_claim_is_refused_at_once_and_its_miner_suspended(world: World) -> None:
    await place(world, lines=2)
    first, _ = await lease(world)
    receipt = await answer(world, first, BROKEN)
    assert (receipt.status, receipt.code) == ("rejected", "eos_not_last")
    assert await states(world, "tasks") == ["queued", "queued"]
    assert await states(world, "audits") == []
    with pytest.raises(Forbidden, match="miner_suspended"):
        await lease(world)
    assert await answer(world, first, BROKEN) == receipt


async def test_a_refused_task_goes_to_another_miner_and_never_back(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    await answer(world, task, BROKEN)
    world.now += world.services.settings.suspension_seconds
    await sweep(world.services, world.now)
    assert await lease(world) == ()
    assert len(await lease(world, "other")) == 1


async def test_a_task_is_given_up_after_its_attempts_and_the_order_still_ends(world: World) -> None:
    order_id = await place(world, lines=1)
    for miner in ("one", "two"):
        (task,) = await lease(world, miner)
        await answer(world, task, BROKEN, miner)
    assert await states(world, "tasks") == ["failed"]
    await sweep(world.services, world.now)
    assert await order_state(world, order_id) == "delivered"


async def test_a_suspended_miners_work_in_hand_and_accepted_work_is_drawn_again(world: World) -> None:
    order_id = await place(world, lines=4)
    accepted, pending, leased, broken = await lease(world)
    await answer(world, accepted)
    (audit,) = await assigned(world)
    assert (await judge(world, audit)).status == "accepted"
    await answer(world, pending)
    await answer(world, broken, BROKEN)
    assert await states(world, "tasks") == ["queued"] * 4
    assert sorted(await states(world, "submissions")) == ["rejected", "rejected", "revoked"]
    assert sorted(await states(world, "audits")) == ["dropped", "judged"]
    with pytest.raises(Conflict):
        await answer(world, leased)
    again = await lease(world, "other")
    assert len(again) == 4
    for task in again:
        await answer(world, task, GOOD, "other")
    for found in await assigned(world):
        await judge(world, found)
    await sweep(world.services, world.now)
    assert await order_state(world, order_id) == "delivered"
