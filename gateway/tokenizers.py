"""The tokenizers of pinned models, kept from the order to its export: a hub that is down delays no delivery."""

import json
from dataclasses import asdict
from hashlib import sha256

from gateway.rendering import TokenizerFiles
from gateway.services import Services


def _key(repo: str, revision: str) -> str:
    """A commit's files never change, so one copy serves all orders of it."""
    return f"tokenizers/{sha256(repo.encode()).hexdigest()[:16]}-{revision}"


async def keep_tokenizer(services: Services, repo: str, revision: str, tokenizer: TokenizerFiles) -> None:
    """Store a tokenizer, unless it is stored already."""
    key = _key(repo, revision)
    try:
        await services.blobs.size(key)
    except FileNotFoundError:
        await services.blobs.put(key, json.dumps(asdict(tokenizer)).encode())


async def kept_tokenizer(services: Services, repo: str, revision: str) -> TokenizerFiles:
    """The tokenizer of a model that was ordered.

    Raises:
        FileNotFoundError: it was not kept.
    """
    key = _key(repo, revision)
    data = await services.blobs.get_range(key, 0, await services.blobs.size(key))
    return TokenizerFiles(**json.loads(data))
