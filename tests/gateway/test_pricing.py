"""Prices: the worst case is reserved, what was verified is captured."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.pricing import PricingUnavailable, captured, parse_rates, quote

RATES = parse_rates((Path(__file__).parent.parent.parent / "gateway" / "pricing.toml").read_text(encoding="utf-8"))
SIZES = st.sampled_from([1_000_000, 8_000_000_000, 70_000_000_000])


@pytest.mark.parametrize("parameters", [1_000_000, 8_000_000_000])
def test_a_two_line_batch_costs_about_two_dollars_nearly_all_of_it_gpu_time(parameters: int) -> None:
    found = quote(RATES, parameters, 60, 128)
    assert 1_800_000 <= found.price_micro <= 2_200_000
    assert found.gpu_micro > 0.8 * found.price_micro / 1.2


def test_a_size_beyond_the_table_has_no_price() -> None:
    with pytest.raises(PricingUnavailable):
        quote(RATES, 80_000_000_001, 60, 128)


@given(SIZES, st.integers(0, 30_000_000), st.integers(1, 10**9), st.integers(0, 10**9))
def test_a_capture_lies_between_the_fixed_share_and_the_price(
    parameters: int, prompt_tokens: int, most: int, verified: int
) -> None:
    found = quote(RATES, parameters, prompt_tokens, most)
    verified = min(verified, most)
    assert found.gpu_micro + found.prompt_micro <= captured(found, verified) <= found.price_micro
    assert captured(found, verified) >= captured(found, verified // 2)


@given(SIZES, st.integers(0, 30_000_000), st.integers(1, 10**9))
def test_everything_verified_costs_the_price(parameters: int, prompt_tokens: int, most: int) -> None:
    found = quote(RATES, parameters, prompt_tokens, most)
    assert captured(found, most) == found.price_micro


def test_no_order_costs_less_than_the_minimum() -> None:
    free = RATES.model_copy(update={"gpu_hour_micro": 0})
    found = quote(free, 1_000_000, 1, 1)
    assert found.price_micro == 10_000
    assert captured(found, 0) == 10_000


@pytest.mark.parametrize("text", ["", "margin_percent = -1", "banana = 1"])
def test_a_price_list_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        parse_rates(text)
