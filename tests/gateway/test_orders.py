"""Placing orders below the HTTP layer: two gateways at once, and a clock that moves on while a file is read."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from customer import START, World, chat_line, jsonl

from gateway.errors import Conflict, LimitReached
from gateway.files import FileRequest, begin_upload, create_file, receive_content
from gateway.intake import BatchRequest, IdempotencyKey
from gateway.orders import COMMIT_SECONDS, create_batch
from gateway.quotes import usd
from protocol.beacon import DEVELOPMENT, published_at


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _upload(world: World, content: bytes) -> str:
    upload = await begin_upload(world.services, world.account_id, world.now)
    blob = await receive_content(world.services, upload, _chunks(content))
    record = await create_file(world.services, upload, blob, FileRequest("in.jsonl", "batch", None), world.now)
    return record.id


def _request(file_id: str, body: str | None = None) -> BatchRequest:
    key = None if body is None else IdempotencyKey("one-key-for-all-", body)
    return BatchRequest(file_id, "/v1/chat/completions", 24, idempotency=key)


async def test_two_gateways_with_one_key_at_once_make_one_order(world: World) -> None:
    file_id = await _upload(world, jsonl(chat_line("q1")))
    # Each call stands for a process of its own: nothing but the database keeps them apart.
    calls = [create_batch(world.services, world.account_id, _request(file_id, "a"), lambda: START) for _ in range(4)]
    assert len({view.order.id for view in await asyncio.gather(*calls)}) == 1


async def test_two_gateways_with_one_key_and_two_bodies_make_one_order_and_a_conflict(world: World) -> None:
    file_id = await _upload(world, jsonl(chat_line("q1")))
    calls = [create_batch(world.services, world.account_id, _request(file_id, body), lambda: START) for body in "ab"]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    (refused,) = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert isinstance(refused, Conflict)
    assert refused.code == "idempotency_conflict"


async def test_gateways_at_once_do_not_pass_the_limit_of_open_orders(world: World) -> None:
    file_id = await _upload(world, jsonl(chat_line("q1")))
    calls = [create_batch(world.services, world.account_id, _request(file_id), lambda: START) for _ in range(9)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert [type(outcome) for outcome in refused] == [LimitReached] * 4


async def test_the_beacon_round_lies_after_the_moment_of_placing_however_long_reading_took(world: World) -> None:
    file_id = await _upload(world, jsonl(chat_line("q1", seed=None)))
    times = iter([START, START, START + 1000])
    view = await create_batch(world.services, world.account_id, _request(file_id), lambda: next(times))
    assert view.order.created_at == START + 1000
    assert view.order.beacon_round is not None
    assert published_at(DEVELOPMENT, view.order.beacon_round) > START + 1000 + COMMIT_SECONDS


async def test_blank_lines_are_not_counted_and_prompts_lie_one_after_another(world: World) -> None:
    file_id = await _upload(world, b"\xef\xbb\xbf\r\n" + jsonl(chat_line("q1")) + b"\n  \n" + jsonl(chat_line("q2")))
    view = await create_batch(world.services, world.account_id, _request(file_id), lambda: START)
    assert (view.order.total_lines, view.order.refused_lines) == (2, 0)
    assert await world.services.blobs.size(view.order.prompts_blob_key) == 4 * view.order.prompt_tokens


@pytest.mark.parametrize(
    ("micro", "text"), [(0, "0"), (1, "0.000001"), (2_000_000, "2"), (1_950_000, "1.95"), (10_000_001, "10.000001")]
)
def test_money_is_written_exactly(micro: int, text: str) -> None:
    assert usd(micro) == text
