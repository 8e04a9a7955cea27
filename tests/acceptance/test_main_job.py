"""The main job on an honest network: walkthroughs, many samples, reruns."""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from network import Network, chat_line, running, story_lines
from specification import row

from neurons.localnet import Plan

pytestmark = [pytest.mark.acceptance, pytest.mark.asyncio(loop_scope="module")]
HERE = Path(__file__).parent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def network(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Network]:
    """A gateway, two honest miners and a validator."""
    async with running(Plan(0, tmp_path_factory.mktemp("network"))) as made:
        yield made


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def invariants_hold(network: Network) -> AsyncIterator[None]:
    """After every test."""
    yield
    assert await network.violations() == []


def with_changes(text: str, changes: dict[str, str]) -> str:
    """A walkthrough of the specification with only its host, key, model, revision and poll interval changed."""
    for old, new in changes.items():
        assert old in text, f"the walkthrough has no {old}"
        text = text.replace(old, new)
    return text


def changes_for(network: Network) -> dict[str, str]:
    described = network.description
    return {
        "https://app.reliqua.ai/api/openai/v1": described.base_url,
        "Qwen/Qwen3-8B": described.model,
        "b968826d9c46dd6066d109eabc6255188de91218": described.revision,
    }


@row("Clients", "Python")
async def test_the_specifications_python_walkthrough_runs(network: Network, tmp_path: Path) -> None:
    text = (HERE / "walkthrough" / "batch_openai.py").read_text()
    script = tmp_path / "batch_openai.py"
    script.write_text(with_changes(text, {**changes_for(network), "time.sleep(60)": "time.sleep(0.3)"}))
    environment = {**os.environ, "RELIQUARY_API_KEY": network.description.api_key}
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^q1 'Paris' ", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^q2 '56' ", done.stdout, re.MULTILINE), done.stdout


@row("Clients", "curl")
async def test_the_specifications_curl_walkthrough_runs(network: Network, tmp_path: Path) -> None:
    text = (HERE / "walkthrough" / "batch_curl.sh").read_text()
    script = tmp_path / "batch_curl.sh"
    script.write_text(with_changes(text, {**changes_for(network), "sleep 60": "sleep 0.3"}))
    environment = {**os.environ, "RELIQUARY_API_KEY": network.description.api_key}
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "output.jsonl").read_text().splitlines()]
    texts = {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in rows}
    assert texts == {"q1": "Paris", "q2": "56"}


async def test_500_honest_samples_of_mixed_length_and_sampling_are_all_accepted(network: Network) -> None:
    samplings = [
        {"max_tokens": 256, "seed": 1},
        {"max_tokens": 64, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "seed": 2},
        {"max_tokens": 128, "temperature": 1.5, "min_p": 0.05, "seed": 3},
        {"max_tokens": 100, "top_p": 0.8, "seed": 4},
        {"max_tokens": 16, "temperature": 2.0, "top_k": 50},
    ]
    before = await network.miners()
    ids = [await network.place(story_lines(25, n=4, **sampling)) for sampling in samplings]
    for batch_id in ids:
        batch = await network.wait(batch_id)
        assert batch.status == "completed"
        assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (25, 25, 0)
        assert batch.error_file_id is None
    after = await network.miners()
    assert all(miner["state"] == "active" for miner in after.values())
    assert all("rejected" not in miner["submissions"] for miner in after.values())

    def accepted(standings: dict[str, dict[str, dict[str, int]]]) -> int:
        return sum(miner["submissions"].get("accepted", 0) for miner in standings.values())

    assert accepted(after) - accepted(before) == 125  # tasks of four samples each


@row("Cases: lines", "n 4 with a seed")
async def test_a_seed_makes_the_same_completions_again_shuffled_and_in_part(network: Network) -> None:
    lines = story_lines(24, n=4, max_tokens=96, seed=99)
    shuffled = random.Random(5).sample(lines, len(lines))
    orders = [await network.place(each) for each in (lines, lines, shuffled, lines[5:9])]
    first, again, other_order, part = [await network.output(await network.wait(order)) for order in orders]
    assert again == first
    assert other_order == first
    assert list(other_order) == [line["custom_id"] for line in shuffled]
    assert part == {custom_id: first[custom_id] for custom_id in list(first)[5:9]}
    stories = [texts for number, texts in enumerate(first.values()) if number % 6 in (0, 1, 2)]
    assert all(len(set(texts)) == 4 for texts in stories), "four samples of a story are four stories"


async def test_another_seed_and_no_seed_make_other_completions(network: Network) -> None:
    line = [chat_line("q", "Tell me a story about a fox.", max_tokens=64, seed=1)]
    other = [chat_line("q", "Tell me a story about a fox.", max_tokens=64, seed=2)]
    none = [chat_line("q", "Tell me a story about a fox.", max_tokens=64)]
    orders = [await network.place(each) for each in (line, other, none, none)]
    texts = [(await network.output(await network.wait(order)))["q"][0] for order in orders]
    assert len(set(texts)) == 4


async def test_a_running_batch_is_cancelled_with_what_was_verified(network: Network) -> None:
    lines = story_lines(60, n=16, max_tokens=256, seed=3)
    batch_id = await network.place(lines)
    await network.wait(batch_id, "in_progress")
    await asyncio.sleep(1.5)
    async with network.client as client:
        assert (await client.batches.cancel(batch_id)).status == "cancelling"
    batch = await network.wait(batch_id)
    assert batch.status == "cancelled"
    counts = batch.request_counts
    assert counts.completed + counts.failed == counts.total == 60
    order = await network.get(f"/api/v1/dataset-orders/{batch_id.removeprefix('batch_')}")
    assert 0 < float(order["refunded_usd"]) < float(order["price_usd"])
