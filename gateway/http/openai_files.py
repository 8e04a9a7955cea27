"""OpenAI's file routes: upload, list, read, download, delete."""

from contextlib import AsyncExitStack
from typing import Annotated, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from gateway import files
from gateway.db.blobs import StoredBlob
from gateway.db.files import FileRecord
from gateway.db.paging import UnknownCursor
from gateway.db.uploads import UploadRecord
from gateway.errors import InvalidRequest, LengthRequired
from gateway.files import FileRequest, file_too_large
from gateway.http.auth import require_orders_allowed
from gateway.http.bodies import Digits, Headers, Input, validate
from gateway.http.keys import CLOCK, Clock, account_of, now_of, services_of
from gateway.http.listing import FilesQuery, Listed, ListObject, unknown_cursor
from gateway.http.multipart import FormReader, Part, boundary_of, malformed
from gateway.http.ranges import read_range
from gateway.services import Services

DEFAULT_FILENAME = "upload"
MAX_FIELD_BYTES = 4096
# Room for boundaries, part headers and the small fields around the file.
FORM_OVERHEAD_BYTES = 64 * 1024
MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS = 3600, 30 * 24 * 3600
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"


class FileObject(Listed):
    """OpenAI's file object; times in Unix seconds."""

    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"
    status_details: None = None
    expires_at: int | None


class FileList(ListObject[FileObject]):
    """A page of files."""


class DeletedFile(BaseModel):
    """What is left of a file."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class UploadFields(Input):
    """The fields of an upload's form beside its file."""

    purpose: Annotated[Literal["batch"], Field(description="must be batch")]
    expires_anchor: Annotated[Literal["created_at"] | None, Field(alias=_ANCHOR, description="must be created_at")] = (
        None
    )
    expires_seconds: Annotated[
        Digits | None,
        Field(
            alias=_SECONDS,
            ge=MIN_EXPIRY_SECONDS,
            le=MAX_EXPIRY_SECONDS,
            description=f"a number from {MIN_EXPIRY_SECONDS} to {MAX_EXPIRY_SECONDS}",
        ),
    ] = None

    codes = {_ANCHOR: "invalid_expires_after", _SECONDS: "invalid_expires_after"}  # noqa: RUF012 - as declared


class ContentHeaders(Headers):
    """Which bytes of a file."""

    byte_range: Annotated[str | None, Field(alias="Range", description="a single range of bytes")] = None
    if_range: Annotated[
        str | None, Field(alias="If-Range", description="the ETag of the version that the range is of")
    ] = None


def file_object(record: FileRecord) -> FileObject:
    """The object of a file."""
    return FileObject(
        id=record.id,
        bytes=record.bytes,
        created_at=record.created_at,
        filename=record.filename,
        purpose=record.purpose,
        expires_at=record.expires_at,
    )


async def upload_file(request: web.Request) -> FileObject:
    """Upload a JSONL file."""
    require_orders_allowed(request)
    services = services_of(request)
    _require_length(request, services.settings.upload_limit_bytes)
    boundary = boundary_of(request.headers.get("Content-Type", ""))
    form = _Upload(services, account_of(request), request.app[CLOCK])
    async with AsyncExitStack() as undo:
        undo.push_async_callback(form.abandon)
        async for part in FormReader(request.content.iter_any(), boundary).parts():
            await form.take(part)
        record = await form.store()
        undo.pop_all()
    return file_object(record)


class _Upload:
    """The form as far as it was read: its text fields and, once it came, its file, as it arrives."""

    def __init__(self, services: Services, account_id: str, clock: Clock) -> None:
        self._services = services
        self._account_id = account_id
        self._clock = clock
        self._fields: dict[str, str] = {}
        self._filename: str | None = None
        self._upload: UploadRecord | None = None
        self._blob: StoredBlob | None = None

    async def take(self, part: Part) -> None:
        """Read a part; fields come in any order, and the file may be called anything.

        Raises:
            InvalidRequest: for a field that cannot be used.
            TooLarge: file_too_large.
        """
        if part.names.filename is not None or part.names.field == "file":
            await self._take_file(part)
        else:
            await self._take_field(part)

    async def _take_file(self, part: Part) -> None:
        if self._upload is not None:
            raise malformed("the form has more than one file")
        self._filename = part.names.filename
        self._upload = await files.begin_upload(self._services, self._account_id, self._clock())
        self._blob = await files.receive_content(self._services, self._upload, part.content)

    async def _take_field(self, part: Part) -> None:
        name = part.names.field
        if name not in UploadFields.names():
            raise InvalidRequest("unknown_parameter", f"unknown parameter: {name[:200]}", param=name)
        if name in self._fields:
            raise malformed(f"the field {name} came twice")
        self._fields[name] = await _text(part)
        if name == "purpose":  # what could be known before the file need not wait for it
            validate(UploadFields, {"purpose": self._fields[name]})

    async def store(self) -> FileRecord:
        """Make the file, once the whole form was read.

        Raises:
            InvalidRequest: when something is missing or out of range.
        """
        if self._upload is None or self._blob is None:
            raise InvalidRequest("missing_required_parameter", "the form has no file", param="file")
        fields = validate(UploadFields, self._fields)
        if (fields.expires_anchor is None) != (fields.expires_seconds is None):
            message = f"{_ANCHOR} and {_SECONDS} come together"
            raise InvalidRequest("invalid_expires_after", message, param=_ANCHOR)
        asked = FileRequest(self._filename or DEFAULT_FILENAME, fields.purpose, fields.expires_seconds)
        return await files.create_file(self._services, self._upload, self._blob, asked, self._clock())

    async def abandon(self) -> None:
        """Drop what was stored."""
        if self._upload is not None:
            await files.abandon_upload(self._services, self._upload, self._clock())


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


async def list_files(request: web.Request, query: FilesQuery) -> FileList:
    """List files, the most recent first."""
    try:
        page, now = query.page(), now_of(request)
        records, has_more = await files.get_files(services_of(request), account_of(request), page, now)
    except UnknownCursor as error:
        raise unknown_cursor(query.after) from error
    return FileList.of([file_object(record) for record in records], has_more=has_more)


async def get_file(request: web.Request) -> FileObject:
    """Read a file's object."""
    return file_object(await _record(request))


async def delete_file(request: web.Request) -> DeletedFile:
    """Delete a file; a batch that was made from it goes on."""
    file_id = request.match_info["file_id"]
    await files.delete_file(services_of(request), account_of(request), file_id, now_of(request))
    return DeletedFile(id=file_id)


async def get_content(request: web.Request, headers: ContentHeaders) -> web.StreamResponse:
    """Download a file's bytes, or a range of them."""
    record = await _record(request)
    etag = f'"{record.sha256}"'
    # A range of another version of the file would be spliced into something that never existed (RFC 9110 §13.1.5).
    is_same_version = headers.if_range in (None, etag)
    wanted = read_range(headers.byte_range, record.bytes) if is_same_version else None
    start, length = (0, record.bytes) if wanted is None else (wanted.start, wanted.length)
    response = web.StreamResponse(status=200 if wanted is None else 206)
    response.content_type = "application/octet-stream"
    response.content_length = length
    response.headers["ETag"] = etag
    response.headers["Accept-Ranges"] = "bytes"
    if wanted is not None:
        response.headers["Content-Range"] = wanted.content_range
    chunks = services_of(request).blobs.stream(record.blob_key, start, length)
    first = await anext(chunks, b"")  # a store that refuses can still be an answer of its own
    await response.prepare(request)
    await response.write(first)
    async for chunk in chunks:
        await response.write(chunk)
    await response.write_eof()
    return response


async def _record(request: web.Request) -> FileRecord:
    file_id = request.match_info["file_id"]
    return await files.get_file(services_of(request), account_of(request), file_id, now_of(request))
