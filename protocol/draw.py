"""The forced draw: sample key → noise → token. The slow, obvious reference; SPEC.md §2–§4 is its text.

Gumbel-max with shared noise: with it two honest parties whose distributions differ by total variation TV disagree on
at most 2·TV/(1+TV) of tokens (Daliri, Musco and Suresh 2024, "Coupling without communication").
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.beacon import Pulse
from protocol.encoding import digest, encode_fields, token_ids_digest
from protocol.models import ModelRef
from protocol.params import V1
from protocol.sampling import Sampling

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class SampleIdentity:
    """Everything but the index that fixes a sample's draws; nothing in it is a miner's choice."""

    model: ModelRef
    endpoint: str
    sampling: Sampling
    prompt_token_ids: Sequence[int]
    custom_id: str
    randomness: bytes


def seed_randomness(seed: int) -> bytes:
    """The randomness of a customer's seed: the same file, revision and seed give the same draws."""
    return encode_fields(("seed", seed))


def beacon_randomness(pulse: Pulse, order_id: str) -> bytes:
    """The randomness of a beacon round that was named when the order was reserved."""
    return encode_fields(("beacon", pulse.chain, pulse.round, pulse.signature, order_id))


def sample_keys(identity: SampleIdentity, sample_indices: Sequence[int]) -> list[bytes]:
    """The 32-byte keys of some samples of one line."""
    fields = (
        V1.version,
        identity.model.repo,
        identity.model.revision,
        identity.endpoint,
        identity.sampling.draw_digest(),
        token_ids_digest(identity.prompt_token_ids),
        identity.custom_id,
    )
    return [digest("reliquary/sample-key", *fields, index, identity.randomness) for index in sample_indices]


def sample_key(identity: SampleIdentity, sample_index: int) -> bytes:
    """The 32-byte key of one sample."""
    return sample_keys(identity, (sample_index,))[0]


def position_seed(key: bytes, position: int) -> int:
    """The 64-bit seed of a completion position: BLAKE2b-64 of the position, keyed with the sample key."""
    hashed = hashlib.blake2b(position.to_bytes(8, "little"), digest_size=8, key=key)
    return int.from_bytes(hashed.digest(), "little")


def _finalise(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014), modulo 2**64."""
    x = (x ^ (x >> np.uint64(30))) * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))


def gumbel(seed: int, token_ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """The Gumbel noise of tokens at a position: u = (53 bits + 1/2)·2⁻⁵³, g = −log(−log u)."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is meant
        start = _finalise(np.array([seed], dtype=np.uint64))
        z = _finalise(start + (token_ids.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    u = ((z >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: NDArray[np.float64] = -np.log(-np.log(u))
    return noise


def scale(logits: NDArray[np.float32], sampling: Sampling) -> NDArray[np.float32]:
    """Logits over temperature, rounded to float32: the values that every later comparison sees."""
    scaled: NDArray[np.float32] = logits.astype(np.float32) / np.float32(sampling.temperature)
    return scaled


def kept_mask(scaled: NDArray[np.float32], sampling: Sampling) -> NDArray[np.bool_]:
    """Which tokens min-p, then top-k, then top-p leave; scaled is [V], ties are kept."""
    wide = scaled.astype(np.float64)
    kept = np.ones(len(wide), dtype=np.bool_)
    if sampling.min_p > 0:
        kept &= wide >= wide.max() + np.log(sampling.min_p)
    if 0 < sampling.top_k < kept.sum():
        kept &= wide >= np.sort(wide[kept])[-sampling.top_k]
    if sampling.top_p < 1:
        weights = np.where(kept, np.exp(wide - wide.max()), 0.0)
        order = np.argsort(-wide, kind="stable")
        before = np.concatenate(([0.0], np.cumsum(weights[order])))
        first_of_ties = np.searchsorted(-wide[order], -wide, side="left")
        kept &= before[first_of_ties] < sampling.top_p * before[-1]
    return kept


def draw(logits: NDArray[np.float32], key: bytes, position: int, sampling: Sampling) -> int:
    """The token that the key forces at a completion position.

    Args:
        logits: [V] raw logits over the true vocabulary.
        key: 32-byte sample key.
        position: completion position, from 0.
        sampling: temperature and truncation.
    """
    scaled = scale(logits, sampling)
    scores = scaled.astype(np.float64) + gumbel(position_seed(key, position), np.arange(len(scaled)))
    return int(np.argmax(np.where(kept_mask(scaled, sampling), scores, -np.inf)))
