"""Files of an account: storing what is uploaded, reading it back, deleting it."""

import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from gateway.core.identifiers import can_be_id
from gateway.db.blobs import StoredBlob
from gateway.db.files import FileRecord, Page, find_file, insert_file, list_files, mark_deleted, mark_expired
from gateway.db.uploads import UploadRecord, end_upload, insert_upload, is_receiving
from gateway.errors import Conflict, NotFound, TooLarge, Unavailable, retry_after
from gateway.services import Services

log = logging.getLogger("reliquary.gateway")

BATCH_PURPOSE = "batch"
OUTPUT_PURPOSE = "batch_output"
UPLOAD_RETRY_SECONDS = 5


@dataclass(frozen=True)
class FileRequest:
    """What the customer says of an uploaded file; expires_after_seconds counts from its creation."""

    filename: str
    purpose: str
    expires_after_seconds: int | None


def blob_key_of(file_id: str) -> str:
    """Where a file's bytes lie."""
    return f"files/{file_id}"


async def begin_upload(services: Services, account_id: str, now: int) -> UploadRecord:
    """Write down that bytes are going to arrive, so that none of them can be forgotten."""
    file_id = f"file-{secrets.token_urlsafe(18)}"
    upload = UploadRecord(file_id, account_id, blob_key_of(file_id), now)
    async with services.database.transaction() as connection:
        await insert_upload(connection, upload, now)
    return upload


async def receive_content(services: Services, upload: UploadRecord, content: AsyncIterator[bytes]) -> StoredBlob:
    """Write an upload to the blob store as it arrives.

    Raises:
        TooLarge: file_too_large as soon as the limit is passed.
    """
    return await services.blobs.put_stream(upload.blob_key, _limited(content, services.settings.upload_limit_bytes))


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
    services: Services, upload: UploadRecord, blob: StoredBlob, request: FileRequest, now: int
) -> FileRecord:
    """Make a received upload a file of its account.

    The bytes are in the store before the row exists, so a row never names bytes that are not there; dying between
    the two leaves an upload in progress, whose bytes the sweeper drops.
    """
    expires_at = None if request.expires_after_seconds is None else now + request.expires_after_seconds
    record = FileRecord(
        id=upload.id,
        account_id=upload.account_id,
        filename=request.filename,
        purpose=request.purpose,
        bytes=blob.bytes,
        sha256=blob.sha256,
        blob_key=upload.blob_key,
        created_at=now,
        expires_at=expires_at,
        deleted_at=None,
    )
    async with services.database.transaction() as connection:
        await end_upload(connection, upload.id, "store", now)
        await insert_file(connection, record)
    return record


async def abandon_upload(services: Services, upload: UploadRecord, now: int) -> None:
    """Drop an upload that will not become a file: its bytes first, so that dying in between forgets none."""
    await services.blobs.delete(upload.blob_key)
    async with services.database.transaction() as connection:
        await end_upload(connection, upload.id, "abandon", now)


def file_not_found(file_id: str, param: str) -> NotFound:
    """The refusal of an id that names no file of the account."""
    return NotFound("file_not_found", f"there is no file {file_id}", param=param)


async def get_file(
    services: Services, account_id: str, file_id: str, now: int, *, param: str = "file_id"
) -> FileRecord:
    """A file of the account; param is the request's field that named it.

    Raises:
        NotFound: file_not_found when there is none, it was deleted, it expired or it is another account's.
        Conflict: file_not_ready while it is being uploaded.
    """
    if not can_be_id(file_id):
        raise file_not_found(file_id, param)
    async with services.database.snapshot() as connection:
        record = await find_file(connection, account_id, file_id)
        uploading = record is None and await is_receiving(connection, account_id, file_id)
    if uploading:
        message = f"the upload of {file_id} is still in progress"
        raise Conflict("file_not_ready", message, param=param, retry=retry_after(UPLOAD_RETRY_SECONDS))
    if record is None or record.deleted_at is not None or is_expired(record, now):
        raise file_not_found(file_id, param)
    return record


def is_expired(record: FileRecord, now: int) -> bool:
    """Whether the file's time is over."""
    return record.expires_at is not None and record.expires_at <= now


async def get_files(services: Services, account_id: str, page: Page, now: int) -> tuple[Sequence[FileRecord], bool]:
    """A page of the account's files that have not expired, and whether there are more after it.

    Raises:
        UnknownCursor: when page.after is no file of the account.
    """
    async with services.database.snapshot() as connection:
        records = await list_files(connection, account_id, replace(page, limit=page.limit + 1), now)
    return records[: page.limit], len(records) > page.limit


async def delete_file(services: Services, account_id: str, file_id: str, now: int) -> None:
    """Delete a file of the account; a batch that was created from it is unaffected.

    From the first step on the file has expired: nobody sees it any more; what this does not finish, the sweeper does.

    Raises:
        NotFound, Conflict: as get_file.
    """
    record = await get_file(services, account_id, file_id, now)
    async with services.database.transaction() as connection:
        await mark_expired(connection, record.id, now)
    try:
        await drop_file(services, record, now)
    except Unavailable:
        log.warning("a deleted file's bytes stay for now", extra={"action": "delete_file", "file_id": file_id})


async def drop_file(services: Services, record: FileRecord, now: int) -> None:
    """Drop an expired file: the bytes first, so that dying in between forgets none.

    Raises:
        Unavailable: the file store refuses.
    """
    await services.blobs.delete(record.blob_key)
    async with services.database.transaction() as connection:
        await mark_deleted(connection, record.account_id, record.id, now)
