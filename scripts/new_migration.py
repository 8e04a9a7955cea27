"""Writes the next alembic migration from what gateway/db/schema.py has and an up-to-date SQLite database lacks.

python scripts/new_migration.py 0002 "what it is for"
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from gateway.db.engine import MIGRATIONS, Database


def write(connection: Connection, revision: str, message: str) -> None:
    """Compare the connection's schema with the metadata and write a revision file."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.revision(config, message=message, rev_id=revision, autogenerate=True)


async def main(revision: str, message: str) -> None:
    """Migrate a scratch database to the newest version and write the difference."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database.connect(f"sqlite+aiosqlite:///{Path(folder) / 'scratch.db'}")
        await database.migrate()
        async with database.transaction() as conn:
            await conn.run_sync(write, revision, message)
        await database.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
