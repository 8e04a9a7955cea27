"""Migrations build what the schema says."""

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect

from gateway.db.engine import Database
from gateway.db.schema import metadata


def differences(connection: Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(connection), metadata))


def check_names(connection: Connection) -> dict[str, set[str]]:
    inspector = inspect(connection)
    return {
        table: {str(check["name"]) for check in inspector.get_check_constraints(table)} for table in metadata.tables
    }


async def test_the_newest_version_is_the_schema(database: Database) -> None:
    async with database.transaction() as conn:
        assert await conn.run_sync(differences) == []


async def test_every_check_of_the_schema_is_in_the_database(database: Database) -> None:
    async with database.snapshot() as conn:
        found = await conn.run_sync(check_names)
    for name, table in metadata.tables.items():
        wanted = {str(each.name) for each in table.constraints if type(each).__name__ == "CheckConstraint"}
        assert wanted <= found[name], name


async def test_migrating_again_changes_nothing(database: Database) -> None:
    await database.migrate()
    async with database.transaction() as conn:
        assert await conn.run_sync(differences) == []
