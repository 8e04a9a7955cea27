"""Alembic's entry: migrates over the connection that Database.migrate() hands in."""

from alembic import context

from gateway.db.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite cannot alter a constraint in place
)
with context.begin_transaction():
    context.run_migrations()
