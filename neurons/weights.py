"""Loading a model's weights: safetensors only, and never code of the repository."""

from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedModel


def load_model(snapshot: Path, device: str) -> PreTrainedModel:
    """The causal language model of a snapshot, in the precision of its configuration, ready to run."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        snapshot, dtype="auto", use_safetensors=True, local_files_only=True, trust_remote_code=False
    )
    return model.to(device).eval()


def engine_name(model: PreTrainedModel) -> str:
    """What calibrations call this engine: hf/ and the precision."""
    return f"hf/{str(model.dtype).removeprefix('torch.')}"
