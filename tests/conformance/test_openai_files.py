"""The file routes through the official client, and by hand where it would not do what others do."""

import asyncio
import hashlib
import json
import logging
from pathlib import Path
from urllib.parse import unquote

import openai
import pytest
from aiohttp import ClientPayloadError, ClientSession, FormData
from customer import START, World, chat_line, jsonl
from specification import row
from yarl import URL

CONTENT = jsonl(chat_line("q1"), chat_line("q2"))


@row("Routes", "POST /files")
@row("Routes", "GET /files/{id}")
@row("Routes", "GET /files/{id}/content")
@row("Decided: objects", "file keys")
async def test_an_uploaded_file_comes_back_byte_for_byte(world: World) -> None:
    async with world.client() as client:
        made = await client.files.create(file=("batch.jsonl", CONTENT), purpose="batch")
        read = await client.files.retrieve(made.id)
        content = await client.files.content(made.id)
    assert made.id.startswith("file-")
    assert read == made
    assert made.to_dict() == {
        "id": made.id,
        "object": "file",
        "bytes": len(CONTENT),
        "created_at": START,
        "filename": "batch.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
        "expires_at": None,
    }
    assert content.read() == CONTENT
    assert content.response.headers["content-type"] == "application/octet-stream"
    assert content.response.headers["etag"] == f'"{hashlib.sha256(CONTENT).hexdigest()}"'
    assert int(content.response.headers["content-length"]) == len(CONTENT)


@row("Decided: objects", "file names")
@row("Cases: call sequences", "file names in Cyrillic and with quotes; upload without a name")
@pytest.mark.parametrize(
    "filename",
    ["строки.jsonl", 'say "hi"; x=1.jsonl', "a\\b.jsonl", "../../etc/passwd", "😀" * 255, "a\r\nX-Evil: 1", "%41"],
)
async def test_a_file_name_is_echoed_as_it_was_sent(sqlite_world: World, filename: str) -> None:
    async with sqlite_world.client() as client:
        made = await client.files.create(file=(filename, CONTENT), purpose="batch")
        listed = [file async for file in client.files.list()]
    assert made.filename == filename
    assert [file.filename for file in listed] == [filename]


@row("Cases: call sequences", "file names in Cyrillic and with quotes; upload without a name")
async def test_a_file_without_a_name_gets_one(world: World) -> None:
    async with world.client() as client:
        made = await client.files.create(file=CONTENT, purpose="batch")
    assert made.filename == "upload"


@row("Decided: routes", "multipart fields")
async def test_fields_come_in_any_order_and_the_file_part_may_be_called_anything(world: World) -> None:
    form = FormData()
    form.add_field("whatever", CONTENT, filename="b.jsonl", content_type="text/plain")
    form.add_field("expires_after[seconds]", "3600")
    form.add_field("purpose", "batch")
    form.add_field("expires_after[anchor]", "created_at")
    async with world.session() as http, http.post("/api/openai/v1/files", data=form) as answer:
        made = await answer.json()
        assert answer.status == 200
    assert (made["filename"], made["bytes"], made["expires_at"]) == ("b.jsonl", len(CONTENT), START + 3600)


@row("Decided: routes", "expires_after and output_expires_after")
async def test_a_file_is_gone_after_its_time(world: World) -> None:
    async with world.client() as client:
        made = await client.files.create(
            file=CONTENT, purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        world.now += 3600
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(made.id)
        await world.sweep()
        assert [file async for file in client.files.list()] == []


@row("Routes", "DELETE /files/{id}")
async def test_a_deleted_file_is_gone(world: World) -> None:
    async with world.client() as client:
        made = await client.files.create(file=CONTENT, purpose="batch")
        gone = await client.files.delete(made.id)
        assert gone.to_dict() == {"id": made.id, "object": "file", "deleted": True}
        for call in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError) as refused:
                await call(made.id)
            assert refused.value.code == "file_not_found"


@row("Decided: routes", "another account's id")
@row("Cases: call sequences", "another account reads, cancels, downloads")
async def test_another_account_sees_nothing(world: World) -> None:
    async with world.client() as client, world.client(await world.open_account()) as stranger:
        made = await client.files.create(file=CONTENT, purpose="batch")
        for call in (stranger.files.retrieve, stranger.files.content, stranger.files.delete):
            with pytest.raises(openai.NotFoundError):
                await call(made.id)
        assert [file async for file in stranger.files.list()] == []
        assert (await client.files.retrieve(made.id)).id == made.id


@row("Decided: routes", "GET /files?after&limit&order&purpose")
async def test_every_page_of_a_list_ends_and_nothing_comes_twice(world: World) -> None:
    async with world.client() as client:
        made = []
        for number in range(25):
            world.now += number % 2  # ties in created_at
            made.append((await client.files.create(file=(f"{number}", b"{}"), purpose="batch")).id)
        newest_first = [file async for file in client.files.list(limit=10)]
        oldest_first = [file.id async for file in client.files.list(limit=10, order="asc")]
        assert sorted(oldest_first) == sorted(made)
        assert [file.id for file in newest_first] == oldest_first[::-1]
        assert [file.created_at for file in newest_first] == sorted((f.created_at for f in newest_first), reverse=True)
        page = await client.files.list(limit=25)
        assert page.has_more is False
        assert (page.data[0].id, page.data[-1].id) == (page.to_dict()["first_id"], page.to_dict()["last_id"])
        assert [file async for file in client.files.list(purpose="batch_output")] == []


@row("Decided: routes", "GET /files?after&limit&order&purpose")
@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("limit=0", "invalid_limit", "limit"),
        ("limit=101", "invalid_limit", "limit"),
        ("limit=ten", "invalid_limit", "limit"),
        ("limit=%EF%BC%91", "invalid_limit", "limit"),
        ("order=up", "invalid_order", "order"),
        ("after=file-nowhere", "invalid_after", "after"),
        ("before=x", "unknown_parameter", "before"),
    ],
)
async def test_a_list_parameter_out_of_range_is_named(sqlite_world: World, query: str, code: str, param: str) -> None:
    async with sqlite_world.session() as http, http.get(f"/api/openai/v1/files?{query}") as answer:
        error = (await answer.json())["error"]
        assert answer.status == 400
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"purpose": "fine-tune"}, "invalid_purpose", "purpose"),
        ({}, "missing_required_parameter", "purpose"),
        ({"purpose": "batch", "colour": "red"}, "unknown_parameter", "colour"),
        ({"purpose": "batch", "expires_after[anchor]": "now"}, "invalid_expires_after", "expires_after[anchor]"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            "invalid_expires_after",
            "expires_after[seconds]",
        ),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "2592001"},
            "invalid_expires_after",
            "expires_after[seconds]",
        ),
    ],
)
async def test_a_form_that_is_refused_leaves_nothing(
    sqlite_world: World, fields: dict[str, str], code: str, param: str
) -> None:
    form = FormData()
    form.add_field("file", CONTENT, filename="a.jsonl")
    for name, value in fields.items():
        form.add_field(name, value)
    async with sqlite_world.session() as http, http.post("/api/openai/v1/files", data=form) as answer:
        error = (await answer.json())["error"]
        assert answer.status == 400
    assert (error["code"], error["param"]) == (code, param)
    async with sqlite_world.client() as client:
        assert [file async for file in client.files.list()] == []


async def test_a_form_without_a_file_is_refused(sqlite_world: World) -> None:
    form = FormData({"purpose": "batch"}, default_to_multipart=True)
    async with sqlite_world.session() as http, http.post("/api/openai/v1/files", data=form) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, "missing_required_parameter")


@row("Error codes", "411 length_required")
async def test_an_upload_needs_its_length(sqlite_world: World) -> None:
    async def chunks():  # type: ignore[no-untyped-def]
        yield b"--x--"

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    async with (
        sqlite_world.session() as http,
        http.post("/api/openai/v1/files", data=chunks(), headers=headers) as answer,
    ):
        assert (answer.status, (await answer.json())["error"]["code"]) == (411, "length_required")


@row("Error codes", "413 file_too_large")
@pytest.mark.parametrize("size", [1024 * 1024 + 1, 3 * 1024 * 1024])
async def test_a_file_over_the_limit_is_refused_once_and_nothing_is_kept(small_world: World, size: int) -> None:
    async with small_world.client() as client:
        exact = await client.files.create(file=b"x" * 1024 * 1024, purpose="batch")
        with pytest.raises(openai.APIStatusError) as refused:
            await client.files.create(file=b"x" * size, purpose="batch")
        assert (refused.value.status_code, refused.value.code) == (413, "file_too_large")
        assert [file.id async for file in client.files.list()] == [exact.id]


@row("Decided: routes", "content")
async def test_single_ranges_are_served(sqlite_world: World) -> None:
    async with sqlite_world.client() as client:
        made = await client.files.create(file=CONTENT, purpose="batch")
    path = f"/api/openai/v1/files/{made.id}/content"
    async with sqlite_world.session() as http:
        async with http.get(path, headers={"Range": "bytes=5-9", "Accept": "image/png"}) as answer:
            assert (answer.status, await answer.read()) == (206, CONTENT[5:10])
            assert answer.headers["Content-Range"] == f"bytes 5-9/{len(CONTENT)}"
        async with http.get(path, headers={"Range": "bytes=5-9", "If-Range": '"other"'}) as answer:
            assert (answer.status, await answer.read()) == (200, CONTENT)
        async with http.get(path, headers={"Range": f"bytes={len(CONTENT)}-"}) as answer:
            assert answer.status == 416
            assert answer.headers["Content-Range"] == f"bytes */{len(CONTENT)}"
            assert (await answer.json())["error"]["code"] == "range_not_satisfiable"


@row("Error codes", "401 invalid_api_key")
@pytest.mark.parametrize(
    ("authorization", "status", "code"),
    [
        (None, 401, "invalid_api_key"),
        ("Bearer", 401, "invalid_api_key"),
        ("Bearer rk-unknown", 401, "invalid_api_key"),
        ("Bearer \u00e9", 401, "invalid_api_key"),
        ("Basic abc", 401, "invalid_api_key"),
    ],
)
async def test_a_request_needs_a_key(sqlite_world: World, authorization: str | None, status: int, code: str) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    async with ClientSession(sqlite_world.url, headers=headers) as http, http.get("/api/v1/balance") as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (status, code)
        assert answer.headers["x-request-id"]


@row("Error codes", "403 insufficient_scope")
async def test_a_key_needs_the_scope(world: World) -> None:
    async with world.client(await world.open_account(scopes=["other:read"])) as client:
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await client.files.list()
    assert refused.value.code == "insufficient_scope"


@row("Decided: objects", "x-request-id")
async def test_unknown_routes_and_methods_have_openais_shape_and_an_id(sqlite_world: World) -> None:
    async with sqlite_world.session() as http:
        for method, path, status in (
            ("GET", "/api/openai/v1/models", 404),
            ("GET", "/nothing", 404),
            ("PATCH", "/api/openai/v1/files", 405),
        ):
            async with http.request(method, path) as answer:
                body = json.loads(await answer.text())
                assert answer.status == status
                assert set(body["error"]) == {"message", "type", "param", "code"}
                assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("odd", ["%00", "file-a%00b", "%FF", "%ED%A0%80", "%F0%9F%98%80", "x" * 5000])
async def test_no_id_however_odd_is_more_than_unknown(world: World, odd: str) -> None:
    async with world.session() as http:
        for path in (f"files/{odd}", f"files/{odd}/content", f"batches/batch_{odd}"):
            async with http.get(URL(f"{world.openai_url}/{path}", encoded=True)) as answer:
                assert answer.status == 404
        for path in (f"files?after={odd}", f"batches?after=batch_{odd}"):
            async with http.get(URL(f"{world.openai_url}/{path}", encoded=True)) as answer:
                assert (answer.status, (await answer.json())["error"]["param"]) == (400, "after")
        body = {"input_file_id": unquote(odd, errors="replace"), "endpoint": "/v1/completions"}
        async with http.post("/api/openai/v1/batches", json={**body, "completion_window": "24h"}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, "file_not_found")


async def test_health_and_metrics_need_no_key(world: World) -> None:
    async with ClientSession(world.url) as http:
        async with http.get("/healthz") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ok"})
        async with http.get("/metrics") as answer:
            assert "reliquary_transitions_total" in await answer.text()


async def test_a_download_that_breaks_never_ends_in_something_else(sqlite_world: World, tmp_path: Path) -> None:
    async with sqlite_world.client(max_retries=0) as client:
        made = await client.files.create(file=b"x" * 3_000_000, purpose="batch")
        stored = tmp_path / "blobs" / "files" / made.id
        stored.write_bytes(b"x" * 2_000_000)
    async with sqlite_world.session() as http:
        with pytest.raises(ClientPayloadError):
            async with http.get(f"/api/openai/v1/files/{made.id}/content") as answer:
                await answer.read()


@row("Error codes", "503 batch_unavailable")
async def test_a_file_whose_bytes_cannot_be_read_is_a_503(sqlite_world: World, tmp_path: Path) -> None:
    async with sqlite_world.client(max_retries=0) as client:
        made = await client.files.create(file=b"x" * 1000, purpose="batch")
        (tmp_path / "blobs" / "files" / made.id).write_bytes(b"x")
        with pytest.raises(openai.InternalServerError) as refused:
            await client.files.content(made.id)
    assert (refused.value.status_code, refused.value.code) == (503, "batch_unavailable")


async def test_a_file_is_deleted_also_while_its_bytes_cannot_be(world: World, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    async with world.client(max_retries=0) as client:
        made = await client.files.create(file=CONTENT, purpose="batch")
        (blobs / "files").rename(blobs / "away")
        (blobs / "files").write_text("a file where a folder should be")
        assert (await client.files.delete(made.id)).deleted
        assert (await client.files.list()).data == []
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(made.id)
        (blobs / "files").unlink()
        (blobs / "away").rename(blobs / "files")
        await world.sweep()
    assert list((blobs / "files").iterdir()) == []


async def test_an_upload_that_breaks_off_leaves_nothing_and_is_no_fault_of_ours(
    sqlite_world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = URL(sqlite_world.url)
    _, writer = await asyncio.open_connection(address.host, address.port)
    head = f"POST /api/openai/v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {sqlite_world.api_key}\r\n"
    head += "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 100000\r\n\r\n"
    part = '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + "a" * 50_000
    writer.write((head + part).encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with sqlite_world.client() as client:
        await client.files.create(file=CONTENT, purpose="batch")
        assert len([file async for file in client.files.list()]) == 1
    assert len(list((tmp_path / "blobs" / "files").iterdir())) == 1
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
