"""kill -9 of every process in every state of a running batch: nothing is lost, nothing is charged twice."""

import asyncio
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from network import Network, running, story_lines
from specification import row

from neurons.localnet import DEMO_HUB, Plan

pytestmark = [pytest.mark.acceptance, pytest.mark.asyncio(loop_scope="module")]

VICTIMS = ["gateway", "miner-1", "validator-1"]
QUICK = {"lease_seconds": 4, "audit_seconds": 4, "sweep_interval_seconds": 0.2}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sqlite", "postgresql"])
async def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Network]:
    """A network with short leases, on each database."""
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    hub = tmp_path_factory.mktemp("hub")
    shutil.copytree(DEMO_HUB, hub, dirs_exist_ok=True)  # one that a test may take files from
    folder = tmp_path_factory.mktemp("network")
    async with running(Plan(0, folder, miners=1, hub=hub, database_url=url, gateway_settings=QUICK)) as made:
        yield made


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def invariants_hold(network: Network) -> AsyncIterator[None]:
    """After every test."""
    yield
    assert await network.violations() == []


async def reach(network: Network, batch_id: str, state: str) -> None:
    """Wait for a state, and fail if the batch has passed it by."""
    assert (await network.wait(batch_id, state)).status == state


async def assert_delivered(network: Network, batch_id: str, total: int) -> None:
    """Every line with all its samples, in the order of the file."""
    batch = await network.wait(batch_id)
    assert batch.status == "completed"
    delivered = await network.output(batch)
    assert list(delivered) == [f"q{number}" for number in range(total)]
    assert all(len(texts) == 2 for texts in delivered.values())
    assert batch.error_file_id is None


@row("Cases: faults", "kill -9 of gateway, miner or validator at every state")
@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_batch_survives_a_kill_while_it_is_validated(network: Network, victim: str) -> None:
    # Without a seed a batch waits for its beacon round, so that the state lasts.
    batch_id = await network.place(story_lines(12, n=2, max_tokens=96))
    await reach(network, batch_id, "validating")
    await network.kill(victim)
    await assert_delivered(network, batch_id, 12)


@row("Cases: faults", "kill -9 of gateway, miner or validator at every state")
@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_batch_survives_a_kill_while_it_is_in_progress(network: Network, victim: str) -> None:
    batch_id = await network.place(story_lines(30, n=2, max_tokens=256, seed=4))
    await reach(network, batch_id, "in_progress")
    await network.kill(victim)
    await assert_delivered(network, batch_id, 30)


@row("Cases: faults", "kill -9 of gateway, miner or validator at every state")
@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_batch_survives_a_kill_while_it_is_finalized(network: Network, victim: str) -> None:
    batch_id = await network.place(story_lines(12, n=2, max_tokens=96, seed=4))
    with network.exports_held():
        await reach(network, batch_id, "finalizing")
        await network.kill(victim)
        assert (await network.batch(batch_id)).status == "finalizing"
    await assert_delivered(network, batch_id, 12)


@row("Cases: faults", "kill -9 of gateway, miner or validator at every state")
@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_batch_survives_a_kill_while_it_is_cancelled(network: Network, victim: str) -> None:
    batch_id = await network.place(story_lines(30, n=16, max_tokens=256, seed=6))
    while (await network.batch(batch_id)).request_counts.completed == 0:  # nothing verified is nothing to export
        await asyncio.sleep(0.1)
    with network.exports_held():
        async with network.client as client:
            assert (await client.batches.cancel(batch_id)).status == "cancelling"
        await network.kill(victim)
        assert (await network.batch(batch_id)).status == "cancelling"
    batch = await network.wait(batch_id)
    assert batch.status == "cancelled"
    assert 0 < batch.request_counts.completed < 30


@row("Cases: faults", "kill -9 of gateway, miner or validator at every state")
async def test_a_batch_survives_a_storm_of_kills(network: Network) -> None:
    batch_id = await network.place(story_lines(60, n=2, max_tokens=256, seed=5))
    for victim in ("gateway", "validator-1", "gateway", "miner-1", "gateway"):
        await asyncio.sleep(0.3)
        await network.kill(victim)
    await assert_delivered(network, batch_id, 60)
