"""Ordering, limits and what is refused: one test for each row about them."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from asking import order_of, place, upload
from customer import START, World, chat_line, five_tokens, jsonl, running_world
from specification import row
from sqlalchemy import func, select

from gateway.db import schema
from gateway.db.accounts import create_account, create_api_key
from gateway.db.engine import Database
from gateway.files import begin_upload

FILES, BATCHES = "/api/openai/v1/files", "/api/openai/v1/batches"
MIB = 1024 * 1024


@asynccontextmanager
async def counting(world: World, path: str) -> AsyncIterator[tuple[openai.AsyncOpenAI, list[int]]]:
    """The official client, and the statuses of all answers (also to its retries) whose path ends so."""
    seen: list[int] = []

    async def note(response: Any) -> None:
        if response.request.url.path.endswith(path):
            seen.append(response.status_code)

    async with world.client() as client:
        client._client.event_hooks["response"].append(note)
        yield client, seen


@row("Routes", "GET /files")
async def test_the_100_most_recent_files_are_listed(world: World) -> None:
    async with world.client() as client:
        ids = []
        for _ in range(101):
            world.now += 1
            ids.append(await upload(client, b"{}"))
        page = await client.files.list()
        assert [file.id for file in page.data] == ids[:0:-1]
        assert page.has_more is True


@row("Routes", "GET /batches/{id}")
@row("Decided: objects", "ids")
async def test_ids_say_what_they_are_of_and_need_no_escaping(world: World) -> None:
    async with world.client() as client:
        made = await place(client, jsonl(chat_line("q1")))
        assert (await client.batches.retrieve(made.id)).id == made.id
        await world.finish(five_tokens)
        ended = await client.batches.retrieve(made.id)
        line = json.loads((await client.files.content(str(ended.output_file_id))).text)
    body = line["response"]["body"]
    for name, prefix in (
        (made.id, "batch_"),
        (made.input_file_id, "file-"),
        (str(ended.output_file_id), "file-"),
        (line["id"], "batch_req_"),
        (body["id"], "chatcmpl-"),
    ):
        assert re.fullmatch(rf"{prefix}[A-Za-z0-9_-]{{8,}}", name)
    assert (await order_of(world, made))["id"] == made.id.removeprefix("batch_")


@row("Decided: routes", "DELETE /files/{id}")
async def test_a_running_batch_goes_on_without_its_file(world: World) -> None:
    async with world.client() as client:
        made = await place(client, jsonl(chat_line("q1")))
        deleted = await client.files.delete(made.input_file_id)
        assert deleted.to_dict() == {"id": made.input_file_id, "object": "file", "deleted": True}
        await world.finish(five_tokens)
        assert (await client.batches.retrieve(made.id)).status == "completed"


@row("Batch states", "failed")
async def test_a_batch_that_can_never_be_delivered_fails_with_its_reason_and_costs_nothing(
    world: World, tmp_path: Path
) -> None:
    async with world.client() as client:
        made = await place(client, jsonl(chat_line("q1")))
        while await world.work(five_tokens):
            pass
        (kept,) = (tmp_path / "blobs" / "tokenizers").iterdir()
        kept.write_text(json.dumps({**json.loads(kept.read_text()), "tokenizer_json": "{}", "sha256": "broken"}))
        await world.sweep()
        ended = await client.batches.retrieve(made.id)
    assert (ended.status, ended.failed_at, ended.output_file_id) == ("failed", START, None)
    assert ended.errors is not None
    assert ended.errors.data is not None
    assert ended.errors.data[0].code == "model_unsupported"
    assert ended.request_counts is not None
    assert ended.request_counts.failed == 1
    order = await order_of(world, made)
    assert order["refunded_micro"] == order["price_micro"]


@row("Price, reservation and refund", "reservation")
@row("Decided: money", "ledger")
async def test_the_worst_case_is_reserved_and_what_was_not_verified_is_released(world: World) -> None:
    lines = [chat_line(f"q{n}", n=3, max_tokens=16_000) for n in range(40)]
    async with world.client() as client:
        made = await place(client, jsonl(*lines))
        order = await order_of(world, made)
        assert order["pricing"]["max_completion_tokens"] == 40 * 3 * 16_000
        parts = [order["pricing"][f"{part}_micro"] for part in ("gpu", "prompt", "completion", "margin")]
        assert order["price_micro"] == sum(parts) >= 10_000
        await world.finish(five_tokens)
        ended = await order_of(world, made)
    # Of the completion tokens 5 of 16,000 a sample are paid, of the rest all.
    unverified = order["pricing"]["completion_micro"] * (1 - 5 / 16_000)
    assert ended["refunded_micro"] == pytest.approx(unverified * 1.2, abs=3)
    async with world.services.database.snapshot() as connection:
        entries = (await connection.execute(select(func.sum(schema.entries.c.amount_micro)))).scalar_one()
    assert entries == 0


@row("Cancel and list", "cancel a finalizing or ended batch")
@row("Decided: retries", "permanent refusals")
@row("Cases: call sequences", "409 or order_limit through the SDK")
async def test_what_cannot_succeed_is_asked_once(world: World, tmp_path: Path) -> None:
    async with counting(world, "/cancel") as (client, statuses):
        made = await place(client, jsonl(chat_line("q1")))
        while await world.work(five_tokens):
            pass
        (tmp_path / "blobs" / "tokenizers").rename(tmp_path / "away")
        await world.sweep()
        assert (await client.batches.retrieve(made.id)).status == "finalizing"
        with pytest.raises(openai.ConflictError) as refused:
            await client.batches.cancel(made.id)
        (tmp_path / "away").rename(tmp_path / "blobs" / "tokenizers")
        await world.sweep()
        assert (await client.batches.retrieve(made.id)).status == "completed"
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(made.id)
    assert statuses == [409, 409]
    assert refused.value.code == "batch_not_cancellable"
    async with counting(world, "/batches") as (client, statuses):
        for _ in range(5):
            await place(client, jsonl(chat_line("q1")))
        with pytest.raises(openai.RateLimitError):
            await place(client, jsonl(chat_line("q1")))
    assert statuses == [200] * 5 + [429]


@row("Decided: retries", "temporary refusals")
@row("Error codes", "503 model_lookup_unavailable")
async def test_what_may_succeed_later_says_when_and_is_asked_again(sqlite_world: World) -> None:
    async with counting(sqlite_world, "/batches") as (client, statuses):
        file_id = await upload(client, jsonl(chat_line("q1")))
        sqlite_world.hub.is_down = True
        with pytest.raises(openai.InternalServerError) as refused:
            await client.with_options(max_retries=1).batches.create(
                input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
            )
    assert statuses == [503, 503]
    assert refused.value.code == "model_lookup_unavailable"
    assert int(refused.value.response.headers["retry-after"]) == 10
    async with sqlite_world.services.database.snapshot() as connection:  # what was our fault counts against no quota
        assert (await connection.execute(select(func.count()).select_from(schema.quote_requests))).scalar_one() == 0


@row("Error codes", "403 orders_unavailable")
async def test_an_account_without_dataset_access_can_prepare_and_place_no_order(world: World) -> None:
    async with world.services.database.transaction() as connection:
        account_id = await create_account(connection, "new", START)
        key = await create_api_key(connection, account_id, ["orders:write"], START)
    async with world.client(key) as client:
        assert (await client.files.list()).data == []
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await upload(client, b"{}")
        assert refused.value.code == "orders_unavailable"
        with pytest.raises(openai.PermissionDeniedError):
            await client.batches.create(
                input_file_id="file-x", endpoint="/v1/chat/completions", completion_window="24h"
            )


@row("Error codes", "409 file_not_ready")
async def test_a_file_whose_upload_goes_on_is_not_ready(world: World) -> None:
    uploading = await begin_upload(world.services, world.account_id, START)
    async with world.client(max_retries=0) as client, world.client(await world.open_account()) as stranger:
        for call in (client.files.retrieve(uploading.id), client.files.content(uploading.id)):
            with pytest.raises(openai.ConflictError) as refused:
                await call
            assert refused.value.code == "file_not_ready"
            assert int(refused.value.response.headers["retry-after"]) > 0
        with pytest.raises(openai.ConflictError):
            await client.batches.create(
                input_file_id=uploading.id, endpoint="/v1/chat/completions", completion_window="24h"
            )
        with pytest.raises(openai.NotFoundError):
            await stranger.files.retrieve(uploading.id)
        assert (await client.files.list()).data == []


@row("Error codes", "409 order_refused")
async def test_an_order_that_waits_too_long_for_its_account_is_refused_and_may_be_retried(
    tmp_path: Path, database_url: str
) -> None:
    async with running_world(tmp_path, database_url, lock_seconds=0.3) as world, world.client(max_retries=0) as client:
        file_id = await upload(client, jsonl(chat_line("q1")))
        order = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        other = Database.connect(database_url)
        async with other.transaction() as holder:  # another gateway is at this account
            await holder.execute(select(schema.accounts).with_for_update())
            with pytest.raises(openai.ConflictError) as refused:
                await client.batches.create(**order)  # type: ignore[arg-type]
        await other.close()
        assert refused.value.code == "order_refused"
        assert int(refused.value.response.headers["retry-after"]) > 0
        assert (await client.batches.create(**order)).status == "validating"  # type: ignore[arg-type]


@row("Error codes", "503 batch_unavailable")
@row("Cases: faults", "storage refuses a write")
async def test_storage_that_refuses_is_a_503_and_the_retry_with_the_same_key_succeeds(
    world: World, tmp_path: Path
) -> None:
    key = {"Idempotency-Key": "storage-refuses-0001"}
    blobs = tmp_path / "blobs"
    async with world.client(max_retries=0) as client:
        file_id = await upload(client, jsonl(chat_line("q1")))
        order = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        (blobs / "prompts").write_text("a file where a folder should be")
        with pytest.raises(openai.InternalServerError) as refused:
            await client.batches.create(**order, extra_headers=key)  # type: ignore[arg-type]
        assert (refused.value.status_code, refused.value.code) == (503, "batch_unavailable")
        assert int(refused.value.response.headers["retry-after"]) > 0
        (blobs / "prompts").unlink()
        made = await client.batches.create(**order, extra_headers=key)  # type: ignore[arg-type]
        (blobs / "files").rename(blobs / "kept")
        (blobs / "files").write_text("a file where a folder should be")
        with pytest.raises(openai.InternalServerError) as refused:
            await upload(client, b"{}")
        assert (refused.value.status_code, refused.value.code) == (503, "batch_unavailable")
        await world.finish(five_tokens)
        assert (await client.batches.retrieve(made.id)).status == "finalizing"  # it does not end without its file
        (blobs / "files").unlink()
        (blobs / "kept").rename(blobs / "files")
        await world.sweep()
        ended = await client.batches.retrieve(made.id)
        assert ended.status == "completed"
        assert (await client.files.content(str(ended.output_file_id))).text.count("\n") == 1


@row("Error codes", "503 batch_unavailable")
async def test_a_database_that_does_not_answer_is_a_503(tmp_path: Path, postgres: Any, postgres_url: str) -> None:
    name = postgres_url.partition("@/")[2].partition("?")[0]
    async with running_world(tmp_path, postgres_url) as world, world.session() as http:
        postgres.psql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        postgres.psql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        seen = set()
        for _ in range(12):
            async with http.get(BATCHES) as answer:
                seen.add((answer.status, (await answer.json())["error"]["code"]))
                assert int(answer.headers["Retry-After"]) > 0
        assert seen == {(503, "batch_unavailable")}
        postgres.psql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        async with http.get(BATCHES) as answer:
            assert answer.status == 200


@row("Cases: call sequences", "poll 100 times from 8 clients as the batch completes")
async def test_polling_from_many_clients_makes_one_set_of_ledger_entries(tmp_path: Path, database_url: str) -> None:
    async with running_world(tmp_path, database_url, request_burst=10**4) as world:
        async with world.client() as client:
            made = await place(client, jsonl(chat_line("q1"), chat_line("q2")))
            while await world.work(five_tokens):
                pass

        async def poll() -> list[str]:
            async with world.client() as polling:
                return [(await polling.batches.retrieve(made.id)).status for _ in range(100)]

        polled = await asyncio.gather(world.sweep(), world.sweep(), *(poll() for _ in range(8)))
        assert {statuses[-1] for statuses in polled[2:] if statuses is not None} == {"completed"}
        async with world.services.database.snapshot() as connection:
            kinds = (await connection.execute(select(schema.transfers.c.kind, schema.transfers.c.state))).all()
            entries = (await connection.execute(select(func.count()).select_from(schema.entries))).scalar_one()
    assert sorted(map(tuple, kinds)) == [("deposit", "posted"), ("hold", "posted")]
    assert entries == 2 + 2 + 3  # deposit, hold, and its end: captured, released


@row("Cases: call sequences", "five open orders, one fails, order again")
async def test_when_one_of_five_open_orders_fails_there_is_room_for_another(world: World, tmp_path: Path) -> None:
    async with world.client(max_retries=0) as client:
        for _ in range(5):
            await place(client, jsonl(chat_line("q1")))
        with pytest.raises(openai.RateLimitError):
            await place(client, jsonl(chat_line("q1")))
        (kept,) = (tmp_path / "blobs" / "tokenizers").iterdir()
        good = kept.read_text()
        kept.write_text(json.dumps({**json.loads(good), "tokenizer_json": "{}", "sha256": "broken"}))
        await world.work(five_tokens, max_tasks=1)
        await world.sweep()
        assert min(batch.status for batch in (await client.batches.list()).data) == "failed"
        kept.write_text(good)
        assert (await place(client, jsonl(chat_line("q1")))).status == "validating"
