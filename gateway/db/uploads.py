"""Rows of uploads: bytes on their way to becoming files, and what is left of those that broke off."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.states import UPLOAD, UploadState
from gateway.db.schema import uploads
from gateway.db.transitions import create, transition


@dataclass(frozen=True)
class UploadRecord:
    """An upload; id is that of the file it becomes."""

    id: str
    account_id: str
    blob_key: str
    created_at: int


_COLUMNS = uploads.c.id, uploads.c.account_id, uploads.c.blob_key, uploads.c.created_at


async def insert_upload(conn: AsyncConnection, record: UploadRecord, now: int) -> None:
    """Note that bytes are going to arrive under the record's key."""
    await create(conn, UPLOAD, [asdict(record)], now)


async def is_receiving(conn: AsyncConnection, account_id: str, upload_id: str) -> bool:
    """Whether the account's upload is still in progress."""
    query = select(uploads.c.id).where(uploads.c.id == upload_id, uploads.c.account_id == account_id)
    return (await conn.execute(query.where(uploads.c.state == UploadState.RECEIVING))).first() is not None


async def end_upload(conn: AsyncConnection, upload_id: str, event: str, now: int) -> None:
    """Move an upload that is in progress by "store" or "abandon".

    Raises:
        StateConflict: it has ended already.
    """
    await transition(conn, UPLOAD, upload_id, from_state=UploadState.RECEIVING, event=event, now=now)


async def broken_off(conn: AsyncConnection, before: int, limit: int) -> Sequence[UploadRecord]:
    """Some uploads in progress that began before a time."""
    query = select(*_COLUMNS).where(uploads.c.state == UploadState.RECEIVING, uploads.c.created_at < before)
    return [UploadRecord(**row) for row in (await conn.execute(query.limit(limit))).mappings()]
