"""A gateway on loopback, on each database, for every test of this folder."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from customer import World, running_world
from invariants import violations
from served import Served, served


@pytest.fixture
async def world(tmp_path: Path, database_url: str) -> AsyncIterator[World]:
    """A gateway with one account that has money; whatever the test did, the invariants hold afterwards."""
    async with running_world(tmp_path, database_url) as running:
        yield running
        assert await violations(running.services.database) == []


@pytest.fixture
async def sqlite_world(tmp_path: Path) -> AsyncIterator[World]:
    """One on SQLite alone, for what is decided before any database is asked."""
    async with running_world(tmp_path) as running:
        yield running


@pytest.fixture
async def small_world(tmp_path: Path) -> AsyncIterator[World]:
    """One with an upload limit of 1 MiB."""
    async with running_world(tmp_path, upload_limit_bytes=1024 * 1024) as running:
        yield running


@pytest.fixture
async def tired_world(tmp_path: Path) -> AsyncIterator[World]:
    """One where a task is given up after one bad answer."""
    async with running_world(tmp_path, max_attempts=1) as running:
        yield running
        assert await violations(running.services.database) == []


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for a whole module that blocks on it, with miners that work by themselves and no quotas."""
    with served(tmp_path_factory.mktemp("gateway"), max_quotes_per_day=10**6, request_burst=10**6) as running:
        running.run(running.world.credit(10**12))
        yield running
        assert running.run(violations(running.world.services.database)) == []
