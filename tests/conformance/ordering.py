"""Batches from upload to download with the synchronous official client, for tests about what is in them."""

import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openai
from customer import MODEL, chat_line, jsonl
from openai.types import Batch
from served import Served

ENDED = ("completed", "expired", "cancelled", "failed")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WAIT_SECONDS = 60
GOOD = chat_line("good")


@dataclass(frozen=True)
class Delivery:
    """A batch that has ended, and the lines of its two files."""

    batch: Batch
    output: Sequence[dict[str, Any]]
    errors: Sequence[dict[str, Any]]

    @property
    def fates(self) -> dict[str | None, str | None]:
        """By custom_id: null for a line that was delivered, else the code that it was refused with."""
        delivered: dict[str | None, str | None] = {line["custom_id"]: None for line in self.output}
        return delivered | {line["custom_id"]: line["error"]["code"] for line in self.errors}


def client_of(gateway: Served, **options: Any) -> openai.OpenAI:
    """The official client, synchronous."""
    return openai.OpenAI(base_url=gateway.world.openai_url, api_key=gateway.world.api_key, **options)


def upload(client: openai.OpenAI, content: bytes) -> str:
    """A batch file's id."""
    return client.files.create(file=("batch.jsonl", content), purpose="batch").id


def order(client: openai.OpenAI, content: bytes, endpoint: str = CHAT, **changes: Any) -> Batch:
    """A batch on some bytes."""
    made = {"input_file_id": upload(client, content), "endpoint": endpoint, "completion_window": "24h"}
    return client.batches.create(**{**made, **changes})


def deliver(gateway: Served, content: bytes, endpoint: str = CHAT, **changes: Any) -> Delivery:
    """Order a batch on some bytes and wait for its files."""
    with client_of(gateway) as client:
        batch = order(client, content, endpoint, **changes)
        ends_at = time.monotonic() + WAIT_SECONDS
        while batch.status not in ENDED:
            assert time.monotonic() < ends_at, batch
            time.sleep(0.03)
            batch = client.batches.retrieve(batch.id)
        return Delivery(batch, _lines(client, batch.output_file_id), _lines(client, batch.error_file_id))


def _lines(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in client.files.content(file_id).text.split("\n")[:-1]]


def codes_of(gateway: Served, lines: Iterable[Mapping[str, Any] | bytes]) -> list[str | None]:
    """The fate of each line in a file that begins with a good one: null, or the code that it was refused with.

    A line may be bytes, as they stand in the file.
    """
    raw = [line if isinstance(line, bytes) else jsonl(dict(line)).rstrip(b"\n") for line in lines]
    delivery = deliver(gateway, jsonl(GOOD) + b"\n".join(raw))
    refused = {line["line"]: line["error"]["code"] for line in delivery.errors}
    assert delivery.batch.request_counts is not None
    assert delivery.batch.request_counts.failed == len(refused)
    return [refused.get(number) for number in range(2, len(raw) + 2)]


_numbers = itertools.count(1)


def envelope(**changes: Any) -> dict[str, Any]:
    """A chat line like the good one under a custom_id of its own, with keys changed, or dropped for an ellipsis."""
    line = {**chat_line(f"line {next(_numbers)}"), **changes}
    return {key: value for key, value in line.items() if value is not ...}


def chat(**body: Any) -> dict[str, Any]:
    """The same, with fields of its body changed."""
    return chat_line(f"line {next(_numbers)}", **body)


def code_of_chat(gateway: Served, **body: Any) -> str | None:
    """What becomes of a chat line with these fields in its body."""
    return codes_of(gateway, [chat(**body)])[0]


def completion(custom_id: str, prompt: Any, **body: Any) -> dict[str, Any]:
    """A line of /v1/completions for the demo model."""
    request = {"model": MODEL, "prompt": prompt, "max_tokens": 16, "seed": 1, **body}
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": request}
