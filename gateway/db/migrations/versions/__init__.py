"""Alembic's migrations; Database.migrate() runs them at start."""
