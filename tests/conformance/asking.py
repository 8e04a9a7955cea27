"""Batches with the asynchronous official client, for tests about what is asked and answered."""

from typing import Any

import openai
import pytest
from customer import World, chat_line, jsonl
from openai.types import Batch

TWO_LINES = jsonl(chat_line("q1"), chat_line("q2", "What is the capital of France?"))


async def upload(client: openai.AsyncOpenAI, content: bytes = TWO_LINES) -> str:
    """A batch file's id."""
    return (await client.files.create(file=("batch.jsonl", content), purpose="batch")).id


async def create(client: openai.AsyncOpenAI, file_id: str, **changes: Any) -> Batch:
    """A batch on an uploaded file."""
    settings: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **changes}
    return await client.batches.create(input_file_id=file_id, **settings)


async def place(client: openai.AsyncOpenAI, content: bytes = TWO_LINES, **changes: Any) -> Batch:
    """A batch on some bytes."""
    return await create(client, await upload(client, content), **changes)


async def refusal(world: World, content: bytes, **changes: Any) -> openai.APIStatusError:
    """The refusal of such a batch."""
    async with world.client(max_retries=0) as client:
        with pytest.raises(openai.APIStatusError) as refused:
            await place(client, content, **changes)
    return refused.value


async def get(world: World, path: str, api_key: str | None = None) -> dict[str, Any]:
    """What a native route answers."""
    async with world.session(api_key) as http, http.get(path) as answer:
        found: dict[str, Any] = await answer.json()
        return found


async def order_of(world: World, batch: Batch) -> dict[str, Any]:
    """The native order behind a batch."""
    return await get(world, f"/api/v1/dataset-orders/{batch.id.removeprefix('batch_')}")


async def balance(world: World) -> dict[str, Any]:
    """What the account can spend and what is held, in micro-USD."""
    return await get(world, "/api/v1/balance")
