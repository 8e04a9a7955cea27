"""Whole networks for the acceptance tests: every role a process of its own, on loopback."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
from invariants import violations

from gateway.db.engine import Database
from neurons import localnet
from neurons.localnet import Description, Plan

START_SECONDS = 120
RUN_SECONDS = 180
ENDED = ("completed", "expired", "cancelled", "failed")

STORIES = [
    "Tell me a story about a fox.",
    "Write a long story about a ship.",
    "Tell me a story about a robot.",
    "What will the weather be like?",
    "Write a shopping list.",
    "Name the capital of France in one word.",
]


@dataclass
class Network:
    """A running network and one customer of it."""

    plan: Plan
    description: Description

    @property
    def client(self) -> openai.AsyncOpenAI:
        """The official client; it retries what a killed gateway leaves unanswered."""
        return openai.AsyncOpenAI(
            base_url=self.description.base_url, api_key=self.description.api_key, max_retries=8, timeout=20
        )

    def pid(self, name: str) -> int | None:
        """The process id of a role; None while it is being started again."""
        pids = json.loads(Path(self.description.pids_file).read_text(encoding="utf-8"))
        return pids.get(name)

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a role's process a signal."""
        pid = self.pid(name)
        if pid is not None:
            os.kill(pid, number)

    async def kill(self, name: str) -> None:
        """kill -9 a role, and wait until another process has taken its place."""
        before = self.pid(name)
        if before is not None:
            os.kill(before, signal.SIGKILL)
        while self.pid(name) in (before, None):
            await asyncio.sleep(0.05)

    async def place(self, lines: list[dict[str, Any]], **batch: Any) -> str:
        """Upload lines and order them; the batch's id."""
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        async with self.client as client:
            file = await client.files.create(file=("in.jsonl", content), purpose="batch")
            fields = {"endpoint": lines[0]["url"], "completion_window": "24h", **batch}
            made = await client.batches.create(input_file_id=file.id, **fields)
        return made.id

    async def batch(self, batch_id: str) -> Any:
        """The batch as it is now."""
        async with self.client as client:
            return await client.batches.retrieve(batch_id)

    async def wait(self, batch_id: str, *statuses: str) -> Any:
        """The batch once it has one of the statuses, or has ended."""
        async with asyncio.timeout(RUN_SECONDS):
            while (batch := await self.batch(batch_id)).status not in (*statuses, *ENDED):
                await asyncio.sleep(0.05)
        return batch

    async def output(self, batch: Any) -> dict[str, list[str]]:
        """The delivered texts by custom_id, in the order of the file."""
        async with self.client as client:
            text = (await client.files.content(batch.output_file_id)).text
        rows = [json.loads(line) for line in text.splitlines()]
        return {
            row["custom_id"]: [choice["message"]["content"] for choice in row["response"]["body"]["choices"]]
            for row in rows
        }

    async def get(self, path: str) -> Any:
        """A GET of one of the gateway's own routes."""
        url = self.description.native_url.removesuffix("/api/v1") + path
        headers = {"Authorization": f"Bearer {self.description.api_key}"}
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def miners(self) -> dict[str, dict[str, Any]]:
        """How each miner stands, by its name in the network."""
        standings = {miner["hotkey"]: miner for miner in (await self.get("/subnet/v1/status"))["miners"]}
        keys = {path.stem: json.loads(path.read_text()) for path in (self.plan.data / "keys").glob("*.json")}
        names = {key["ss58Address"]: name for name, key in keys.items() if "ss58Address" in key}
        return {names[hotkey]: standing for hotkey, standing in standings.items()}

    @contextmanager
    def exports_held(self) -> Iterator[None]:
        """Keep ended batches from being exported: the tokenizers that an export decodes with are away meanwhile."""
        kept = self.plan.data / "blobs" / "tokenizers"
        away = kept.with_name("tokenizers.away")
        kept.rename(away)
        try:
            yield
        finally:
            away.rename(kept)

    async def violations(self) -> list[str]:
        """What is not as it must be, in the gateway's database and in what its customer was given."""
        return await self._database_faults() + await self._fate_faults()

    async def _fate_faults(self) -> list[str]:
        """Ended batches in which a custom_id does not have exactly one fate, or the counts do not add up."""
        faults = []
        async with self.client as client:
            async for batch in client.batches.list(limit=100):
                if batch.status in ENDED:
                    faults += await _faults_of(client, batch)
        return faults

    async def _database_faults(self) -> list[str]:
        url = self.plan.database_url or f"sqlite+aiosqlite:///{self.plan.data / 'gateway.db'}"
        database = Database.connect(url)
        try:
            return await violations(database)
        finally:
            await database.close()


async def _rows(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in (await client.files.content(file_id)).text.splitlines()]


async def _faults_of(client: openai.AsyncOpenAI, batch: Any) -> list[str]:
    """Each line is in the output, or in the error file; in both only when it is short of samples."""
    sent = [row["custom_id"] for row in await _rows(client, batch.input_file_id)]
    delivered = [row["custom_id"] for row in await _rows(client, batch.output_file_id)]
    errors = await _rows(client, batch.error_file_id)
    refused = [row["custom_id"] for row in errors if row["error"]["code"] != "missing_samples"]
    short = {row["custom_id"] for row in errors if row["error"]["code"] == "missing_samples"}
    counts, never_ran = batch.request_counts, batch.in_progress_at is None
    complete = [custom_id for custom_id in delivered if custom_id not in short]
    faults = []
    if counts.completed + counts.failed != counts.total or counts.total != len(sent):
        faults.append(f"{batch.id}: {counts} of {len(sent)} lines")
    if not never_ran and sorted(complete + refused + sorted(short)) != sorted(sent):
        faults.append(f"{batch.id}: not every custom_id has one fate")
    if not never_ran and len(complete) != counts.completed:
        faults.append(f"{batch.id}: {len(complete)} lines are complete, {counts.completed} are counted")
    return faults


@asynccontextmanager
async def running(plan: Plan) -> AsyncIterator[Network]:
    """The plan's network, ended afterwards; the invariants must hold at the end."""
    stop = asyncio.Event()
    ready: asyncio.Future[Description] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(localnet.run(plan, stop, ready.set_result))
    try:
        async with asyncio.timeout(START_SECONDS):
            await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        network = Network(plan, ready.result())
        yield network
        assert await network.violations() == []
    finally:
        stop.set()
        await task


def chat_line(custom_id: str, question: str, **body: Any) -> dict[str, Any]:
    """A chat line with thinking off."""
    request = {
        "messages": [{"role": "user", "content": question}],
        "chat_template_kwargs": {"enable_thinking": False},
        **body,
    }
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": localnet.MODEL, **request},
    }


def story_lines(count: int, **body: Any) -> list[dict[str, Any]]:
    """Lines with questions of several lengths of answer."""
    return [chat_line(f"q{number}", STORIES[number % len(STORIES)], **body) for number in range(count)]
