"""Files of an account: storing what is uploaded, reading it back, deleting it."""

import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from gateway.core.identifiers import can_be_id
from gateway.db.blobs import StoredBlob
from gateway.db.files import FileRecord, Page, find_file, insert_file, list_files, mark_deleted
from gateway.errors import NotFound, TooLarge
from gateway.services import Services

BATCH_PURPOSE = "batch"
OUTPUT_PURPOSE = "batch_output"


@dataclass(frozen=True)
class ReceivedContent:
    """Bytes that lie in the blob store under the id of a file that does not exist yet."""

    file_id: str
    blob_key: str
    blob: StoredBlob


@dataclass(frozen=True)
class FileRequest:
    """What the customer says of an uploaded file; expires_after_seconds counts from its creation."""

    filename: str
    purpose: str
    expires_after_seconds: int | None


def blob_key_of(file_id: str) -> str:
    """Where a file's bytes lie."""
    return f"files/{file_id}"


async def receive_content(services: Services, content: AsyncIterator[bytes]) -> ReceivedContent:
    """Write an upload to the blob store as it arrives.

    Raises:
        TooLarge: file_too_large as soon as the limit is passed; nothing is kept.
    """
    file_id = f"file-{secrets.token_urlsafe(18)}"
    key = blob_key_of(file_id)
    blob = await services.blobs.put_stream(key, _limited(content, services.settings.upload_limit_bytes))
    return ReceivedContent(file_id, key, blob)


async def _limited(content: AsyncIterator[bytes], limit_bytes: int) -> AsyncIterator[bytes]:
    total = 0
    async for chunk in content:
        total += len(chunk)
        if total > limit_bytes:
            raise file_too_large(limit_bytes)
        yield chunk


def file_too_large(limit_bytes: int) -> TooLarge:
    """The refusal of an upload over the limit."""
    return TooLarge("file_too_large", f"a file uploaded here has at most {limit_bytes} bytes", param="file")


async def create_file(
    services: Services, account_id: str, received: ReceivedContent, request: FileRequest, now: int
) -> FileRecord:
    """Make received content a file of the account.

    The bytes are in the store before the row exists, so a row never names bytes that are not there; dying between
    the two leaves bytes that nothing names.
    """
    expires_at = None if request.expires_after_seconds is None else now + request.expires_after_seconds
    record = FileRecord(
        id=received.file_id,
        account_id=account_id,
        filename=request.filename,
        purpose=request.purpose,
        bytes=received.blob.bytes,
        sha256=received.blob.sha256,
        blob_key=received.blob_key,
        created_at=now,
        expires_at=expires_at,
        deleted_at=None,
    )
    async with services.database.transaction() as connection:
        await insert_file(connection, record)
    return record


async def discard_content(services: Services, received: ReceivedContent) -> None:
    """Drop received content that will not become a file."""
    await services.blobs.delete(received.blob_key)


def file_not_found(file_id: str, param: str) -> NotFound:
    """The refusal of an id that names no file of the account."""
    return NotFound("file_not_found", f"there is no file {file_id}", param=param)


async def get_file(
    services: Services, account_id: str, file_id: str, now: int, *, param: str = "file_id"
) -> FileRecord:
    """A file of the account; param is the request's field that named it.

    Raises:
        NotFound: file_not_found when there is none, it was deleted, it expired or it is another account's.
    """
    if not can_be_id(file_id):
        raise file_not_found(file_id, param)
    async with services.database.snapshot() as connection:
        record = await find_file(connection, account_id, file_id)
    if record is None or record.deleted_at is not None or is_expired(record, now):
        raise file_not_found(file_id, param)
    return record


def is_expired(record: FileRecord, now: int) -> bool:
    """Whether the file's time is over."""
    return record.expires_at is not None and record.expires_at <= now


async def get_files(services: Services, account_id: str, page: Page) -> tuple[Sequence[FileRecord], bool]:
    """A page of the account's files, and whether there are more after it.

    Raises:
        UnknownCursor: when page.after is no file of the account.
    """
    async with services.database.snapshot() as connection:
        records = await list_files(connection, account_id, replace(page, limit=page.limit + 1))
    return records[: page.limit], len(records) > page.limit


async def delete_file(services: Services, account_id: str, file_id: str, now: int) -> None:
    """Delete a file of the account; a batch that was created from it is unaffected.

    Raises:
        NotFound: as get_file.
    """
    record = await get_file(services, account_id, file_id, now)
    async with services.database.transaction() as connection:
        await mark_deleted(connection, account_id, record.id, now)
    await services.blobs.delete(record.blob_key)
