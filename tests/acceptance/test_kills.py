"""kill -9 of every process in every state of a running batch: nothing is lost, nothing is charged twice."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from network import Network, running, story_lines

from neurons.localnet import Plan

pytestmark = [pytest.mark.acceptance, pytest.mark.asyncio(loop_scope="module")]

QUICK = {"lease_seconds": 4, "audit_seconds": 4, "sweep_interval_seconds": 0.2}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sqlite", "postgresql"])
async def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Network]:
    """A network with short leases, on each database."""
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    plan = Plan(0, tmp_path_factory.mktemp("network"), miners=1, database_url=url, gateway_settings=QUICK)
    async with running(plan) as made:
        yield made


async def fates(network: Network, batch: Any, total: int) -> None:
    """Every custom_id stands in the output, with all its samples; the money and the states add up."""
    assert batch.status == "completed"
    delivered = await network.output(batch)
    assert list(delivered) == [f"q{number}" for number in range(total)]
    assert all(len(texts) == 2 for texts in delivered.values())
    assert batch.error_file_id is None
    assert await network.violations() == []


@pytest.mark.parametrize("victim", ["gateway", "miner-1", "validator-1"])
@pytest.mark.parametrize("state", ["validating", "in_progress", "finalizing"])
async def test_a_batch_survives_a_kill(network: Network, victim: str, state: str) -> None:
    # Without a seed a batch waits for its beacon round, so that "validating" lasts.
    seed = {} if state == "validating" else {"seed": 4}
    batch_id = await network.place(story_lines(12, n=2, max_tokens=96, **seed))
    await network.wait(batch_id, state)
    await network.kill(victim)
    await fates(network, await network.wait(batch_id), 12)


async def test_a_batch_survives_a_storm_of_kills(network: Network) -> None:
    batch_id = await network.place(story_lines(16, n=2, max_tokens=96, seed=5))
    for victim in ("gateway", "validator-1", "gateway", "miner-1", "gateway"):
        await asyncio.sleep(0.7)
        await network.kill(victim)
    await fates(network, await network.wait(batch_id), 16)


async def test_a_cancelled_batch_survives_a_kill_of_the_gateway(network: Network) -> None:
    batch_id = await network.place(story_lines(30, n=16, max_tokens=256, seed=6))
    await network.wait(batch_id, "in_progress")
    async with network.client as client:
        await client.batches.cancel(batch_id)
    await network.kill("gateway")
    batch = await network.wait(batch_id)
    assert batch.status == "cancelled"
    assert batch.request_counts.completed + batch.request_counts.failed == 30
    assert await network.violations() == []
