"""Which models can be ordered: one test for each row about that."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from customer import MODEL, MODELS, REVISION, World, chat_line, five_tokens, jsonl, running_world
from openai.types import Batch
from specification import row

from protocol.models import ARCHITECTURES

SNAPSHOT = Path(MODEL) / "snapshots" / REVISION
NESTED = {"Qwen3_5ForConditionalGeneration"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A gateway whose hub holds a copy of the demo model that a test may change."""
    shutil.copytree(MODELS / MODEL, tmp_path / "models" / MODEL)
    async with running_world(tmp_path, models=tmp_path / "models") as running:
        yield running


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """The model's files."""
    return tmp_path / "models" / SNAPSHOT


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


async def place(world: World, *lines: dict[str, Any], **order: Any) -> Batch:
    async with world.client(max_retries=0) as client:
        file = await client.files.create(file=("b.jsonl", jsonl(*lines or [chat_line("q1")])), purpose="batch")
        settings = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **order}
        return await client.batches.create(input_file_id=file.id, **settings)


async def refusal(world: World, *lines: dict[str, Any], **order: Any) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as refused:
        await place(world, *lines, **order)
    return refused.value


@row("Error codes", "400 invalid_model")
async def test_a_batch_needs_a_model_by_name(world: World) -> None:
    for lines in ([chat_line("q1", model=None)], [chat_line("q1", model="no-slash")], [chat_line("q", model="a/b/c")]):
        error = await refusal(world, *lines)
        assert (error.status_code, error.code) == (400, "invalid_model")


@row("Error codes", "400 invalid_revision")
async def test_a_repository_whose_main_cannot_be_read_needs_a_commit(world: World, snapshot: Path) -> None:
    (snapshot.parents[1] / "refs" / "main").unlink()
    error = await refusal(world)
    assert (error.status_code, error.code, error.param) == (400, "invalid_revision", "metadata.revision")
    assert (await place(world, metadata={"revision": REVISION})).status == "validating"


@row("Error codes", "422 model_not_found")
@row("Error codes", "422 model_private")
async def test_a_model_that_is_not_there_or_not_public_is_refused(world: World) -> None:
    error = await refusal(world, chat_line("q1", model="tiny/nothing"))
    assert (error.status_code, error.code) == (422, "model_not_found")
    error = await refusal(world, metadata={"revision": "0" * 40})
    assert (error.status_code, error.code) == (422, "model_not_found")
    world.hub.private.add(MODEL)
    error = await refusal(world)
    assert (error.status_code, error.code) == (422, "model_private")


@row("Error codes", "422 model_unsupported")
@row("Model and revision", "public, not gated, safetensors")
async def test_only_top_level_safetensors_count_as_weights(world: World, snapshot: Path) -> None:
    weights = snapshot / "model.safetensors"
    for name in ("pytorch_model.bin", "sub/model.safetensors", "model.gguf"):
        (snapshot / name).parent.mkdir(exist_ok=True)
        weights.rename(snapshot / name)
        error = await refusal(world)
        assert (error.status_code, error.code) == (422, "model_unsupported")
        (snapshot / name).rename(weights)
    # Code in a repository is never looked at.
    edit(snapshot / "config.json", auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    (snapshot / "modeling_evil.py").write_text("raise SystemExit('run')")
    assert (await place(world)).status == "validating"


@row("Model and revision", "supported architectures")
@row("Error codes", "422 architecture_unsupported")
@row("Error codes", "503 architecture_list_unavailable")
@row("Routes", "GET /api/v1/generation/catalog")
async def test_four_architectures_are_served_and_another_is_told_their_names(world: World, snapshot: Path) -> None:
    config = json.loads((snapshot / "config.json").read_text())
    async with world.session() as http, http.get("/api/v1/generation/catalog") as answer:
        names = (await answer.json())["architectures"]
    assert names == list(ARCHITECTURES)
    assert {"Qwen3ForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "LlamaForCausalLM"} == {*names}
    for name in names:
        own = {**config, "architectures": [name]}
        if name in NESTED:  # the language model's configuration lies within
            own = {"architectures": [name], "text_config": config, "vision_config": {"hidden_size": 8}}
        (snapshot / "config.json").write_text(json.dumps(own))
        batch = await place(world)
        async with world.client() as client:
            await client.batches.cancel(batch.id)
    edit(snapshot / "config.json", architectures=["GPT2LMHeadModel"])
    error = await refusal(world)
    assert (error.status_code, error.code) == (422, "architecture_unsupported")
    assert all(name in error.message for name in names)


@row("Model and revision", "context")
@row("Error codes", "422 context_too_long")
async def test_the_longest_prompt_of_at_least_8192_tokens_plus_max_tokens_fits_the_context(
    world: World, snapshot: Path
) -> None:
    edit(snapshot / "config.json", max_position_embeddings=8192 + 64)
    assert (await place(world)).status == "validating"
    error = await refusal(world, chat_line("q1", max_tokens=65))
    assert (error.status_code, error.code) == (422, "context_too_long")
    edit(snapshot / "config.json", max_position_embeddings=40_960)
    long = {"url": "/v1/completions", "body": {"model": MODEL, "prompt": [5] * 40_000, "max_tokens": 960, "seed": 1}}
    line = {"custom_id": "q", "method": "POST", **long}
    assert (await place(world, line, endpoint="/v1/completions")).status == "validating"
    line["body"]["max_tokens"] = 961  # type: ignore[index]
    assert (await refusal(world, line, endpoint="/v1/completions")).code == "context_too_long"


def grow(path: Path, size_bytes: int) -> None:
    """Make a file as long as said, without taking that much of a disk."""
    with path.open("r+b") as file:
        file.truncate(size_bytes)


@row("Model and revision", "memory")
@row("Error codes", "422 model_too_large")
@row("Error codes", "409 pricing_unavailable")
async def test_weights_and_the_caches_of_eight_sequences_fit_a_node_at_a_published_price(
    world: World, snapshot: Path
) -> None:
    node = world.services.settings.node_memory_bytes
    weights = snapshot / "model.safetensors"
    grow(weights, 10 * node // 13 + 10)
    error = await refusal(world)
    assert (error.status_code, error.code) == (422, "model_too_large")
    # 90 billion parameters of float32 fit, but no price class is that large.
    grow(weights, 4 * 90_000_000_000)
    error = await refusal(world)
    assert (error.status_code, error.code) == (409, "pricing_unavailable")
    assert error.response.headers["x-should-retry"] == "false"
    # Small weights with an enormous cache: 8 · (8,192 + 64) tokens · 2 · layers · heads · width · 4 bytes.
    grow(weights, 4_200_000)
    per_token = node // (8 * (8192 + 64))
    edit(snapshot / "config.json", num_hidden_layers=1, num_key_value_heads=1, head_dim=per_token // 8 + 1)
    error = await refusal(world)
    assert (error.status_code, error.code) == (422, "model_too_large")
    # Of a hybrid model only the layers of full attention keep one.
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    edit(snapshot / "config.json", num_hidden_layers=4, head_dim=per_token // 8 - 100, layer_types=kinds)
    assert (await place(world)).status == "validating"


@row("Error codes", "422 exceeds_generation_deadline")
async def test_a_file_that_takes_longer_than_its_window_is_refused(world: World) -> None:
    # 2,800 lines of 64 samples of 32,768 tokens are 41 hours at the 40,000 a second of the smallest class.
    lines = [chat_line(f"q{number}", n=64, max_tokens=32_768) for number in range(2800)]
    error = await refusal(world, *lines)
    assert (error.status_code, error.code) == (422, "exceeds_generation_deadline")
    assert error.param == "completion_window"
    error = await refusal(world, *lines, completion_window="48h")
    assert error.code == "insufficient_balance"


@row("Model and revision", "metadata.revision")
@row("Cases: faults", "repository main moves between quote and run")
async def test_a_batch_never_moves_to_a_newer_commit(world: World, snapshot: Path) -> None:
    made = await place(world)
    assert made.to_dict()["reliquary_revision"] == REVISION
    newer = snapshot.parent / ("f" * 40)
    shutil.copytree(snapshot, newer)
    edit(newer / "generation_config.json", eos_token_id=5)
    (snapshot.parents[1] / "refs" / "main").write_text("f" * 40)
    shutil.rmtree(snapshot)  # not even the old commit's files are needed any more
    seen = set()

    def answer(task: Any, index: int) -> list[int]:
        seen.add(task.model.revision)
        return five_tokens(task, index)

    await world.finish(answer)
    async with world.client() as client:
        ended = await client.batches.retrieve(made.id)
    assert (ended.status, ended.to_dict()["reliquary_revision"], seen) == ("completed", REVISION, {REVISION})
    assert (await place(world)).to_dict()["reliquary_revision"] == "f" * 40
    error = await refusal(world, metadata={"revision": "main"})
    assert (error.status_code, error.code) == (400, "invalid_revision")


@row("Line: fields of body", "tools")
async def test_a_model_whose_template_takes_no_tools_refuses_them(world: World, snapshot: Path) -> None:
    (snapshot / "chat_template.jinja").write_text("{{ messages[0].content }}")
    tools = [{"type": "function", "function": {"name": "add"}}]
    made = await place(world, chat_line("plain"), chat_line("tools", tools=tools), chat_line("none", tools=[]))
    await world.finish(five_tokens)
    async with world.client() as client:
        ended = await client.batches.retrieve(made.id)
        (error,) = (await client.files.content(str(ended.error_file_id))).text.splitlines()
    assert (json.loads(error)["custom_id"], json.loads(error)["error"]["code"]) == ("tools", "tools_unavailable")


@row("Decided: lines", "chat_template_kwargs")
@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception('only users may speak') }}",
    ],
    ids=["endless", "huge", "attributes", "its own refusal"],
)
async def test_a_hostile_template_ends_in_template_error_and_harms_nothing_else(
    world: World, snapshot: Path, template: str
) -> None:
    good = (snapshot / "chat_template.jinja").read_text()
    (snapshot / "chat_template.jinja").write_text(template)
    hostile = asyncio.create_task(refusal(world))
    async with world.client() as client:
        assert (await client.batches.list()).data == []
    error = await hostile
    assert (error.status_code, error.code) == (422, "invalid_batch_file")
    assert "template_error" in error.message
    (snapshot / "chat_template.jinja").write_text(good)
    assert (await place(world)).status == "validating"
