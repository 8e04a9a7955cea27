"""The forced draw: vectors, agreement of the two implementations, and the distribution it draws from."""

import hashlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vectors import load

from protocol.draw import (
    SampleIdentity,
    draw,
    gumbel,
    kept_mask,
    position_seed,
    sample_key,
    sample_keys,
    scale,
)
from protocol.kernels.forced_draw import forced_draw, gumbel_noise, position_seeds
from protocol.models import ModelRef
from protocol.sampling import Sampling

MASK = 2**64 - 1
DRAWS = load("draw")


def from_hex(values: list[str], kind: Any = np.float32) -> Any:
    return np.array([float.fromhex(value) for value in values], dtype=kind)


def splitmix(x: int) -> int:
    """The finaliser in plain integers, straight from the text of SPEC.md."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def integer_gumbel(key: bytes, position: int, token: int) -> float:
    hashed = hashlib.blake2b(position.to_bytes(8, "little"), digest_size=8, key=key).digest()
    start = splitmix(int.from_bytes(hashed, "little"))
    z = splitmix((start + (token + 1) * 0x9E3779B97F4A7C15) & MASK)
    return -math.log(-math.log(((z >> 11) + 0.5) * 2.0**-53))


@pytest.mark.parametrize("vector", load("sample_keys"), ids=lambda vector: vector["name"])
def test_sample_keys_are_those_of_the_vectors(vector: dict[str, Any]) -> None:
    identity = SampleIdentity(
        model=ModelRef(repo=vector["repo"], revision=vector["revision"]),
        endpoint=vector["endpoint"],
        sampling=Sampling(**vector["sampling"]),
        prompt_token_ids=vector["prompt_token_ids"],
        custom_id=vector["custom_id"],
        randomness=bytes.fromhex(vector["randomness"]),
    )
    assert sample_key(identity, vector["sample_index"]).hex() == vector["key"]


def test_no_two_sample_keys_of_the_vectors_are_equal() -> None:
    keys = [vector["key"] for vector in load("sample_keys")]
    assert len(set(keys)) == len(keys)


def test_the_number_of_samples_does_not_change_a_sample() -> None:
    def identity(n: int) -> SampleIdentity:
        model = ModelRef(repo="a/b", revision="0" * 40)
        return SampleIdentity(model, "/v1/completions", Sampling(n=n), [1], "x", b"r")

    assert sample_keys(identity(1), [0]) == sample_keys(identity(4), range(4))[:1]


@pytest.mark.parametrize("vector", load("noise"), ids=lambda vector: str(vector["position"]))
def test_noise_is_that_of_the_vectors_in_integers_numpy_and_torch(vector: dict[str, Any]) -> None:
    key, position, tokens = bytes.fromhex(vector["key"]), vector["position"], vector["token_ids"]
    wanted = from_hex(vector["gumbel"], np.float64)
    assert position_seed(key, position) == vector["seed"]
    in_torch = gumbel_noise(position_seeds([key], [position]), max(tokens) + 1)[0, tokens].numpy()
    in_integers = [integer_gumbel(key, position, token) for token in tokens]
    for found in (gumbel(vector["seed"], np.array(tokens)), in_torch, in_integers):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2.0**-40)


@pytest.mark.parametrize("vector", DRAWS, ids=lambda vector: vector["name"])
def test_draws_are_those_of_the_vectors_in_numpy_and_torch(vector: dict[str, Any]) -> None:
    sampling, key, logits = Sampling(**vector["sampling"]), bytes.fromhex(vector["key"]), from_hex(vector["logits"])
    assert np.flatnonzero(kept_mask(scale(logits, sampling), sampling)).tolist() == vector["kept"]
    assert [draw(logits, key, position, sampling) for position in range(16)] == vector["draws"]
    rows = torch.from_numpy(logits).repeat(16, 1)
    seeds = position_seeds([key] * 16, range(16))
    assert forced_draw(rows, seeds, [sampling] * 16).tolist() == vector["draws"]


def test_the_sort_free_draw_equals_the_sorted_one_on_thousands_of_rows_with_ties() -> None:
    random = np.random.default_rng(5)
    samplings = [Sampling(**vector["sampling"]) for vector in DRAWS[::2]] + [Sampling(top_p=0.3, temperature=3.0)]
    for number in range(100):
        logits = (random.normal(size=(40, 61)) * 3).astype(np.float32)
        logits = np.round(logits * (number % 3 + 1)) / (number % 3 + 1) if number % 2 else logits
        keys = [hashlib.sha256(f"{number} {row}".encode()).digest() for row in range(40)]
        rows = [samplings[(number + row) % len(samplings)] for row in range(40)]
        drawn = forced_draw(torch.from_numpy(logits), position_seeds(keys, range(40)), rows).tolist()
        assert drawn == [draw(logits[row], keys[row], row, rows[row]) for row in range(40)]


def test_equal_scores_go_to_the_lowest_id() -> None:
    logits = np.full(8, -np.inf, dtype=np.float32)
    logits[[2, 5]] = np.float32(1e30)  # so large that the noise is lost in rounding
    assert draw(logits, b"k" * 32, 0, Sampling()) == 2
    assert forced_draw(torch.from_numpy(logits)[None], position_seeds([b"k" * 32], [0]), [Sampling()]).item() == 2


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(top_k=5),
        Sampling(top_p=0.8),
        Sampling(min_p=0.1),
        Sampling(temperature=1.4, min_p=0.02, top_k=9, top_p=0.9),
    ],
    ids=["full support", "temperature", "top-k", "top-p", "min-p", "all four"],
)
def test_200_000_draws_have_the_exact_distribution(sampling: Sampling) -> None:
    random = np.random.default_rng(11)
    logits = (random.normal(size=16) * 1.5).astype(np.float32)
    scaled = scale(logits, sampling).astype(np.float64)
    weights = np.where(kept_mask(scale(logits, sampling), sampling), np.exp(scaled - scaled.max()), 0)
    expected = weights / weights.sum()
    counts = np.zeros(16)
    for block in range(20):
        key = hashlib.sha256(f"chi {block}".encode()).digest()
        seeds = position_seeds([key] * 10_000, range(10_000))
        drawn = forced_draw(torch.from_numpy(logits).repeat(10_000, 1), seeds, [sampling] * 10_000)
        counts += np.bincount(drawn.numpy(), minlength=16)
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    chi_square = (((counts - 200_000 * expected) ** 2)[kept] / (200_000 * expected[kept])).sum()
    freedom = kept.sum() - 1
    # The keys are fixed, so this is one number, not a coin: 4.5 standard deviations (Wilson and Hilferty 1931).
    bound = freedom * (1 - 2 / (9 * freedom) + 4.5 * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square < bound


@given(st.integers(0, MASK), st.lists(st.integers(0, 2**20), min_size=1, max_size=20))
def test_noise_is_finite_for_every_seed_and_token(seed: int, tokens: list[int]) -> None:
    assert np.isfinite(gumbel(seed, np.array(tokens))).all()
