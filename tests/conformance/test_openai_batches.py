"""The batch routes through the official client: create, read, list, cancel, and what is refused."""

import asyncio
import io
from typing import Any

import openai
import pytest
from asking import balance, create, get, order_of, upload
from customer import DEPOSIT_MICRO, MODEL, REVISION, START, World, chat_line, five_tokens, jsonl
from openai.types import Batch
from specification import row

KEY = {"Idempotency-Key": "0123456789-abc_DEF:."}
DAY_SECONDS = 24 * 3600


@row("Routes", "POST /batches")
@row("Decided: objects", "batch keys")
@row("Batch states", "validating")
@row("Batch states", "request_counts")
@row("Batch body", "metadata")
async def test_a_new_batch_has_every_key_of_the_sdks_model(world: World) -> None:
    async with world.client() as client:
        file_id = await upload(client, jsonl(chat_line("q1"), chat_line("q2", stop=["x"])))
        metadata = {"revision": REVISION, "note": "é\u0000"}
        made = await create(client, file_id, metadata=metadata, completion_window="168h")
        assert made.to_dict() == {
            "id": made.id,
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "model": MODEL,
            "errors": None,
            "input_file_id": file_id,
            "completion_window": "168h",
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": START,
            "in_progress_at": None,
            "expires_at": START + 7 * DAY_SECONDS,
            "finalizing_at": None,
            "completed_at": None,
            "failed_at": None,
            "expired_at": None,
            "cancelling_at": None,
            "cancelled_at": None,
            "request_counts": {"total": 2, "completed": 0, "failed": 1},
            "usage": None,
            "metadata": metadata,
            "reliquary_revision": REVISION,
            "reliquary_queue": {"position": 1, "orders_ahead": 0, "estimated_start_at": None},
        }
        assert await client.batches.retrieve(made.id) == made
        assert set(Batch.model_fields) <= set(made.to_dict())
        world.now += 1
        second = await create(client, file_id)
        assert second.metadata is None
        assert second.to_dict()["reliquary_queue"] == {"position": 2, "orders_ahead": 1, "estimated_start_at": None}


@row("Batch states", "completed")
@row("Price, reservation and refund", "refund at delivery")
@row("Price, reservation and refund", "the order and the balance")
@row("Price, reservation and refund", "about 2 USD")
async def test_a_batch_that_runs_to_the_end_is_completed_and_charged_for_what_was_verified(world: World) -> None:
    async with world.client() as client:
        made = await create(client, await upload(client))
        reserved = (await balance(world))["held_micro"]
        await world.finish(five_tokens)
        ended = await client.batches.retrieve(made.id)
        order = await order_of(world, made)
    assert ended.status == "completed"
    assert (ended.in_progress_at, ended.finalizing_at, ended.completed_at) == (START, START, START)
    assert ended.request_counts is not None
    assert ended.request_counts.to_dict() == {"total": 2, "completed": 2, "failed": 0}
    assert ended.usage is not None
    assert ended.usage.output_tokens == 10
    assert ended.usage.total_tokens == ended.usage.input_tokens + 10
    assert ended.to_dict()["reliquary_queue"] is None
    assert order["state"] == "delivered"
    assert order["price_micro"] == reserved
    assert 1_500_000 < order["price_micro"] < 2_500_000
    assert 0 < order["refunded_micro"] < reserved
    left = await balance(world)
    assert left["held_micro"] == 0
    assert left["available_micro"] == DEPOSIT_MICRO - reserved + order["refunded_micro"]
    assert order["progress"]["lines"] == {"total": 2, "completed": 2, "failed": 0}
    assert order["progress"]["accepted_samples"] == 2


async def test_a_batch_without_a_seed_waits_for_the_beacon(world: World) -> None:
    async with world.client() as client:
        made = await create(client, await upload(client, jsonl(chat_line("q1", seed=None))))
        await world.sweep()
        assert await world.work(five_tokens) == 0
        world.now += 60
        await world.finish(five_tokens)
        assert (await client.batches.retrieve(made.id)).status == "completed"


@row("Error codes", "400 invalid_endpoint")
@row("Error codes", "400 invalid_completion_window")
@row("Error codes", "400 invalid_metadata")
@row("Error codes", "400 endpoint_mismatch")
@row("Error codes", "400 invalid_revision")
@row("Batch body", "endpoint")
@row("Batch body", "metadata.revision")
@row("Batch body", "metadata.reliquary_grader")
@row("Limits", "metadata")
@row("Limits", "completion_window")
@row("Cases: call sequences", "metadata out of range")
@row("Decided: routes", "unknown keys of a request body")
@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "invalid_endpoint", "endpoint"),
        ({"endpoint": "/v1/completions"}, "endpoint_mismatch", "endpoint"),
        ({"completion_window": "23h"}, "invalid_completion_window", "completion_window"),
        ({"completion_window": "169h"}, "invalid_completion_window", "completion_window"),
        ({"completion_window": "2d"}, "invalid_completion_window", "completion_window"),
        ({"completion_window": "024h"}, "invalid_completion_window", "completion_window"),
        ({"completion_window": 24}, "invalid_completion_window", "completion_window"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "invalid_metadata", "metadata"),
        ({"metadata": {"k" * 65: "x"}}, "invalid_metadata", None),
        ({"metadata": {"k": "x" * 513}}, "invalid_metadata", "metadata.k"),
        ({"metadata": {"k": 1}}, "invalid_metadata", "metadata.k"),
        ({"metadata": ["k"]}, "invalid_metadata", "metadata"),
        ({"metadata": {"max_price_usd": "-1"}}, "invalid_metadata", "metadata.max_price_usd"),
        ({"metadata": {"max_price_usd": "NaN"}}, "invalid_metadata", "metadata.max_price_usd"),
        ({"metadata": {"max_price_usd": "1e9"}}, "invalid_metadata", "metadata.max_price_usd"),
        ({"metadata": {"max_price_usd": "\u0663"}}, "invalid_metadata", "metadata.max_price_usd"),
        ({"metadata": {"model": "no-slash"}}, "invalid_metadata", "metadata.model"),
        ({"metadata": {"reliquary_grader": "boxed_math_v1"}}, "invalid_metadata", "metadata.reliquary_grader"),
        ({"metadata": {"revision": "main"}}, "invalid_revision", "metadata.revision"),
        ({"extra_body": {"priority": 1}}, "unknown_parameter", "priority"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 5}},
            "invalid_output_expires_after",
            "output_expires_after.seconds",
        ),
        ({"extra_headers": {"Idempotency-Key": "short"}}, "invalid_idempotency_key", "Idempotency-Key"),
        ({"extra_headers": {"Idempotency-Key": "k" * 81}}, "invalid_idempotency_key", "Idempotency-Key"),
        ({"extra_headers": {"Idempotency-Key": "sixteen letters!"}}, "invalid_idempotency_key", "Idempotency-Key"),
    ],
)
async def test_a_field_out_of_range_is_named(
    sqlite_world: World, changes: dict[str, Any], code: str, param: str | None
) -> None:
    async with sqlite_world.client() as client:
        file_id = await upload(client)
        with pytest.raises(openai.BadRequestError) as refused:
            await create(client, file_id, **changes)
    assert refused.value.code == code
    assert param in (None, refused.value.param)
    assert (await balance(sqlite_world))["held_micro"] == 0


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b'{"a": NaN}', b'{"a": "\\ud800"}', b"[" * 5000, b'{"n": ' + b"9" * 5000 + b"}"]
)
async def test_a_body_that_is_not_a_json_object_is_refused(sqlite_world: World, body: bytes) -> None:
    async with sqlite_world.session() as http, http.post("/api/openai/v1/batches", data=body) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, "invalid_json")


async def test_a_missing_field_is_named_and_a_huge_body_is_refused(sqlite_world: World) -> None:
    async with sqlite_world.session() as http:
        async with http.post("/api/openai/v1/batches", json={"endpoint": "/v1/completions"}) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (400, "missing_required_parameter")
            assert error["param"] == "input_file_id"
        huge = io.BytesIO(b'{"x": "' + b"y" * 2_000_000 + b'"}')
        async with http.post("/api/openai/v1/batches", data=huge) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (413, "request_too_large")


@row("Model and revision", "org/name from the first line or metadata.model")
@row("Batch body", "metadata.model")
async def test_the_first_lines_model_is_the_batchs_unless_metadata_names_one(world: World) -> None:
    async with world.client() as client:
        file_id = await upload(client, jsonl(chat_line("q1", model="tiny/qwen3-other"), chat_line("q2")))
        made = await create(client, file_id)
        assert (made.model, made.request_counts and made.request_counts.failed) == ("tiny/qwen3-other", 1)
        other = await create(client, file_id, metadata={"model": MODEL})
        assert (other.model, other.request_counts and other.request_counts.failed) == (MODEL, 1)


@row("Error codes", "402 price_above_max")
@row("Error codes", "402 insufficient_balance")
@row("Batch body", "metadata.max_price_usd")
async def test_the_ceiling_and_the_balance_are_kept(world: World) -> None:
    async with world.client() as client:
        file_id = await upload(client)
        with pytest.raises(openai.APIStatusError) as refused:
            await create(client, file_id, metadata={"max_price_usd": "0.5"})
        assert (refused.value.status_code, refused.value.code) == (402, "price_above_max")
        assert (await create(client, file_id, metadata={"max_price_usd": "3"})).status == "validating"
    async with world.client(await world.open_account(deposit_micro=1_000_000)) as poor:
        file_id = await upload(poor)
        with pytest.raises(openai.APIStatusError) as refused:
            await create(poor, file_id)
        assert (refused.value.status_code, refused.value.code) == (402, "insufficient_balance")
        assert (await poor.batches.list()).data == []


@row("Cases: call sequences", "an output file's id, or a deleted file, as input")
@row("Error codes", "404 file_not_found")
@row("Batch body", "input_file_id")
async def test_an_output_file_a_deleted_one_and_a_strangers_are_no_input(world: World) -> None:
    async with world.client() as client, world.client(await world.open_account()) as stranger:
        file_id = await upload(client)
        made = await create(client, file_id)
        await world.finish(five_tokens)
        output = (await client.batches.retrieve(made.id)).output_file_id
        assert output is not None
        with pytest.raises(openai.BadRequestError) as refused:
            await create(client, output)
        assert (refused.value.code, refused.value.param) == ("invalid_file", "input_file_id")
        with pytest.raises(openai.NotFoundError) as unknown:
            await create(stranger, file_id)
        assert (unknown.value.code, unknown.value.param) == ("file_not_found", "input_file_id")
        await client.files.delete(file_id)
        with pytest.raises(openai.NotFoundError):
            await create(client, file_id)


@row("Batch body", "Idempotency-Key")
@row("Error codes", "409 idempotency_conflict")
async def test_a_retry_with_the_same_key_is_the_same_batch(world: World) -> None:
    async with world.client() as client:
        file_id = await upload(client)
        first = await create(client, file_id, extra_headers=KEY)
        await client.files.delete(file_id)
        again = await create(client, file_id, extra_headers=KEY)
        assert again.id == first.id
        with pytest.raises(openai.ConflictError) as refused:
            await create(client, file_id, extra_headers=KEY, completion_window="48h")
        assert refused.value.code == "idempotency_conflict"
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert len((await client.batches.list()).data) == 1


@row("Decided: retries", "Idempotency-Key")
async def test_requests_with_one_key_at_once_make_one_batch(world: World) -> None:
    async with world.client() as client:
        file_id = await upload(client)
        made = await asyncio.gather(*(create(client, file_id, extra_headers=KEY) for _ in range(6)))
        assert len({batch.id for batch in made}) == 1
        price = (await order_of(world, made[0]))["price_micro"]
        assert (await balance(world))["held_micro"] == price


@row("Decided: retries", "Idempotency-Key")
async def test_a_failed_attempt_does_not_use_up_the_key_and_keys_are_each_accounts_own(world: World) -> None:
    async with world.client() as client, world.client(await world.open_account()) as stranger:
        file_id = await upload(client)
        with pytest.raises(openai.BadRequestError):
            await create(client, file_id, endpoint="/v1/completions", extra_headers=KEY)
        first = await create(client, file_id, extra_headers=KEY)
        other = await create(stranger, await upload(stranger), extra_headers=KEY)
        assert first.id != other.id


@row("Error codes", "429 order_limit")
@row("Limits", "Open orders")
@row("Cases: call sequences", "five open orders, one fails, order again")
async def test_the_sixth_open_order_is_refused_once_until_one_ends(world: World) -> None:
    async with world.client() as client:
        file_id = await upload(client)
        made = [await create(client, file_id) for _ in range(5)]
        with pytest.raises(openai.RateLimitError) as refused:
            await create(client, file_id)
        assert refused.value.code == "order_limit"
        assert refused.value.response.headers["x-should-retry"] == "false"
        await client.batches.cancel(made[0].id)
        assert (await create(client, file_id)).status == "validating"


async def test_orders_at_once_do_not_pass_the_limit(world: World) -> None:
    async with world.client() as client:
        file_id = await upload(client)
        answers = await asyncio.gather(*(create(client, file_id) for _ in range(8)), return_exceptions=True)
        assert sum(isinstance(answer, Batch) for answer in answers) == 5
        assert sum(isinstance(answer, openai.RateLimitError) for answer in answers) == 3


@row("Decided: routes", "another account's id")
@row("Cases: call sequences", "another account reads, cancels, downloads")
async def test_another_accounts_batch_does_not_exist(world: World) -> None:
    key = await world.open_account()
    async with world.client() as client, world.client(key) as stranger:
        made = await create(client, await upload(client))
        for call in (stranger.batches.retrieve, stranger.batches.cancel):
            with pytest.raises(openai.NotFoundError) as refused:
                await call(made.id)
            assert refused.value.code == "batch_not_found"
        for path in ("", "/verification"):
            order = await get(world, f"/api/v1/dataset-orders/{made.id.removeprefix('batch_')}{path}", key)
            assert order["error"]["code"] == "batch_not_found"
        assert (await stranger.batches.list()).data == []


@row("Routes", "GET /batches?limit=&after=")
@row("Cancel and list", "list")
async def test_batches_are_listed_newest_first_and_pages_end(world: World) -> None:
    async with world.client() as client:
        file_id = await upload(client)
        made = []
        for _ in range(7):
            world.now += 1
            batch = await create(client, file_id)
            await client.batches.cancel(batch.id)
            made.append(batch.id)
        assert [batch.id async for batch in client.batches.list(limit=3)] == made[::-1]
        assert len((await client.batches.list()).data) == 7
        with pytest.raises(openai.BadRequestError) as refused:
            await client.batches.list(after="batch_nothing")
        assert (refused.value.code, refused.value.param) == ("invalid_after", "after")
        with pytest.raises(openai.BadRequestError):
            await client.batches.list(after="nothing")
