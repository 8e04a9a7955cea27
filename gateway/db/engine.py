"""The database connection: SQLite for one machine, PostgreSQL for many, the same code on both."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from asyncpg.exceptions import DeadlockDetectedError, LockNotAvailableError, SerializationError
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gateway.errors import DatabaseBusy, Unavailable

LOCK_SECONDS = 30.0
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
    def connect(
        cls, url: str, observe: Observer = lambda _machine, _event: None, lock_seconds: float = LOCK_SECONDS
    ) -> "Database":
        """Make the engine; nothing is connected before the first use.

        Args:
            url: sqlite+aiosqlite:///PATH or postgresql+asyncpg://….
            observe: called with (machine, event) for every transition.
            lock_seconds: longest wait for a row, or on SQLite the whole file, that somebody else has locked.
        """
        lock_ms = round(1000 * lock_seconds)
        if not url.startswith("sqlite"):
            settings = {"lock_timeout": str(lock_ms)}
            arguments = {"server_settings": settings}
            return cls(create_async_engine(url, pool_size=10, max_overflow=10, connect_args=arguments), observe)
        engine = create_async_engine(url, pool_size=10, max_overflow=10)
        event.listen(engine.sync_engine, "connect", partial(_prepare_sqlite, lock_ms))
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return cls(engine, observe)

    @property
    def dialect(self) -> str:
        """Either sqlite or postgresql."""
        return self._engine.dialect.name

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """A connection whose work is committed at the end, or rolled back whole when an exception leaves the block.

        Raises:
            Unavailable: batch_unavailable when the database cannot be reached.
            DatabaseBusy: when somebody else holds a lock for too long.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(_named_failures())
            if self._writer is not None:
                await stack.enter_async_context(self._writer)
            conn = await self._connected(stack)
            await conn.execution_options(sqlite_begin="BEGIN IMMEDIATE", observe=self._observe)
            await stack.enter_async_context(conn.begin())
            yield conn

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """A connection for reading: every statement sees the same state.

        Raises:
            Unavailable, DatabaseBusy: as transaction().
        """
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        async with AsyncExitStack() as stack:
            stack.enter_context(_named_failures())
            conn = await self._connected(stack)
            await conn.execution_options(**(options if self.dialect == "postgresql" else {}))
            await stack.enter_async_context(conn.begin())
            yield conn

    async def _connected(self, stack: AsyncExitStack) -> AsyncConnection:
        """A connection that the stack gives back."""
        try:
            return await stack.enter_async_context(self._engine.connect())
        except (DBAPIError, OSError, PoolTimeout) as error:  # the driver's own, too: there is no connection yet
            raise _unreachable() from error

    async def migrate(self) -> None:
        """Bring the schema to the newest version; gateways that start together take turns."""
        async with self.transaction() as conn:
            if self.dialect == "postgresql":  # on SQLite the transaction is the lock
                await conn.execute(text("SET LOCAL lock_timeout = 0"))  # another one's migration may take long
                await conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            await conn.run_sync(_upgrade)

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


@contextmanager
def _named_failures() -> Iterator[None]:
    """Say of a database's failure what a caller can do about it; whatever else happens passes through."""
    try:
        yield
    except DBAPIError as error:
        if _is_lock_timeout(error):
            raise DatabaseBusy("batch_unavailable", "the database is busy; retry shortly") from error
        if error.connection_invalidated or isinstance(error, InterfaceError):
            raise _unreachable() from error
        raise


def _unreachable() -> Unavailable:
    return Unavailable("batch_unavailable", "the database does not answer; retry shortly")


def _is_lock_timeout(error: DBAPIError) -> bool:
    cause = error.orig.__cause__ if error.orig is not None else None
    if isinstance(error.orig, sqlite3.OperationalError):
        return error.orig.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return isinstance(cause, LockNotAvailableError | DeadlockDetectedError | SerializationError)


def _prepare_sqlite(lock_ms: int, connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own: _begin_sqlite does
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={lock_ms}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
