"""The forgiveness radius, its one-byte code, and packing."""

import contextlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from vectors import load

from protocol.draw import draw, kept_mask, position_seed, scale
from protocol.errors import RemoteProtocolError
from protocol.evidence import (
    LARGEST_RADIUS,
    SMALLEST_RADIUS,
    decode_radius,
    encode_radius,
    forgiveness_radius,
    is_kept,
    pack_codes,
    statistics,
    unpack_codes,
)
from protocol.sampling import Sampling

VECTORS = load("evidence")
LOGITS = npst.arrays(np.float32, 8, elements=st.floats(-4, 4, width=32))
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3]),
    top_p=st.sampled_from([0.4, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.2]),
)


@pytest.mark.parametrize("vector", VECTORS["codes"], ids=lambda vector: vector["radius"])
def test_radius_codes_are_those_of_the_vectors(vector: dict[str, Any]) -> None:
    assert encode_radius(float.fromhex(vector["radius"])) == vector["code"]
    assert decode_radius(vector["code"]) == float.fromhex(vector["edge"])


@given(st.floats(SMALLEST_RADIUS, LARGEST_RADIUS))
def test_a_code_never_understates_a_radius_and_overstates_it_by_less_than_a_tenth(radius: float) -> None:
    decoded = decode_radius(encode_radius(radius))
    assert radius <= decoded * (1 + 1e-9)
    assert decoded < radius * 1.1


@pytest.mark.parametrize("vector", VECTORS["radii"]["tokens"], ids=lambda v: f"{v['name']} {v['claimed']}")
def test_radii_are_those_of_the_vectors(vector: dict[str, Any]) -> None:
    table = VECTORS["radii"]
    logits = np.array([float.fromhex(value) for value in table["logits"]], dtype=np.float32)
    seed = position_seed(bytes.fromhex(table["key"]), table["position"])
    radius = forgiveness_radius(logits, seed, vector["claimed"], Sampling(**vector["sampling"]))
    assert encode_radius(radius) == vector["code"]


@given(LOGITS, SAMPLINGS)
def test_membership_without_a_sort_equals_membership_with_one(logits: Any, sampling: Sampling) -> None:
    scaled = scale(logits, sampling)
    wide = scaled.astype(np.float64)
    assert [is_kept(wide, token, sampling) for token in range(8)] == kept_mask(scaled, sampling).tolist()


@settings(max_examples=200)
@given(LOGITS, SAMPLINGS, st.integers(0, 255), st.floats(0.01, 1.0), st.integers(0, 2**32))
def test_an_honest_token_is_never_further_off_than_the_engines_differ(
    logits: Any, sampling: Sampling, key_byte: int, error: float, seed: int
) -> None:
    """What the whole verdict stands on: logits within ±error make a draw whose radius is at most error."""
    key = bytes([key_byte]) * 32
    noise = np.random.default_rng(seed).uniform(-error, error, 8)
    other = (logits.astype(np.float64) + noise).astype(np.float32)
    actual = float(np.abs(other.astype(np.float64) - logits.astype(np.float64)).max())
    for position in range(16):
        claimed = draw(other, key, position, sampling)
        if claimed != draw(logits, key, position, sampling):
            # Up to 1/8 of a code above, for the bisection, and the float32 rounding of scaled logits.
            radius = forgiveness_radius(logits, position_seed(key, position), claimed, sampling)
            assert radius <= actual * 1.012 + 1e-5


@settings(max_examples=100)
@given(LOGITS, st.sampled_from([0.5, 1.0, 2.0]), st.integers(0, 255), st.integers(0, 7))
def test_at_full_support_the_radius_is_the_least_error_that_makes_the_claim_the_draw(
    logits: Any, temperature: float, key_byte: int, claimed: int
) -> None:
    key, sampling = bytes([key_byte]) * 32, Sampling(temperature=temperature)
    assume(draw(logits, key, 0, sampling) != claimed)
    radius = forgiveness_radius(logits, position_seed(key, 0), claimed, sampling)
    assume(radius > 1e-3)

    def shifted(error: float) -> Any:
        moved = logits.astype(np.float64) - error
        moved[claimed] += 2 * error
        return moved.astype(np.float32)

    assert draw(shifted(radius * 1.001), key, 0, sampling) == claimed
    assert draw(shifted(radius * 0.999), key, 0, sampling) != claimed


def test_a_token_that_no_error_can_make_the_draw_is_out_of_reach() -> None:
    logits = np.array([200.0, 0.0], dtype=np.float32)
    assert forgiveness_radius(logits, 1, 1, Sampling()) == math.inf
    assert forgiveness_radius(logits, 1, 1, Sampling(top_k=1)) == math.inf


@pytest.mark.parametrize("vector", VECTORS["packed"], ids=lambda vector: str(len(vector["codes"])))
def test_packing_is_that_of_the_vectors(vector: dict[str, Any]) -> None:
    assert pack_codes(vector["codes"]) == vector["text"]
    assert list(unpack_codes(vector["text"], len(vector["codes"]))) == vector["codes"]


@given(st.lists(st.one_of(st.just(0), st.integers(0, 255)), min_size=1, max_size=400))
def test_unpacking_undoes_packing(codes: list[int]) -> None:
    assert list(unpack_codes(pack_codes(codes), len(codes))) == codes


@pytest.mark.parametrize("vector", VECTORS["reject"], ids=lambda vector: vector["name"])
def test_packed_codes_that_do_not_fit_are_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        unpack_codes(vector["text"], vector["length"])
    assert refused.value.code == vector["code"]


@given(st.text(max_size=40), st.integers(1, 50))
def test_any_text_is_unpacked_or_refused(text: str, length: int) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert len(unpack_codes(text, length)) == length


def test_an_honest_sample_costs_less_than_a_quarter_byte_a_token() -> None:
    codes = [0] * 256
    codes[100] = codes[200] = 40
    assert len(pack_codes(codes)) <= 0.25 * len(codes)


def test_statistics_count_matches_and_clip_radii() -> None:
    found = statistics(bytes([0, 0, encode_radius(0.1), encode_radius(5.0)]))
    assert (found.tokens, found.matches) == (4, 2)
    assert found.largest_radius == pytest.approx(5.0, rel=0.1)
    assert found.mean_clipped_radius == pytest.approx((0.1 + 0.3) / 4, rel=0.1)
