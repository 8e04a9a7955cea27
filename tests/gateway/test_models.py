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
    assert (spec.vocab_size, spec.eos_token_ids, spec.context_length) == (2000, (1993, 1995), 40_960)
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


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff{}", b'{"a": "\\ud800"', b"[" * 100_000, b"null"])
async def test_a_file_that_cannot_be_read_is_refused(hub: FolderHub, snapshot: Path, name: str, content: bytes) -> None:
    (snapshot / name).write_bytes(content)
    assert await refusal(hub) == "model_unsupported"


@pytest.mark.parametrize(("name", "changes", "code"), [
    ("config.json", {"architectures": []}, "architecture_unsupported"),
    ("config.json", {"architectures": [["Qwen3ForCausalLM"]]}, "architecture_unsupported"),
    ("config.json", {"vocab_size": 0}, "model_unsupported"),
    ("config.json", {"vocab_size": True}, "model_unsupported"),
    ("config.json", {"vocab_size": "2000"}, "model_unsupported"),
    ("config.json", {"max_position_embeddings": None}, "model_unsupported"),
    ("config.json", {"max_position_embeddings": -1}, "model_unsupported"),
    ("config.json", {"dtype": "float8_e4m3fn"}, "model_unsupported"),
    ("generation_config.json", {"eos_token_id": [2000]}, "model_unsupported"),
    ("generation_config.json", {"eos_token_id": []}, "model_unsupported"),
    ("generation_config.json", {"eos_token_id": "5"}, "model_unsupported"),
    ("tokenizer_config.json", {"chat_template": "\ud800"}, "model_unsupported"),
    ("tokenizer.json", {"model": None}, "model_unsupported"),
    ("tokenizer.json", {"model": {"vocab": {}}, "added_tokens": []}, "model_unsupported"),
    ("tokenizer.json", {"added_tokens": [5]}, "model_unsupported"),
    ("tokenizer.json", {"added_tokens": [{"id": float("inf")}]}, "model_unsupported"),
])  # fmt: skip
async def test_a_value_that_no_model_can_have_is_refused(
    hub: FolderHub, snapshot: Path, name: str, changes: dict[str, Any], code: str
) -> None:
    value = {**json.loads((snapshot / name).read_text()), **changes}
    (snapshot / name).write_text(json.dumps(value))
    assert await refusal(hub) == code


async def test_a_vocabulary_too_large_to_be_one_is_refused(hub: FolderHub, snapshot: Path) -> None:
    edit(snapshot / "config.json", vocab_size=2**40)
    edit(snapshot / "tokenizer.json", added_tokens=[{"id": 2**39}])
    assert await refusal(hub) == "model_unsupported"


async def test_padding_rows_of_the_embedding_are_not_in_the_vocabulary(hub: FolderHub, snapshot: Path) -> None:
    edit(snapshot / "config.json", vocab_size=2048)
    assert (await pin_model(hub, MODEL, REVISION)).spec.vocab_size == 2000
    edit(snapshot / "config.json", vocab_size=1999)
    assert (await pin_model(hub, MODEL, REVISION)).spec.vocab_size == 1999


async def test_only_the_weights_that_are_loaded_count(hub: FolderHub, snapshot: Path) -> None:
    one = (await pin_model(hub, MODEL, REVISION)).spec
    (snapshot / "consolidated.safetensors").write_bytes(b"x" * 1000)
    assert (await pin_model(hub, MODEL, REVISION)).spec == one
    (snapshot / "model.safetensors").rename(snapshot / "a.safetensors")
    assert await refusal(hub) == "model_unsupported"
    index = snapshot / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "a.safetensors", "v": "b.safetensors", "u": "a.safetensors"}}))
    assert await refusal(hub) == "model_unsupported"
    (snapshot / "b.safetensors").write_bytes(b"x" * 4000)
    spec = (await pin_model(hub, MODEL, REVISION)).spec
    assert spec.weights_bytes == one.weights_bytes + 4000
    assert spec.parameter_count == (one.weights_bytes + 4000) // 4


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": []}, {"weight_map": {"a": 1}}])
async def test_an_index_without_shards_is_refused(hub: FolderHub, snapshot: Path, index: Any) -> None:
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    assert await refusal(hub) == "model_unsupported"


async def test_half_the_bytes_a_parameter_are_twice_the_parameters(hub: FolderHub, snapshot: Path) -> None:
    full = (await pin_model(hub, MODEL, REVISION)).spec
    edit(snapshot / "config.json", dtype="bfloat16")
    half = (await pin_model(hub, MODEL, REVISION)).spec
    assert (half.dtype, half.parameter_count) == ("bfloat16", full.weights_bytes // 2)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"architectures": 5}'])
async def test_a_configuration_that_makes_no_sense_is_refused(hub: FolderHub, snapshot: Path, text: str) -> None:
    (snapshot / "config.json").write_text(text)
    assert await refusal(hub) in ("model_unsupported", "architecture_unsupported")


async def test_ends_come_from_the_generation_config_first(hub: FolderHub, snapshot: Path) -> None:
    edit(snapshot / "generation_config.json", eos_token_id=7)
    assert (await pin_model(hub, MODEL, REVISION)).spec.eos_token_ids == (7,)
    edit(snapshot / "generation_config.json", eos_token_id=[9, 7, 9])
    assert (await pin_model(hub, MODEL, REVISION)).spec.eos_token_ids == (7, 9)
    (snapshot / "generation_config.json").write_text('{"eos_token_id": null}')
    assert (await pin_model(hub, MODEL, REVISION)).spec.eos_token_ids == (1995,)
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
        chat_template=[5, {"name": "rag", "template": "r"}, {"name": "default", "template": "d"}],
    )
    assert (await pin_model(hub, MODEL, REVISION)).tokenizer.chat_template == "d"
    edit(snapshot / "tokenizer_config.json", chat_template="plain")
    assert (await pin_model(hub, MODEL, REVISION)).tokenizer.chat_template == "plain"


async def test_special_tokens_are_named_as_texts_or_objects(hub: FolderHub, snapshot: Path) -> None:
    edit(snapshot / "tokenizer_config.json", bos_token={"content": "<s>"}, eos_token="</s>", add_bos_token=True)
    tokenizer = (await pin_model(hub, MODEL, REVISION)).tokenizer
    assert (tokenizer.special_tokens["bos_token"], tokenizer.special_tokens["eos_token"]) == ("<s>", "</s>")
    assert "add_bos_token" not in tokenizer.special_tokens


async def test_what_renders_differently_is_kept_under_another_name(hub: FolderHub, snapshot: Path) -> None:
    names = {(await pin_model(hub, MODEL, REVISION)).tokenizer.sha256}
    edit(snapshot / "tokenizer_config.json", bos_token="<other>")
    names.add((await pin_model(hub, MODEL, REVISION)).tokenizer.sha256)
    (snapshot / "chat_template.jinja").write_text("another")
    names.add((await pin_model(hub, MODEL, REVISION)).tokenizer.sha256)
    edit(snapshot / "config.json", vocab_size=1999)
    names.add((await pin_model(hub, MODEL, REVISION)).tokenizer.sha256)
    assert len(names) == 4
