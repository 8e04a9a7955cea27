"""A gateway on each database for every test of this folder that asks for one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from customer import World, running_world
from invariants import violations


@pytest.fixture
async def world(tmp_path: Path, database_url: str) -> AsyncIterator[World]:
    """A gateway with one account that has money; whatever the test did, the invariants hold afterwards."""
    async with running_world(tmp_path, database_url=database_url, max_attempts=2) as running:
        yield running
        assert await violations(running.services.database) == []
