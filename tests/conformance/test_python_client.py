"""The official Python client, which we did not write, synchronous and asynchronous, does everything a customer does."""

import asyncio
import json
import time
from pathlib import Path

import openai
import pytest
from customer import REVISION, chat_line, jsonl
from dropping_proxy import dropping_proxy
from invariants import violations
from ordering import ENDED, client_of, order, upload
from served import Served, served
from specification import row

MANY = 250
CREATE = b"POST /api/openai/v1/batches "
KEY = {"Idempotency-Key": "python-lost-answer-0001"}
WAITING = jsonl(chat_line("q1", seed=None))
"""No miner touches it before its beacon round, which does not come."""
CONTENT = jsonl(chat_line("q1"), chat_line("q2", "Name the capital of France in one word."), {"custom_id": "q3"})


@pytest.fixture
def open_gateway(tmp_path: Path) -> Served:
    """A gateway that lets one account order a lot."""
    with served(tmp_path, max_quotes_per_day=1000, request_burst=5000) as made:
        yield made
        assert made.run(violations(made.world.services.database)) == []


@row("Clients", "Python")
def test_the_synchronous_client_walks_through_everything(open_gateway: Served, tmp_path: Path) -> None:
    with client_of(open_gateway) as client:
        metadata = {"revision": REVISION, "max_price_usd": "3"}
        batch = order(client, CONTENT, metadata=metadata, extra_headers={"Idempotency-Key": "python-walkthrough-1"})
        while batch.status not in ENDED:
            time.sleep(0.05)
            batch = client.batches.retrieve(batch.id)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}
        path = tmp_path / "output.jsonl"
        with client.files.with_streaming_response.content(str(batch.output_file_id)) as streamed:
            streamed.stream_to_file(path)
        assert [json.loads(line)["custom_id"] for line in path.read_text().splitlines()] == ["q1", "q2"]
        assert client.files.content(str(batch.output_file_id)).text == path.read_text()
        errors = [json.loads(line) for line in client.files.content(str(batch.error_file_id)).text.splitlines()]
        assert [(line["line"], line["error"]["code"]) for line in errors] == [(3, "invalid_line")]
        doomed = order(client, WAITING)
        assert client.batches.cancel(doomed.id).status == "cancelled"
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(doomed.id)
        assert client.files.delete(batch.input_file_id).deleted


@row("Clients", "Python")
@row("Cases: call sequences", "the first answer to POST /batches is lost")
def test_the_client_retries_a_lost_answer_and_there_is_one_batch_and_one_hold(open_gateway: Served) -> None:
    with dropping_proxy(open_gateway.world.url, CREATE) as proxy, client_of(open_gateway) as direct:
        file_id = upload(direct, WAITING)
        through = openai.OpenAI(base_url=f"{proxy.url}/api/openai/v1", api_key=open_gateway.world.api_key)
        settings = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        made = through.batches.create(**settings, extra_headers=KEY)
        through.close()
        assert (proxy.dropped, len(proxy.requests)) == (1, 2)
        assert [batch.id for batch in direct.batches.list()] == [made.id]
        balance = direct.get(f"{open_gateway.world.url}/api/v1/balance", cast_to=dict)
        native = direct.get(f"{open_gateway.world.url}/api/v1/dataset-orders/{made.id[6:]}", cast_to=dict)
        assert balance["held_micro"] == native["price_micro"]


@row("Clients", "Python")
@row("Cases: call sequences", "iterate both lists over 250 items")
def test_the_asynchronous_client_lists_250_of_each_to_the_end(open_gateway: Served) -> None:
    async def work() -> None:
        async with open_gateway.world.client() as client:
            file = await client.files.create(file=("b.jsonl", WAITING), purpose="batch")
            for _ in range(MANY - 1):
                await client.files.create(file=("b.jsonl", b"{}"), purpose="batch")
            made = []
            for _ in range(MANY):
                batch = await client.batches.create(
                    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
                )
                await client.batches.cancel(batch.id)
                made.append(batch.id)
            files = [each.id async for each in client.files.list()]
            batches = [each.id async for each in client.batches.list()]
            assert (len(files), len(set(files))) == (MANY, MANY)
            assert sorted(batches) == sorted(made)
            assert file.id in files

    asyncio.run(work())
