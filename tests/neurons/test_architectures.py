"""Each supported architecture: loaded as a language model, drawn by the miner's engine, replayed by the validator's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_model import SPEC, VOCAB_SIZE, job, run_all
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from miner.hf_engine import HfEngine
from neurons.weights import load_model
from protocol.draw import draw
from protocol.errors import HubError
from protocol.models import ARCHITECTURES
from validator.forward import TeacherForced

TEXT: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
HYBRID: dict[str, Any] = {
    **TEXT, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
VISION = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4,
    "spatial_merge_size": 1, "temporal_patch_size": 1,
}  # fmt: skip
BUILDERS = {
    "Qwen3ForCausalLM": lambda: Qwen3ForCausalLM(Qwen3Config(**TEXT)),
    "Qwen3_5ForCausalLM": lambda: Qwen3_5ForCausalLM(Qwen3_5TextConfig(**HYBRID)),
    "Qwen3_5ForConditionalGeneration": lambda: Qwen3_5ForConditionalGeneration(
        Qwen3_5Config(text_config=HYBRID, vision_config=VISION, tie_word_embeddings=False)
    ),
    "LlamaForCausalLM": lambda: LlamaForCausalLM(LlamaConfig(**TEXT)),
}
TOLERANCE = 1e-4


@pytest.fixture(params=sorted(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest) -> str:
    """The name of each supported one."""
    return str(request.param)


@pytest.fixture
def original(architecture: str) -> PreTrainedModel:
    """A small model of it with random weights, whose choices are neither flat nor certain."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: PreTrainedModel = BUILDERS[architecture]().eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(12)
    return model


@pytest.fixture
def snapshot(original: PreTrainedModel, architecture: str, tmp_path: Path) -> Path:
    """Its files, as a repository has them."""
    original.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [architecture]
    return tmp_path


@torch.inference_mode()
def logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """[len(ids), VOCAB_SIZE] of one pass without a cache."""
    found: torch.Tensor = model(input_ids=torch.tensor([ids])).logits[0, :, :VOCAB_SIZE].float()
    return found


def test_the_text_model_with_the_files_weights_is_loaded(original: PreTrainedModel, snapshot: Path) -> None:
    loaded = load_model(snapshot, "cpu")
    assert type(loaded).__name__.endswith("ForCausalLM")
    ids = [5, 6, 7, 8, 9, 10]
    assert torch.equal(logits(loaded, ids), logits(original, ids))


def test_weights_that_are_missing_are_never_made_up(snapshot: Path) -> None:
    path = snapshot / "model.safetensors"
    weights = load_file(path)
    del weights[next(name for name in weights if "layers.1.mlp" in name)]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(HubError, match="lacks"):
        load_model(snapshot, "cpu")


def test_the_engine_draws_in_a_batch_what_the_model_alone_says(original: PreTrainedModel, snapshot: Path) -> None:
    jobs = [job(number) for number in range(6)]
    jobs += [job(10 + number, prompt_token_ids=jobs[0].prompt_token_ids) for number in range(2)]
    # Longer than the 64 positions that linear attention takes in one step, so that padding shifts them.
    jobs += [
        job(20 + number, prompt_token_ids=tuple(10 + at % 80 for at in range(75 + 80 * number))) for number in (0, 1)
    ]
    drawn = run_all(HfEngine(load_model(snapshot, "cpu"), SPEC.ref, 16), jobs)
    for each in jobs:
        ids = list(drawn[each.job_id])
        rows = logits(original, [*each.prompt_token_ids, *ids]).numpy()[len(each.prompt_token_ids) - 1 :]
        assert ids == [draw(rows[at], each.sample_key, at, each.sampling) for at in range(len(ids))]


def test_the_validators_pass_in_chunks_is_the_models_in_one(original: PreTrainedModel, snapshot: Path) -> None:
    prompt, claims = [5, 6, 7, 8, 9], [[10, 11, 12, 13, 14, 15, 16], [20, 21], [30, 31, 32, 33]]
    found: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    for rows in TeacherForced(load_model(snapshot, "cpu"), VOCAB_SIZE, 3).run(prompt, claims):
        assert rows.first_position == sum(len(each) for each in found[rows.claim])
        found[rows.claim].append(rows.logits)
    for at, claim in enumerate(claims):
        whole = logits(original, prompt + claim)[len(prompt) - 1 : -1]
        assert torch.allclose(torch.cat(found[at]), whole, atol=TOLERANCE)
