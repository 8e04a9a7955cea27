"""Pinning a model: what is read, and every reason to refuse."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from customer import MODEL, MODELS, REVISION, FolderHub

from gateway.errors import Refusal
from gateway.models import pin_model


@pytest.fixture
def hub(tmp_path: Path) -> FolderHub:
    """A copy of the demo model that a test may spoil."""
    shutil.copytree(MODELS / MODEL, tmp_path / MODEL)
    return FolderHub(tmp_path)


@pytest.fixture
def snapshot(tmp_path: Path, hub: FolderHub) -> Path:
    """Its files."""
    return tmp_path / MODEL / "snapshots" / REVISION


def edit(path: Path, **changes: Any) -> None:
    value = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: each for key, each in value.items() if each is not None}))


async def refusal(hub: FolderHub, repo: str = MODEL, revision: str | None = REVISION) -> str:
    with pytest.raises(Refusal) as refused:
        await pin_model(hub, repo, revision)
    return refused.value.code


async def test_what_shapes_the_draws_is_read_from_the_pinned_files(hub: FolderHub) -> None:
    spec = (await pin_model(hub, MODEL, None)).spec
    assert (spec.revision, spec.architecture, spec.dtype) == (REVISION, "Qwen3ForCausalLM", "float32")
    assert (spec.vocab_size, spec.eos_token_ids, spec.context_length) == (2000, (1993, 1995), 2048)
    assert spec.parameter_count == pytest.approx(1_049_984, rel=0.01)


@pytest.mark.parametrize(("repo", "revision", "code"), [
    ("qwen", None, "invalid_model"),
    ("a/b/c", None, "invalid_model"),
    ("../x", None, "invalid_model"),
    (MODEL, "main", "invalid_revision"),
    (MODEL, REVISION[:39], "invalid_revision"),
    (MODEL, REVISION.upper(), "invalid_revision"),
    (MODEL, "0" * 40, "model_not_found"),
    ("no/body", None, "model_not_found"),
])  # fmt: skip
async def test_what_names_no_model_is_refused(hub: FolderHub, repo: str, revision: str | None, code: str) -> None:
    assert await refusal(hub, repo, revision) == code


async def test_a_hub_that_is_down_is_unavailable(hub: FolderHub) -> None:
    hub.is_down = True
    assert await refusal(hub) == "model_lookup_unavailable"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
async def test_a_repository_without_a_file_that_is_needed_is_unsupported(
    hub: FolderHub, snapshot: Path, name: str
) -> None:
    (snapshot / name).unlink()
    assert await refusal(hub) == "model_unsupported"


async def test_another_architecture_is_refused_with_the_names_of_the_supported_ones(
    hub: FolderHub, snapshot: Path
) -> None:
    edit(snapshot / "config.json", architectures=["GPT2LMHeadModel"])
    with pytest.raises(Refusal, match="Qwen3ForCausalLM") as refused:
        await pin_model(hub, MODEL, REVISION)
    assert refused.value.code == "architecture_unsupported"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"architectures": 5}'])
async def test_a_configuration_that_makes_no_sense_is_refused(hub: FolderHub, snapshot: Path, text: str) -> None:
    (snapshot / "config.json").write_text(text)
    assert await refusal(hub) in ("model_unsupported", "architecture_unsupported")


async def test_ends_come_from_the_generation_config_first(hub: FolderHub, snapshot: Path) -> None:
    edit(snapshot / "generation_config.json", eos_token_id=7)
    assert (await pin_model(hub, MODEL, REVISION)).spec.eos_token_ids == (7,)
    (snapshot / "generation_config.json").unlink()
    assert (await pin_model(hub, MODEL, REVISION)).spec.eos_token_ids == (1995,)
    edit(snapshot / "config.json", eos_token_id=None)
    assert await refusal(hub) == "model_unsupported"


async def test_a_template_in_the_tokenizer_config_is_used_where_there_is_no_file(
    hub: FolderHub, snapshot: Path
) -> None:
    (snapshot / "chat_template.jinja").unlink()
    assert (await pin_model(hub, MODEL, REVISION)).tokenizer.chat_template is None
    edit(
        snapshot / "tokenizer_config.json",
        chat_template=[{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}],
    )
    assert (await pin_model(hub, MODEL, REVISION)).tokenizer.chat_template == "d"
    edit(snapshot / "tokenizer_config.json", chat_template="plain")
    assert (await pin_model(hub, MODEL, REVISION)).tokenizer.chat_template == "plain"
