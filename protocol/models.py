"""What identifies a model exactly, and the architectures that can be served."""

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAIN = "main"
"""The branch whose commit is taken where none is named."""
REPO_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$"
REVISION_PATTERN = r"^[0-9a-f]{40}$"

Repo = Annotated[str, StringConstraints(pattern=REPO_PATTERN)]
Revision = Annotated[str, StringConstraints(pattern=REVISION_PATTERN)]
Sha256Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Architecture:
    """A model architecture that can be served, always as a language model of text alone.

    Attributes:
        name: config.json architectures[0].
        text_config: the key of config.json under which the language model's own configuration stands, in models
            that read images too; None where it is the whole file.
    """

    name: str
    text_config: str | None = None


ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture("Qwen3ForCausalLM"),
        Architecture("Qwen3_5ForCausalLM"),
        Architecture("Qwen3_5ForConditionalGeneration", text_config="text_config"),
        Architecture("LlamaForCausalLM"),
    )
}
"""By name: the one list of what gateway, miner and validator serve."""


def is_repo(name: str) -> bool:
    """Whether name is of the org/name form and safe as two path components."""
    return re.fullmatch(REPO_PATTERN, name) is not None and ".." not in name


def is_revision(name: str) -> bool:
    """Whether name is a full 40-character lower-case commit."""
    return re.fullmatch(REVISION_PATTERN, name) is not None


@dataclass(frozen=True)
class RepositoryFile:
    """One file of a model repository at a commit; name uses "/" as separator."""

    name: str
    size_bytes: int


class ModelRef(BaseModel):
    """A repository at an exact commit."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    repo: Repo
    revision: Revision


class ModelSpec(BaseModel):
    """A pinned model with everything that shapes its draws, read from the files at the pinned commit.

    Attributes:
        architecture: config.json architectures[0].
        tokenizer_sha256: SHA-256 of tokenizer.json.
        chat_template_sha256: SHA-256 of the chat template's UTF-8 text, None without one.
        eos_token_ids: ascending; from generation_config.json, else config.json.
        vocab_size: true vocabulary: ids [0, vocab_size) can be drawn; padding rows of the embedding cannot.
        context_length: max_position_embeddings.
        dtype: torch_dtype/dtype of config.json, e.g. "bfloat16".
        parameter_count: from the safetensors sizes and the dtype.
        weights_bytes: sum of the top-level safetensors files.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    repo: Repo
    revision: Revision
    architecture: str
    tokenizer_sha256: Sha256Hex
    chat_template_sha256: Sha256Hex | None
    eos_token_ids: Annotated[tuple[int, ...], Field(strict=False, min_length=1)]
    vocab_size: Annotated[int, Field(gt=0, lt=2**31)]
    context_length: Annotated[int, Field(gt=0)]
    dtype: str
    parameter_count: Annotated[int, Field(gt=0)]
    weights_bytes: Annotated[int, Field(gt=0)]

    @property
    def ref(self) -> ModelRef:
        """The repository and commit alone."""
        return ModelRef(repo=self.repo, revision=self.revision)
