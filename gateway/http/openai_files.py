"""OpenAI's file routes: upload, list, read, download, delete."""

from contextlib import AsyncExitStack
from typing import Any

from aiohttp import web

from gateway import files
from gateway.db.files import FileRecord
from gateway.db.paging import UnknownCursor
from gateway.errors import InvalidRequest, LengthRequired
from gateway.files import FileRequest, ReceivedContent, file_too_large
from gateway.http.keys import account_of, now_of, services_of
from gateway.http.listing import list_object, read_page, unknown_cursor
from gateway.http.multipart import FormReader, Part, boundary_of, malformed
from gateway.http.ranges import read_range
from gateway.services import Services

DEFAULT_LIMIT = 100
DEFAULT_FILENAME = "upload"
MAX_FIELD_BYTES = 4096
# Room for boundaries, part headers and the small fields around the file.
FORM_OVERHEAD_BYTES = 64 * 1024
MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS = 3600, 30 * 24 * 3600
_LIST_PARAMETERS = frozenset({"after", "limit", "order", "purpose"})
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = frozenset({"purpose", _ANCHOR, _SECONDS})


def file_object(record: FileRecord) -> dict[str, Any]:
    """OpenAI's file object."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.bytes,
        "created_at": record.created_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
        "expires_at": record.expires_at,
    }


async def upload_file(request: web.Request) -> web.Response:
    """Store the file of a multipart form as it arrives."""
    services = services_of(request)
    _require_length(request, services.settings.upload_limit_bytes)
    received, file_request = await _read_upload(request, services)
    record = await files.create_file(services, account_of(request), received, file_request, now_of(request))
    return web.json_response(file_object(record))


class _Upload:
    """The form as far as it was read: its text fields and, once it came, its file."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.received: ReceivedContent | None = None

    def complete(self) -> tuple[ReceivedContent, FileRequest]:
        """The stored file and what the fields say of it.

        Raises:
            InvalidRequest: when something is missing or out of range.
        """
        if self.received is None:
            raise InvalidRequest("missing_required_parameter", "the form has no file", param="file")
        if "purpose" not in self.fields:
            raise InvalidRequest("invalid_purpose", "purpose must be batch", param="purpose")
        filename = self.filename or DEFAULT_FILENAME
        return self.received, FileRequest(filename, self.fields["purpose"], _expiry(self.fields))

    async def take_file(self, services: Services, part: Part) -> ReceivedContent:
        """Store the file; a second one is refused."""
        if self.received is not None:
            raise malformed("the form has more than one file")
        self.filename = part.names.filename
        self.received = await files.receive_content(services, part.content)
        return self.received

    async def take_field(self, part: Part) -> None:
        """Keep a text field and check at once what can be checked alone."""
        name = part.names.field
        if name not in _FIELDS:
            raise InvalidRequest("unknown_parameter", f"unknown parameter: {name}", param=name)
        if name in self.fields:
            raise malformed(f"the field {name} came twice")
        self.fields[name] = await _text(part)
        if name == "purpose" and self.fields[name] != files.BATCH_PURPOSE:
            raise InvalidRequest("invalid_purpose", "purpose must be batch", param="purpose")


async def _read_upload(request: web.Request, services: Services) -> tuple[ReceivedContent, FileRequest]:
    """Read the whole form, its fields in any order; what was stored of a form that is refused is dropped."""
    boundary = boundary_of(request.headers.get("Content-Type", ""))
    upload = _Upload()
    async with AsyncExitStack() as undo:
        async for part in FormReader(request.content.iter_any(), boundary).parts():
            if part.names.filename is not None or part.names.field == "file":
                undo.push_async_callback(files.discard_content, services, await upload.take_file(services, part))
            else:
                await upload.take_field(part)
        complete = upload.complete()
        undo.pop_all()
    return complete


def _require_length(request: web.Request, limit_bytes: int) -> None:
    if request.content_length is None:
        raise LengthRequired("length_required", "send the upload with a Content-Length")
    if request.content_length > limit_bytes + FORM_OVERHEAD_BYTES:
        raise file_too_large(limit_bytes)


async def _text(part: Part) -> str:
    data = bytearray()
    async for chunk in part.content:
        data += chunk
        if len(data) > MAX_FIELD_BYTES:
            raise malformed(f"the field {part.names.field} is too long")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"the field {part.names.field} is not UTF-8 text") from error


def _expiry(fields: dict[str, str]) -> int | None:
    if _ANCHOR not in fields and _SECONDS not in fields:
        return None
    if fields.get(_ANCHOR) != "created_at":
        raise InvalidRequest("invalid_expires_after", "expires_after[anchor] must be created_at", param=_ANCHOR)
    seconds = fields.get(_SECONDS, "")
    is_number = seconds.isascii() and seconds.isdigit() and len(seconds) <= 9
    if not (is_number and MIN_EXPIRY_SECONDS <= int(seconds) <= MAX_EXPIRY_SECONDS):
        message = f"expires_after[seconds] is from {MIN_EXPIRY_SECONDS} to {MAX_EXPIRY_SECONDS}"
        raise InvalidRequest("invalid_expires_after", message, param=_SECONDS)
    return int(seconds)


async def list_files(request: web.Request) -> web.Response:
    """A page of the account's files."""
    page = read_page(request, _LIST_PARAMETERS, DEFAULT_LIMIT)
    try:
        records, has_more = await files.get_files(services_of(request), account_of(request), page)
    except UnknownCursor as error:
        raise unknown_cursor(page.after) from error
    return web.json_response(list_object([file_object(record) for record in records], has_more))


async def get_file(request: web.Request) -> web.Response:
    """One file's object."""
    return web.json_response(file_object(await _record(request)))


async def delete_file(request: web.Request) -> web.Response:
    """Delete a file."""
    file_id = request.match_info["file_id"]
    await files.delete_file(services_of(request), account_of(request), file_id, now_of(request))
    return web.json_response({"id": file_id, "object": "file", "deleted": True})


async def get_content(request: web.Request) -> web.StreamResponse:
    """A file's bytes, or a range of them."""
    record = await _record(request)
    etag = f'"{record.sha256}"'
    # A range of another version of the file would be spliced into something that never existed (RFC 9110 §13.1.5).
    is_same_version = request.headers.get("If-Range", etag) == etag
    wanted = read_range(request.headers.get("Range"), record.bytes) if is_same_version else None
    start, length = (0, record.bytes) if wanted is None else (wanted.start, wanted.length)
    response = web.StreamResponse(status=200 if wanted is None else 206)
    response.content_type = "application/octet-stream"
    response.content_length = length
    response.headers["ETag"] = etag
    response.headers["Accept-Ranges"] = "bytes"
    if wanted is not None:
        response.headers["Content-Range"] = wanted.content_range
    await response.prepare(request)
    async for chunk in services_of(request).blobs.stream(record.blob_key, start, length):
        await response.write(chunk)
    await response.write_eof()
    return response


async def _record(request: web.Request) -> FileRecord:
    file_id = request.match_info["file_id"]
    return await files.get_file(services_of(request), account_of(request), file_id, now_of(request))
