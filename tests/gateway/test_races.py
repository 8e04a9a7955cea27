"""Several gateways, miners and validators at the same moment."""

import asyncio
import sys

from customer import World
from placing import answer, assigned, judge, lease, order_state, place, states

from gateway.audits import time_out
from gateway.errors import Conflict
from gateway.orders import cancel_batch

FAR_OFF = 200
"""A radius code far above any tolerance."""

MIGRATE = """
import asyncio, sys
from gateway.db.engine import Database

async def main():
    database = Database.connect(sys.argv[1])
    await database.migrate()
    await database.close()

asyncio.run(main())
"""


async def test_gateways_that_start_at_once_on_an_empty_database_all_start(database_url: str) -> None:
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", MIGRATE, database_url, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(3)
    ]
    said = await asyncio.gather(*(process.communicate() for process in started))
    assert [process.returncode for process in started] == [0, 0, 0], said


async def test_the_first_contacts_of_one_miner_at_once_all_succeed(world: World) -> None:
    await place(world, lines=4)
    found = await asyncio.gather(*(lease(world, "new", max_tasks=1) for _ in range(4)))
    assert [len(tasks) for tasks in found] == [1] * 4
    assert await states(world, "miners") == ["active"]


async def test_miners_that_ask_at_once_all_get_work_while_there_is_work(world: World) -> None:
    await place(world, lines=6)
    found = await asyncio.gather(*(lease(world, f"miner{number}", max_tasks=1) for number in range(6)))
    assert [len(tasks) for tasks in found] == [1] * 6


async def test_copies_of_a_claim_at_once_all_get_its_receipt(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    receipts = await asyncio.gather(*(answer(world, task) for _ in range(5)))
    assert [receipt.status for receipt in receipts] == ["submitted"] * 5
    assert await states(world, "submissions") == ["pending"]


async def test_a_miner_that_is_caught_on_four_orders_at_once_is_suspended_once(world: World) -> None:
    orders = [await place(world, lines=1) for _ in range(4)]
    for task in await lease(world):
        await answer(world, task)
    audits = await assigned(world)
    found = await asyncio.gather(*(judge(world, audit, FAR_OFF) for audit in audits), return_exceptions=True)
    # The first verdict takes all of the miner's other claims with it: their audits are over.
    assert [str(each).split(":")[0] for each in found if isinstance(each, BaseException)] == ["audit_lost"] * 3
    assert all(isinstance(each, Conflict) for each in found if isinstance(each, BaseException))
    assert await states(world, "miners") == ["suspended"]
    assert [await order_state(world, order_id) for order_id in orders] == ["running"] * 4
    assert await states(world, "tasks") == ["queued"] * 4


async def test_an_audit_that_times_out_while_its_batch_is_cancelled_is_dropped(world: World) -> None:
    order_id = await place(world, lines=1)
    (task,) = await lease(world)
    await answer(world, task)
    (audit,) = await assigned(world)
    async with world.services.database.transaction() as conn:
        await time_out(conn, [audit.audit_id], world.now)
        cancelling = asyncio.create_task(cancel_batch(world.services, world.account_id, order_id, world.now))
        await asyncio.wait({cancelling}, timeout=0.5)  # until it waits for this transaction
    await cancelling
    assert await states(world, "audits") == ["dropped"]
