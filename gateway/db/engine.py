"""The database connection: SQLite for one machine, PostgreSQL for many, the same code on both."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_LOCK = 0x72656C69  # any number that nobody else locks in this database
Observer = Callable[[str, str], None]


class Database:
    """An engine with the two ways to use it: transaction() to write, snapshot() to read.

    On SQLite a transaction takes the write lock when it begins, so it never fails half-way for a lock; writers of
    one process queue for it in the event loop instead of each blocking a thread.
    """

    def __init__(self, engine: AsyncEngine, observe: Observer) -> None:
        self._engine = engine
        self._observe = observe
        self._writer = asyncio.Lock() if engine.dialect.name == "sqlite" else None

    @classmethod
    def connect(cls, url: str, observe: Observer = lambda _machine, _event: None) -> "Database":
        """Make the engine; nothing is connected before the first use.

        Args:
            url: sqlite+aiosqlite:///PATH or postgresql+asyncpg://….
            observe: called with (machine, event) for every transition.
        """
        if not url.startswith("sqlite"):
            return cls(create_async_engine(url, pool_size=10, max_overflow=10), observe)
        engine = create_async_engine(url, pool_size=10, max_overflow=10)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return cls(engine, observe)

    @property
    def dialect(self) -> str:
        """Either sqlite or postgresql."""
        return self._engine.dialect.name

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """A connection whose work is committed at the end, or rolled back whole when an exception leaves the block."""
        async with AsyncExitStack() as stack:
            if self._writer is not None:
                await stack.enter_async_context(self._writer)
            conn = await stack.enter_async_context(self._engine.connect())
            await conn.execution_options(sqlite_begin="BEGIN IMMEDIATE", observe=self._observe)
            await stack.enter_async_context(conn.begin())
            yield conn

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """A connection for reading: every statement sees the same state."""
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        async with self._engine.connect() as conn:
            await conn.execution_options(**(options if self.dialect == "postgresql" else {}))
            async with conn.begin():
                yield conn

    async def migrate(self) -> None:
        """Bring the schema to the newest version; gateways that start together take turns."""
        async with self.transaction() as conn:
            if self.dialect == "postgresql":  # on SQLite the transaction is the lock
                await conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            await conn.run_sync(_upgrade)

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own: _begin_sqlite does
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=30000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
