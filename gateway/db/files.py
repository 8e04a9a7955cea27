"""Rows of files; their bytes lie in the blob store."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.paging import Page, fetch_page
from gateway.db.schema import files

__all__ = [
    "FileRecord",
    "Page",
    "expired_files",
    "find_file",
    "insert_file",
    "list_files",
    "mark_deleted",
    "mark_expired",
]


@dataclass(frozen=True)
class FileRecord:
    """One file; the columns of the table."""

    id: str
    account_id: str
    filename: str
    purpose: str
    bytes: int
    sha256: str
    blob_key: str
    created_at: int
    expires_at: int | None
    deleted_at: int | None


async def insert_file(conn: AsyncConnection, record: FileRecord) -> None:
    """Add a row; the bytes must already be stored under record.blob_key."""
    await conn.execute(insert(files).values(asdict(record)))


async def find_file(conn: AsyncConnection, account_id: str, file_id: str) -> FileRecord | None:
    """An account's file, deleted ones too; None for another account's."""
    query = select(files).where(files.c.id == file_id, files.c.account_id == account_id)
    row = (await conn.execute(query)).mappings().first()
    return None if row is None else FileRecord(**row)


async def list_files(conn: AsyncConnection, account_id: str, page: Page, now: int) -> Sequence[FileRecord]:
    """A page of the account's files that are not deleted and have not expired.

    Raises:
        UnknownCursor: when page.after is no file of the account.
    """
    is_fresh = files.c.expires_at.is_(None) | (files.c.expires_at > now)
    query = select(files).where(files.c.deleted_at.is_(None), is_fresh)
    if page.purpose is not None:
        query = query.where(files.c.purpose == page.purpose)
    return [FileRecord(**row) for row in await fetch_page(conn, files, account_id, page, query)]


async def mark_expired(conn: AsyncConnection, file_id: str, now: int) -> None:
    """End a file's time."""
    await conn.execute(update(files).where(files.c.id == file_id).values(expires_at=now))


async def mark_deleted(conn: AsyncConnection, account_id: str, file_id: str, now: int) -> None:
    """Hide a file from lists and reads; deleting it again changes nothing."""
    change = update(files).where(files.c.id == file_id, files.c.account_id == account_id, files.c.deleted_at.is_(None))
    await conn.execute(change.values(deleted_at=now))


async def expired_files(conn: AsyncConnection, now: int, limit: int) -> Sequence[FileRecord]:
    """Some files whose time has passed and that are not deleted yet."""
    query = select(files).where(files.c.expires_at <= now, files.c.deleted_at.is_(None)).limit(limit)
    return [FileRecord(**row) for row in (await conn.execute(query)).mappings()]
