"""Loading a model's weights: safetensors only, and never code of the repository."""

from collections.abc import Collection, Mapping
from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedModel

from protocol.errors import HubError


def load_model(snapshot: Path, device: str) -> PreTrainedModel:
    """The causal language model of a snapshot, in the precision of its configuration, ready to run.

    Of a model that reads images too, it is the language model alone: the library maps the class, and what the file
    has for images stays unused.

    Raises:
        HubError: the files lack weights of the model; the library alone would go on with random ones.
    """
    loaded: tuple[PreTrainedModel, Mapping[str, Collection[str]]] = AutoModelForCausalLM.from_pretrained(
        snapshot,
        dtype="auto",
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise HubError(f"{snapshot} lacks {len(missing)} of the model's weights, {missing[0]} first")
    return model.to(device).eval()


def engine_name(model: PreTrainedModel) -> str:
    """What calibrations call this engine: hf/ and the precision."""
    return f"hf/{str(model.dtype).removeprefix('torch.')}"
