"""Limits of the specification, at them and one beyond: one test for each row about them."""

from pathlib import Path
from typing import Any

import openai
import pytest
from asking import place, refusal, upload
from customer import START, World, chat_line, jsonl, running_world
from specification import row

BATCHES = "/api/openai/v1/batches"
MIB = 1024 * 1024


@row("Limits", "Lines per file")
@row("Error codes", "422 invalid_batch_file: too_many_lines")
@row("Cases: lines", "50,001 lines; 33 MiB")
async def test_a_file_of_50001_lines_is_refused_and_one_of_50000_is_not(sqlite_world: World) -> None:
    short = b'{"custom_id":"%d"}\n'
    lines = b"".join(short % number for number in range(49_999))
    error = await refusal(sqlite_world, jsonl(chat_line("q1")) + lines + b"{}\n")
    assert (error.status_code, error.code) == (422, "invalid_batch_file")
    assert "too_many_lines" in error.message
    async with sqlite_world.client() as client:
        made = await place(client, jsonl(chat_line("q1")) + lines)
    assert made.request_counts is not None
    assert made.request_counts.to_dict() == {"total": 50_000, "completed": 0, "failed": 49_999}


@row("Limits", "File size")
@row("Cases: lines", "50,001 lines; 33 MiB")
async def test_a_file_of_32_mib_is_taken_and_one_byte_more_is_not(sqlite_world: World) -> None:
    async with sqlite_world.client(max_retries=0) as client:
        file = await client.files.create(file=("b.jsonl", b" " * 32 * MIB), purpose="batch")
        assert file.bytes == 32 * MIB
        for size in (32 * MIB + 1, 33 * MIB):
            with pytest.raises(openai.APIStatusError) as refused:
                await client.files.create(file=("b.jsonl", b" " * size), purpose="batch")
            assert (refused.value.status_code, refused.value.code) == (413, "file_too_large")


@row("Limits", "Prompt tokens")
@row("Error codes", "422 invalid_batch_file: too_many_tokens")
async def test_a_prompt_has_131072_tokens_and_a_file_30_million(sqlite_world: World) -> None:
    def line(name: int, tokens: int) -> dict[str, Any]:
        body = {"model": "tiny/qwen3-demo", "prompt": [5] * tokens, "max_tokens": 16, "seed": 1}
        return {"custom_id": str(name), "method": "POST", "url": "/v1/completions", "body": body}

    async with sqlite_world.client() as client:
        made = await place(client, jsonl(line(1, 5), line(2, 131_073)), endpoint="/v1/completions")
    assert made.request_counts is not None
    assert made.request_counts.failed == 1
    digits = "7" * 131_072  # a token each
    content = jsonl(*(line(number, 0) for number in range(229))).replace(
        b'"prompt": []', f'"prompt": "{digits}"'.encode()
    )
    assert len(content) < sqlite_world.services.settings.upload_limit_bytes
    error = await refusal(sqlite_world, content, endpoint="/v1/completions")
    assert (error.status_code, error.code) == (422, "invalid_batch_file")
    assert "too_many_tokens" in error.message


@row("Limits", "Quotes")
@row("Error codes", "429 rate_limited")
async def test_200_quotes_in_24_hours_are_the_last(world: World) -> None:
    async with world.client() as client:
        file_id = await upload(client, jsonl(chat_line("q1", temperature=0)))
        order = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        for number in range(200):
            world.now = START + number
            with pytest.raises(openai.UnprocessableEntityError):
                await client.batches.create(**order)  # type: ignore[arg-type]
        with pytest.raises(openai.RateLimitError) as refused:
            await client.batches.create(**order)  # type: ignore[arg-type]
        assert refused.value.code == "rate_limited"
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert int(refused.value.response.headers["retry-after"]) == 24 * 3600 - 199
        world.now = START + 24 * 3600  # the first one's day is over
        with pytest.raises(openai.UnprocessableEntityError):
            await client.batches.create(**order)  # type: ignore[arg-type]
        with pytest.raises(openai.RateLimitError):
            await client.batches.create(**order)  # type: ignore[arg-type]


@row("Error codes", "429 rate_limited")
async def test_a_key_that_asks_too_fast_is_told_when_to_go_on(tmp_path: Path) -> None:
    async with running_world(tmp_path, requests_per_second=1, request_burst=5) as world, world.session() as http:
        statuses = []
        for _ in range(8):
            async with http.get(BATCHES) as answer:
                statuses.append(answer.status)
                error = await answer.json()
        assert statuses == [200] * 5 + [429] * 3
        assert error["error"]["code"] == "rate_limited"
        assert answer.headers["Retry-After"] == "1"
        async with world.client(await world.open_account()) as other:  # another key has a bucket of its own
            assert (await other.batches.list()).data == []
        async with world.client() as patient:  # the client waits as it is told
            assert (await patient.batches.list()).data == []
