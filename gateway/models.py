"""Pinning a model: which commit, which files, and what of them shapes the draws."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

from pydantic import ValidationError

from gateway.errors import InvalidRequest, Unavailable, Unprocessable
from gateway.rendering import TokenizerFiles
from protocol.encoding import canonical_json
from protocol.errors import HubUnavailable, ModelNotFound, ModelPrivate
from protocol.models import ARCHITECTURES, MAIN, Architecture, ModelSpec, RepositoryFile, is_repo, is_revision

log = logging.getLogger("reliquary.gateway")

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


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
    """A model at its commit, what rendering needs of it, and how much a running sequence takes.

    Attributes:
        kv_bytes_per_token: of the key-value cache of one sequence, for each of its tokens.
    """

    spec: ModelSpec
    tokenizer: TokenizerFiles
    kv_bytes_per_token: int


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
        files = {file.name: file.size_bytes for file in await hub.list_files(repo, pinned)}
        return await _pinned(_Repository(hub, repo, pinned, files))
    except ModelPrivate as error:
        raise Unprocessable("model_private", str(error), param="model") from error
    except ModelNotFound as error:
        if error.revision == MAIN:
            message = f"main of {repo} could not be read; name a commit in metadata.revision"
            raise InvalidRequest("invalid_revision", message, param="metadata.revision") from error
        raise Unprocessable("model_not_found", str(error), param="model") from error
    except HubUnavailable as error:
        log.warning("model hub unavailable", extra={"action": "pin_model", "model": repo, "reason": error.reason})
        raise Unavailable("model_lookup_unavailable", "the model hub does not answer; retry shortly") from error


def _unsupported(reason: str) -> Unprocessable:
    return Unprocessable("model_unsupported", reason, param="model")


@dataclass(frozen=True)
class _Repository:
    """A repository at a commit, with the sizes in bytes of its files."""

    hub: ModelHub
    repo: str
    revision: str
    files: Mapping[str, int]

    async def text(self, name: str) -> str:
        """A file's text."""
        try:
            return (await self.hub.read_file(self.repo, self.revision, name)).decode()
        except UnicodeDecodeError as error:
            raise _unsupported(f"{name} is not UTF-8") from error

    async def json(self, name: str) -> Mapping[str, Any]:
        """A file's JSON object; empty without the file."""
        if name not in self.files:
            return {}
        try:
            value = json.loads(await self.text(name))
            json.dumps(value, ensure_ascii=False).encode()  # lone surrogates could be neither hashed nor sent
        except (ValueError, RecursionError) as error:
            raise _unsupported(f"{name} is not usable JSON") from error
        if not isinstance(value, dict):
            raise _unsupported(f"{name} is not a JSON object")
        return value


async def _pinned(repository: _Repository) -> PinnedModel:
    for needed in ("config.json", "tokenizer.json"):
        if needed not in repository.files:
            raise _unsupported(f"the repository has no {needed}")
    config = await repository.json("config.json")
    architecture = _architecture(config)
    config = _text_config(config, architecture)
    dtype = _dtype(config)
    weights = await _weights_bytes(repository)
    generation = await repository.json("generation_config.json")
    tokenizer_json = await repository.text("tokenizer.json")
    tokenizer_config = await repository.json("tokenizer_config.json")
    template = _template(tokenizer_config)
    if "chat_template.jinja" in repository.files:
        template = await repository.text("chat_template.jinja")
    # A tokenizer may be many megabytes: the event loop does not wait for it.
    vocab_size = min(await asyncio.to_thread(_true_vocabulary, tokenizer_json), _positive(config, "vocab_size"))
    try:
        spec = ModelSpec(
            repo=repository.repo,
            revision=repository.revision,
            architecture=architecture.name,
            tokenizer_sha256=sha256(tokenizer_json.encode()).hexdigest(),
            chat_template_sha256=None if template is None else sha256(template.encode()).hexdigest(),
            eos_token_ids=_eos(generation, config, vocab_size),
            vocab_size=vocab_size,
            context_length=_positive(config, "max_position_embeddings"),
            dtype=dtype,
            parameter_count=max(1, weights // DTYPE_BYTES[dtype]),
            weights_bytes=weights,
        )
    except ValidationError as error:
        raise _unsupported(f"{error.errors()[0]['loc'][0]} is out of range") from error
    tokenizer = _tokenizer_files(spec, tokenizer_json, template, _special_tokens(tokenizer_config))
    return PinnedModel(spec, tokenizer, _kv_values_per_token(config) * DTYPE_BYTES[dtype])


def _tokenizer_files(
    spec: ModelSpec, tokenizer_json: str, template: str | None, special: Mapping[str, str]
) -> TokenizerFiles:
    identity = canonical_json([spec.tokenizer_sha256, spec.chat_template_sha256, special, spec.vocab_size])
    return TokenizerFiles(
        sha256=sha256(identity).hexdigest(),
        tokenizer_json=tokenizer_json,
        chat_template=template,
        special_tokens=special,
        vocab_size=spec.vocab_size,
    )


async def _weights_bytes(repository: _Repository) -> int:
    """The size of the weights that are loaded: the index's files, else the one file; other copies do not count."""
    if WEIGHTS_INDEX in repository.files:
        shards = (await repository.json(WEIGHTS_INDEX)).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise _unsupported(f"{WEIGHTS_INDEX} has no weight_map")
        names = set(shards.values())
    else:
        names = {WEIGHTS}
    missing = sorted(name for name in names if repository.files.get(name, 0) == 0 or "/" in name)
    if missing or not names:
        raise _unsupported(f"the repository lacks top-level safetensors weights ({(missing or [WEIGHTS])[0][:100]})")
    return sum(repository.files[name] for name in names)


def _architecture(config: Mapping[str, Any]) -> Architecture:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or name not in ARCHITECTURES:
        message = f"{str(name)[:100]} is not supported; supported: {', '.join(ARCHITECTURES)}"
        raise Unprocessable("architecture_unsupported", message, param="model")
    return ARCHITECTURES[name]


def _text_config(config: Mapping[str, Any], architecture: Architecture) -> Mapping[str, Any]:
    """The language model's configuration; what it does not say, the whole file may."""
    if architecture.text_config is None:
        return config
    nested = config.get(architecture.text_config)
    if not isinstance(nested, dict):
        raise _unsupported(f"config.json has no {architecture.text_config}")
    return {**config, **nested}


def _kv_values_per_token(config: Mapping[str, Any]) -> int:
    """Numbers that the key-value cache holds for a token: two vectors a head and layer.

    Layers of linear attention keep a state of fixed size instead, which is left out.
    """
    layers, heads = _positive(config, "num_hidden_layers"), _positive(config, "num_attention_heads")
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        layers = sum(kind != "linear_attention" for kind in kinds)
    elif config.get("full_attention_interval") is not None:
        layers //= _positive(config, "full_attention_interval")
    kv_heads = heads if config.get("num_key_value_heads") is None else _positive(config, "num_key_value_heads")
    width = config.get("head_dim")
    head_dim = _positive(config, "hidden_size") // heads if width is None else _positive(config, "head_dim")
    return 2 * layers * kv_heads * head_dim


def _dtype(config: Mapping[str, Any]) -> str:
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if name not in DTYPE_BYTES:
        raise _unsupported(f"the dtype {name[:32]} is not served; served: {', '.join(DTYPE_BYTES)}")
    return name


def _positive(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value <= 0:
        raise _unsupported(f"config.json has no usable {key}")
    return value


def _true_vocabulary(tokenizer_json: str) -> int:
    """One more than the highest id that the tokenizer can make or read."""
    try:
        tokenizer = json.loads(tokenizer_json)
        vocabulary = tokenizer["model"]["vocab"]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        return 1 + max(int(token) for token in [*ids, *(token["id"] for token in tokenizer.get("added_tokens") or ())])
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _unsupported("tokenizer.json cannot be read") from error


def _eos(generation: Mapping[str, Any], config: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    value = generation.get("eos_token_id")
    if value is None:
        value = config.get("eos_token_id")
    ids: Sequence[Any] = value if isinstance(value, list) else [value]
    if not ids or not all(type(token) is int and 0 <= token < vocab_size for token in ids):
        raise _unsupported("neither generation_config.json nor config.json has a usable eos_token_id")
    return tuple(sorted(set(ids)))


def _template(tokenizer_config: Mapping[str, Any]) -> str | None:
    value = tokenizer_config.get("chat_template")
    if isinstance(value, list):  # named templates; "default" is the one for chats
        named = [item for item in value if isinstance(item, dict)]
        value = next((item.get("template") for item in named if item.get("name") == "default"), None)
    return value if isinstance(value, str) else None


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in SPECIAL_TOKENS:
        value = tokenizer_config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found
