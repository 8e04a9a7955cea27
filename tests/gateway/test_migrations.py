"""Migrations build what the schema says."""

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from gateway.db.engine import MIGRATIONS, Database
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


def to_the_first(connection: Connection) -> None:
    """The schema as it was with the first version."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "0001")


async def test_accounts_that_could_order_still_can(database_url: str) -> None:
    opened = Database.connect(database_url)
    async with opened.transaction() as conn:
        await conn.run_sync(to_the_first)
        await conn.execute(text("INSERT INTO accounts (id, name, created_at) VALUES ('a', 'old', 7)"))
    await opened.migrate()
    async with opened.snapshot() as conn:
        allowed = (await conn.execute(text("SELECT orders_allowed_at FROM accounts"))).scalar_one()
        assert await conn.run_sync(differences) == []
    await opened.close()
    assert allowed == 7
