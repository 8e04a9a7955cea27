"""What a batch delivers: its files, in input order, once, whatever happens on the way."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from customer import DEPOSIT_MICRO, EOS, MODEL, MODELS, REVISION, START, World, chat_line, five_tokens, jsonl
from openai.types import Batch
from openai.types.chat import ChatCompletion
from openai.types.completion import Completion
from specification import row
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection
from tokenizers import Tokenizer

from gateway.db import schema
from gateway.db.blobs import Blobs, StoredBlob
from gateway.db.engine import Database
from gateway.export import export_order
from protocol.messages import LeasedTask

TOKENIZER = Tokenizer.from_file(str(MODELS / MODEL / "snapshots" / REVISION / "tokenizer.json"))


async def order_batch(client: openai.AsyncOpenAI, content: bytes, **changes: Any) -> Batch:
    file = await client.files.create(file=("batch.jsonl", content), purpose="batch")
    settings: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **changes}
    return await client.batches.create(input_file_id=file.id, **settings)


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in (await client.files.content(file_id)).text.split("\n")[:-1]]


@row("Output and error files", "output line")
@row("Decided: results", "order and escapes")
@row("Decided: results", "usage")
@row("Decided: results", "text")
@row("Limits", "Samples per line (n)")
async def test_each_line_gets_its_own_samples_in_input_order(world: World) -> None:
    lines = [chat_line(f"q{n}", "a " * n, n=4) for n in (3, 1, 2)]
    drawn: dict[int, dict[int, list[int]]] = {}

    def answer(task: LeasedTask, index: int) -> list[int]:
        ids = five_tokens(task, index)
        drawn.setdefault(len(task.prompt_token_ids), {})[index] = ids
        return ids

    async with world.client() as client:
        made = await order_batch(client, jsonl(*lines))
        await world.finish(answer)
        ended = await client.batches.retrieve(made.id)
        output = await lines_of(client, ended.output_file_id)
        assert ended.error_file_id is None
        file = await client.files.retrieve(str(ended.output_file_id))
    assert (file.purpose, file.filename) == ("batch_output", f"{made.id}_output.jsonl")
    assert [line["custom_id"] for line in output] == ["q3", "q1", "q2"]
    assert len({line["id"] for line in output}) == 3
    for line in output:
        body = ChatCompletion.model_validate(line["response"]["body"])
        assert body.usage is not None
        assert body.created == START
        assert [choice.index for choice in body.choices] == [0, 1, 2, 3]
        samples = drawn[body.usage.prompt_tokens]
        texts = [TOKENIZER.decode(samples[index]) for index in range(4)]
        assert [choice.message.content for choice in body.choices] == texts
        assert len(set(texts)) == 4
        assert {choice.finish_reason for choice in body.choices} == {"stop"}
        assert body.usage.completion_tokens == 20


@row("Output and error files", "output line")
@row("Routes", "GET output and error files")
async def test_a_completions_batch_takes_text_and_ids_and_says_length_at_the_limit(world: World) -> None:
    lines = [
        {
            "custom_id": custom_id,
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": MODEL, "prompt": prompt, "max_tokens": 16, "seed": 1},
        }
        for custom_id, prompt in (("text", "The capital of France is"), ("ids", [300, 301]))
    ]
    async with world.client() as client:
        made = await order_batch(client, jsonl(*lines), endpoint="/v1/completions")
        await world.finish(lambda _task, _index: [305] * 16)
        ended = await client.batches.retrieve(made.id)
        output = await lines_of(client, ended.output_file_id)
    bodies = [Completion.model_validate(line["response"]["body"]) for line in output]
    assert [line["custom_id"] for line in output] == ["text", "ids"]
    assert [body.choices[0].finish_reason for body in bodies] == ["length", "length"]
    assert bodies[1].usage is not None
    assert (bodies[1].usage.prompt_tokens, bodies[1].usage.completion_tokens) == (2, 16)
    assert bodies[0].choices[0].text == TOKENIZER.decode([305] * 16)


@row("Output and error files", "error line of a refused line")
@row("Output and error files", "error line of a short line")
@row("Decided: results", "completed + failed = total")
async def test_the_error_file_has_refused_lines_first_then_lines_short_of_samples(world: World) -> None:
    content = (
        jsonl(chat_line("q1", n=10), chat_line("q2", "short", n=10))
        + b"\n{broken\n"
        + jsonl(chat_line("q1", n=10), chat_line("\u2028\u0000x", n=10), chat_line("q3", stop=["x"]))
    )
    async with world.client() as client:
        made = await order_batch(client, content)
        assert await world.work(five_tokens, max_tasks=3) == 3  # of the second line, samples 8 and 9 are left
        await client.batches.cancel(made.id)
        await world.sweep()
        ended = await client.batches.retrieve(made.id)
        output, errors = [await lines_of(client, name) for name in (ended.output_file_id, ended.error_file_id)]
    assert ended.request_counts is not None
    assert ended.request_counts.to_dict() == {"total": 6, "completed": 1, "failed": 5}
    assert [len(line["response"]["body"]["choices"]) for line in output] == [10, 8]
    assert [(line["custom_id"], line.get("line"), line["error"]["code"]) for line in errors] == [
        (None, 4, "invalid_json"),
        ("q1", 5, "duplicate_custom_id"),
        (None, 6, "invalid_text"),
        ("q3", 7, "stop_unavailable"),
        ("q2", None, "missing_samples"),
    ]
    assert errors[-1] == {
        "custom_id": "q2",
        "prompt_index": 1,
        "error": {"code": "missing_samples", "message": "8 of 10 samples delivered"},
    }


@row("Decided: results", "order and escapes")
async def test_a_line_separator_in_a_custom_id_stays_inside_its_line(world: World) -> None:
    async with world.client() as client:
        made = await order_batch(client, jsonl(chat_line("a\u2028\r\nb\u0085😀")))
        await world.finish(five_tokens)
        ended = await client.batches.retrieve(made.id)
        raw = (await client.files.content(str(ended.output_file_id))).text
    assert len(raw.splitlines()) == 1
    assert json.loads(raw)["custom_id"] == "a\u2028\r\nb\u0085😀"


@row("Decided: results", "all short")
async def test_a_batch_whose_lines_all_fell_short_is_completed_without_an_output_file(tired_world: World) -> None:
    async with tired_world.client() as client:
        made = await order_batch(client, jsonl(chat_line("q1")))
        await tired_world.work(lambda _task, _index: [EOS, EOS])
        await tired_world.sweep()
        ended = await client.batches.retrieve(made.id)
        errors = await lines_of(client, ended.error_file_id)
    assert (ended.status, ended.output_file_id) == ("completed", None)
    assert errors[0]["error"] == {"code": "missing_samples", "message": "0 of 1 samples delivered"}
    assert ended.request_counts is not None
    assert ended.request_counts.to_dict() == {"total": 1, "completed": 0, "failed": 1}


@row("Decided: routes", "expires_after and output_expires_after")
async def test_output_files_expire_when_the_order_said_so(world: World) -> None:
    async with world.client() as client:
        made = await order_batch(
            client, jsonl(chat_line("q1")), output_expires_after={"anchor": "created_at", "seconds": 3600}
        )
        world.now += 10
        await world.finish(five_tokens)
        ended = await client.batches.retrieve(made.id)
        file = await client.files.retrieve(str(ended.output_file_id))
    assert file.expires_at == START + 10 + 3600


class DyingDatabase(Database):
    """Dies at the first write."""

    def __init__(self, real: Database) -> None:
        self._real = real

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        async with self._real.snapshot() as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        raise ConnectionAbortedError("killed")
        yield


class RefusingBlobs(Blobs):
    """Storage that is full."""

    async def put_stream(self, key: str, content: AsyncIterator[bytes]) -> StoredBlob:
        raise OSError(f"no space left for {key}")


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "blobs" / "files").iterdir())}


@row("Cases: faults", "the exporter dies before the commit")
@row("Batch states", "finalizing")
async def test_an_export_that_died_before_its_commit_ends_in_the_same_place(world: World, tmp_path: Path) -> None:
    async with world.client() as client:
        made = await order_batch(client, jsonl(chat_line("q1"), chat_line("q2", stop=["x"])))
        order_id = made.id.removeprefix("batch_")
        while await world.work(five_tokens):
            pass
        broken = replace(world, services=replace(world.services, blobs=RefusingBlobs(str(tmp_path / "blobs"))))
        await broken.sweep()
        assert (await client.batches.retrieve(made.id)).status == "finalizing"
        with pytest.raises(ConnectionAbortedError):
            await export_order(
                replace(world.services, database=DyingDatabase(world.services.database)), order_id, world.now + 5
            )
        written = files_in(tmp_path)
        assert len(written) == 3
        world.now += 100
        await world.sweep()
        ended = await client.batches.retrieve(made.id)
        assert (ended.status, ended.completed_at) == ("completed", START + 100)
        assert files_in(tmp_path) == written
        assert {ended.input_file_id, ended.output_file_id, ended.error_file_id} == set(written)
        await export_order(world.services, order_id, world.now + 1)
        assert await client.batches.retrieve(made.id) == ended
    async with world.services.database.snapshot() as connection:
        total = (await connection.execute(select(func.sum(schema.entries.c.amount_micro)))).scalar_one()
        kinds = (await connection.execute(select(schema.transfers.c.kind, schema.transfers.c.state))).all()
    assert total == 0
    assert sorted(map(tuple, kinds)) == [("deposit", "posted"), ("hold", "posted")]


async def test_many_clients_polling_while_a_batch_ends_see_one_end(world: World) -> None:
    async with world.client() as client:
        made = await order_batch(client, jsonl(chat_line("q1")))
        while await world.work(five_tokens):
            pass
        polls = [client.batches.retrieve(made.id) for _ in range(30)]
        seen = await asyncio.gather(world.sweep(), world.sweep(), *polls)
        ended = await client.batches.retrieve(made.id)
    assert ended.status == "completed"
    assert {batch.status for batch in seen[2:] if batch is not None} <= {"in_progress", "finalizing", "completed"}
    async with world.session() as http, http.get("/api/v1/balance") as answer:
        balance = await answer.json()
    assert balance["held_micro"] == 0
    assert 0 < balance["available_micro"] < DEPOSIT_MICRO


async def test_the_verification_of_an_order_shows_each_sample_and_names_no_miner(world: World) -> None:
    async with world.client() as client:
        made = await order_batch(client, jsonl(chat_line("q1", n=2), chat_line("q2", stop=["x"]), chat_line("q3", n=2)))
        await world.work(lambda _task, _index: [EOS, EOS], miner="cheat", max_tasks=1)
        await world.finish(five_tokens)
    path = f"/api/v1/dataset-orders/{made.id.removeprefix('batch_')}/verification"
    async with world.session() as http:
        async with http.get(path) as answer:
            text = await answer.text()
        async with http.get(f"{path}?limit=1&after_line=1") as answer:
            page = await answer.json()
        async with http.get(f"{path}?limit=1001") as answer:
            assert (answer.status, (await answer.json())["error"]["param"]) == (400, "limit")
    report = json.loads(text)
    sample = {"tokens": 5, "matching": 5, "largest_radius": 0.0}
    assert report["lines"] == [
        {
            "line_number": 1,
            "custom_id": "q1",
            "samples": [{"sample_index": n, **sample, "attempts": 1} for n in (0, 1)],
        },
        {
            "line_number": 3,
            "custom_id": "q3",
            "samples": [{"sample_index": n, **sample, "attempts": 0} for n in (0, 1)],
        },
    ]
    assert (report["has_more"], report["rejected"]) == (False, {"eos_not_last": 1})
    assert "cheat" not in text
    assert "miner" not in text
    assert (page["lines"], page["has_more"]) == ([], True)
