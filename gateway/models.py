"""Pinning a model: which commit, which files, and what of them shapes the draws."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

from gateway.errors import InvalidRequest, Unavailable, Unprocessable
from gateway.rendering import TokenizerFiles
from protocol.encoding import canonical_json
from protocol.errors import HubUnavailable, ModelNotFound, ModelPrivate
from protocol.models import SUPPORTED_ARCHITECTURES, ModelSpec, RepositoryFile, is_repo, is_revision

log = logging.getLogger("reliquary.gateway")

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ModelHub(Protocol):
    """Where model repositories are read; every method raises protocol.errors.HubError's kinds."""

    async def resolve_main(self, repo: str) -> str:
        """The commit that main names: 40 hex digits."""
        ...

    async def list_files(self, repo: str, revision: str) -> tuple[RepositoryFile, ...]:
        """The files at a commit."""
        ...

    async def read_file(self, repo: str, revision: str, name: str) -> bytes:
        """A configuration file; weights are never read here."""
        ...


@dataclass(frozen=True)
class PinnedModel:
    """A model at its commit, and what rendering needs of it."""

    spec: ModelSpec
    tokenizer: TokenizerFiles


async def pin_model(hub: ModelHub, repo: str, revision: str | None) -> PinnedModel:
    """Read a model's configuration at a commit, main's if none is named.

    Raises:
        InvalidRequest: invalid_model, invalid_revision.
        NotFound, Unprocessable: model_not_found, model_private, model_unsupported, architecture_unsupported.
        Unavailable: model_lookup_unavailable.
    """
    if not is_repo(repo):
        raise InvalidRequest("invalid_model", "a model is named org/name", param="model")
    if revision is not None and not is_revision(revision):
        raise InvalidRequest("invalid_revision", "a revision is a full 40-character commit", param="metadata.revision")
    try:
        pinned = revision if revision is not None else await hub.resolve_main(repo)
        return await _read(hub, repo, pinned)
    except ModelPrivate as error:
        raise Unprocessable("model_private", str(error), param="model") from error
    except ModelNotFound as error:
        raise Unprocessable("model_not_found", str(error), param="model") from error
    except HubUnavailable as error:
        log.warning("model hub unavailable", extra={"action": "pin_model", "model": repo, "reason": error.reason})
        raise Unavailable("model_lookup_unavailable", "the model hub does not answer; retry shortly") from error


async def _read(hub: ModelHub, repo: str, revision: str) -> PinnedModel:
    files = {file.name: file.size_bytes for file in await hub.list_files(repo, revision)}
    weights = sum(size for name, size in files.items() if name.endswith(".safetensors") and "/" not in name)
    for needed in ("config.json", "tokenizer.json"):
        if needed not in files:
            raise _unsupported(f"the repository has no {needed}")
    if weights == 0:
        raise _unsupported("the repository has no top-level safetensors weights")
    config = await _json(hub, repo, revision, "config.json")
    architecture = _architecture(config)
    tokenizer_bytes = await hub.read_file(repo, revision, "tokenizer.json")
    generation = await _json(hub, repo, revision, "generation_config.json") if "generation_config.json" in files else {}
    tokenizer_config = (
        await _json(hub, repo, revision, "tokenizer_config.json") if "tokenizer_config.json" in files else {}
    )
    template = _template(tokenizer_config)
    if "chat_template.jinja" in files:
        template = (await hub.read_file(repo, revision, "chat_template.jinja")).decode()
    vocab_size = min(_true_vocabulary(tokenizer_bytes), _positive(config, "vocab_size"))
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    spec = ModelSpec(
        repo=repo,
        revision=revision,
        architecture=architecture,
        tokenizer_sha256=sha256(tokenizer_bytes).hexdigest(),
        chat_template_sha256=None if template is None else sha256(template.encode()).hexdigest(),
        eos_token_ids=_eos(generation, config, vocab_size),
        vocab_size=vocab_size,
        context_length=_positive(config, "max_position_embeddings"),
        dtype=dtype,
        parameter_count=max(1, weights // DTYPE_BYTES.get(dtype, 4)),
        weights_bytes=weights,
    )
    special = _special_tokens(tokenizer_config)
    identity = canonical_json([spec.tokenizer_sha256, spec.chat_template_sha256, special, vocab_size])
    tokenizer = TokenizerFiles(
        sha256=sha256(identity).hexdigest(),
        tokenizer_json=tokenizer_bytes.decode(),
        chat_template=template,
        special_tokens=special,
        vocab_size=vocab_size,
    )
    return PinnedModel(spec, tokenizer)


def _unsupported(reason: str) -> Unprocessable:
    return Unprocessable("model_unsupported", reason, param="model")


async def _json(hub: ModelHub, repo: str, revision: str, name: str) -> Mapping[str, Any]:
    try:
        value = json.loads(await hub.read_file(repo, revision, name))
    except (ValueError, RecursionError) as error:
        raise _unsupported(f"{name} is not JSON") from error
    if not isinstance(value, dict):
        raise _unsupported(f"{name} is not a JSON object")
    return value


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if name not in SUPPORTED_ARCHITECTURES:
        supported = ", ".join(SUPPORTED_ARCHITECTURES)
        raise Unprocessable(
            "architecture_unsupported", f"{name} is not supported; supported: {supported}", param="model"
        )
    return str(name)


def _positive(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise _unsupported(f"config.json has no usable {key}")
    return value


def _true_vocabulary(tokenizer_json: bytes) -> int:
    """One more than the highest id that the tokenizer can make or read."""
    try:
        tokenizer = json.loads(tokenizer_json)
        vocabulary = tokenizer["model"]["vocab"]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        return 1 + max(int(token) for token in [*ids, *(token["id"] for token in tokenizer.get("added_tokens", []))])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unsupported("tokenizer.json cannot be read") from error


def _eos(generation: Mapping[str, Any], config: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    value = generation.get("eos_token_id", config.get("eos_token_id"))
    ids: Sequence[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and 0 <= token < vocab_size for token in ids) or not ids:
        raise _unsupported("neither generation_config.json nor config.json has a usable eos_token_id")
    return tuple(sorted(set(ids)))


def _template(tokenizer_config: Mapping[str, Any]) -> str | None:
    value = tokenizer_config.get("chat_template")
    if isinstance(value, list):  # named templates; "default" is the one for chats
        value = next((item.get("template") for item in value if item.get("name") == "default"), None)
    return value if isinstance(value, str) else None


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in SPECIAL_TOKENS:
        value = tokenizer_config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found
