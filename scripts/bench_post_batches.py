"""POST /batches on a file of 50,000 lines: how long it takes, and how long GET /batches takes meanwhile.

    python scripts/bench_post_batches.py [--lines 50000] [--database postgresql+asyncpg://…]

Starts a real gateway process on a folder of its own and a client beside it. Prints a Markdown table.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import openai

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "acceptance")]

from network import running  # noqa: E402

from neurons.localnet import MODEL, Plan  # noqa: E402

LIMIT_BYTES = 32 * 1024 * 1024
POLL_SECONDS = 0.02
COLUMNS = (
    "file",
    "lines",
    "MiB",
    "upload s",
    "POST s",
    "GETs meanwhile",
    "GET at rest, median ms",
    "meanwhile, median ms",
    "p99 ms",
    "most ms",
)
DEFAULT_TIMEOUT_SECONDS = openai.DEFAULT_TIMEOUT.read


@dataclass(frozen=True)
class Load:
    """A kind of file: its lines, and how it is called in the table."""

    name: str
    content: bytes


def load(name: str, count: int, text: str) -> Load:
    """A file of chat lines with one text each."""
    sampling = {"max_tokens": 64, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "seed": 7}
    lines = [
        {
            "custom_id": f"q{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": MODEL, "messages": [{"role": "user", "content": f"{text} {number}"}], **sampling},
        }
        for number in range(count)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    assert len(content) <= LIMIT_BYTES, f"{name} is {len(content)} bytes"
    return Load(name, content)


async def poll(session: aiohttp.ClientSession, url: str, until: asyncio.Event) -> list[float]:
    """Seconds of one GET after another until the event is set."""
    seen = []
    while not until.is_set():
        began = time.perf_counter()
        async with session.get(url) as answer:
            text = await answer.text()
        seen.append(time.perf_counter() - began)
        assert answer.status == 200, text
        await asyncio.sleep(POLL_SECONDS)
    return seen


def milliseconds(seconds: float) -> str:
    """For the table."""
    return f"{1000 * seconds:.1f}"


async def measure(client: openai.AsyncOpenAI, session: aiohttp.ClientSession, kind: Load) -> str:
    """One row of the table."""
    url = f"{client.base_url}batches"
    began = time.perf_counter()
    file = await client.files.create(file=("b.jsonl", kind.content), purpose="batch")
    upload_seconds = time.perf_counter() - began
    idle = asyncio.Event()
    asyncio.get_running_loop().call_later(2, idle.set)
    resting = await poll(session, url, idle)
    done = asyncio.Event()
    polling = asyncio.create_task(poll(session, url, done))
    began = time.perf_counter()
    batch = await client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    seconds = time.perf_counter() - began
    done.set()
    seen = sorted(await polling)
    await client.batches.cancel(batch.id)
    assert batch.request_counts is not None
    assert batch.request_counts.failed == 0
    cells = [
        kind.name,
        f"{batch.request_counts.total:,}",
        f"{len(kind.content) / 2**20:.1f}",
        f"{upload_seconds:.2f}",
        f"{seconds:.1f}",
        f"{len(seen)}",
        milliseconds(statistics.median(resting)),
        milliseconds(statistics.median(seen)),
        milliseconds(seen[int(0.99 * len(seen))]),
        milliseconds(seen[-1]),
    ]
    return "| " + " | ".join(cells) + " |"


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--database", default=None)
    arguments = parser.parse_args()
    loads = [
        load("short", arguments.lines, "What is 7 times"),
        load("as large as an upload may be", arguments.lines, "a word and " * 27),
    ]
    database = "PostgreSQL" if arguments.database else "SQLite"
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, {database}\n")
    print(f"| {' | '.join(COLUMNS)} |")
    print(f"|{'---|' * len(COLUMNS)}")
    with tempfile.TemporaryDirectory() as folder:
        pace = {"requests_per_second": 1000.0}
        plan = Plan(0, Path(folder), miners=0, validators=0, database_url=arguments.database, gateway_settings=pace)
        async with running(plan) as network:
            described = network.description
            headers = {"Authorization": f"Bearer {described.api_key}"}
            client = openai.AsyncOpenAI(base_url=described.base_url, api_key=described.api_key, max_retries=0)
            async with client, aiohttp.ClientSession(headers=headers) as session:
                for kind in loads:
                    print(await measure(client, session, kind), flush=True)
    print(f"\nThe client's default timeout is {DEFAULT_TIMEOUT_SECONDS:g} s.")


if __name__ == "__main__":
    asyncio.run(main())
