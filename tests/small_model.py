"""A tiny random model and jobs for it; nothing is read from disk."""

import hashlib
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from miner.engine import DrawJob, FinishedSample
from miner.hf_engine import HfEngine
from protocol.models import ModelSpec
from protocol.sampling import Sampling

VOCAB_SIZE = 100
EOS = (7, 9)
SPEC = ModelSpec(
    repo="tiny/random",
    revision="0" * 40,
    architecture="Qwen3ForCausalLM",
    tokenizer_sha256="0" * 64,
    chat_template_sha256=None,
    eos_token_ids=EOS,
    vocab_size=VOCAB_SIZE,
    context_length=512,
    dtype="float32",
    parameter_count=1,
    weights_bytes=4,
)
MIXED = [
    Sampling(max_tokens=40),
    Sampling(max_tokens=24, temperature=0.7, top_k=10, top_p=0.9),
    Sampling(max_tokens=40, top_p=0.6),
    Sampling(max_tokens=16, temperature=2.0, min_p=0.1),
]


def small_model() -> Qwen3ForCausalLM:
    """Two layers, a widened head so that its choices are neither flat nor certain, and padding rows that are large."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen3Config(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=512, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(12)
        model.lm_head.weight[VOCAB_SIZE:].mul_(5)  # a missing mask over padding rows would be seen
    return model


def job(number: int, **changes: Any) -> DrawJob:
    """A job with a prompt, a sampling and a key of its own."""
    prompt = tuple(1 + (number * 13 + at * 7) % 90 for at in range(3 + number % 5))
    fields: dict[str, Any] = {
        "job_id": f"lease/{number}",
        "model": SPEC,
        "sampling": MIXED[number % len(MIXED)],
        "prompt_token_ids": prompt,
        "sample_key": hashlib.sha256(f"job {number}".encode()).digest(),
    }
    return DrawJob(**{**fields, **changes})


def run_all(engine: HfEngine, jobs: list[DrawJob]) -> dict[str, tuple[int, ...]]:
    """The drawn ids by job id."""
    engine.add(jobs)
    found: list[FinishedSample] = []
    while engine.unfinished:
        found += engine.step()
    return {sample.job_id: sample.token_ids for sample in found}
