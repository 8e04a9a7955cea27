"""Prices: what an order reserves, and what of it is captured. Integer micro-USD, always rounded up."""

import tomllib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
MILLION = 1_000_000


class PricingUnavailable(Exception):
    """No price is published for a model of this size."""


class PriceClass(BaseModel):
    """Prices of models up to max_parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_parameters: Positive
    gpus: Positive
    tokens_per_second: Positive
    prompt_million_micro: Count
    completion_million_micro: Count


class Rates(BaseModel):
    """The operator's price list (gateway/pricing.toml says what each key is)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    margin_percent: Count
    minimum_micro: Count
    gpu_hour_micro: Count
    startup_seconds: Count
    classes: Annotated[tuple[PriceClass, ...], Field(alias="class", min_length=1)]


class Quote(BaseModel):
    """A price with its parts.

    Attributes:
        gpu_micro: GPU time that verifies: start-up plus the expected run time.
        prompt_micro: prompt tokens.
        completion_micro: completion tokens, if every sample had max_tokens.
        margin_micro: the platform's margin on the three.
        price_micro: what is reserved.
        margin_percent: of the three parts.
        minimum_micro: least price of an order.
        max_completion_tokens: tokens that completion_micro is for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpu_micro: Count
    prompt_micro: Count
    completion_micro: Count
    margin_micro: Count
    price_micro: Count
    margin_percent: Count
    minimum_micro: Count
    max_completion_tokens: Count


def parse_rates(toml_text: str) -> Rates:
    """The rates in a TOML text; raises ValueError (pydantic's or tomllib's) for a bad one."""
    return Rates.model_validate(tomllib.loads(toml_text))


def _up(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _class_of(rates: Rates, parameter_count: int) -> PriceClass:
    found = min(
        (entry for entry in rates.classes if parameter_count <= entry.max_parameters),
        key=lambda entry: entry.max_parameters,
        default=None,
    )
    if found is None:
        raise PricingUnavailable(f"no price is published for {parameter_count} parameters")
    return found


def expected_seconds(rates: Rates, parameter_count: int, prompt_tokens: int, max_completion_tokens: int) -> int:
    """How long an order takes in the worst case: start-up, then all its tokens at the class's speed.

    Raises:
        PricingUnavailable: when the model is larger than every class.
    """
    speed = _class_of(rates, parameter_count).tokens_per_second
    return rates.startup_seconds + _up(prompt_tokens + max_completion_tokens, speed)


def quote(rates: Rates, parameter_count: int, prompt_tokens: int, max_completion_tokens: int) -> Quote:
    """The worst-case price: prompt_tokens once a line, max_completion_tokens over all samples.

    Raises:
        PricingUnavailable: when the model is larger than every class.
    """
    found = _class_of(rates, parameter_count)
    seconds = expected_seconds(rates, parameter_count, prompt_tokens, max_completion_tokens)
    gpu = _up(rates.gpu_hour_micro * found.gpus * seconds, 3600)
    prompt = _up(prompt_tokens * found.prompt_million_micro, MILLION)
    completion = _up(max_completion_tokens * found.completion_million_micro, MILLION)
    margin = _up((gpu + prompt + completion) * rates.margin_percent, 100)
    return Quote(
        gpu_micro=gpu,
        prompt_micro=prompt,
        completion_micro=completion,
        margin_micro=margin,
        price_micro=max(gpu + prompt + completion + margin, rates.minimum_micro),
        margin_percent=rates.margin_percent,
        minimum_micro=rates.minimum_micro,
        max_completion_tokens=max_completion_tokens,
    )


def captured(price: Quote, verified_tokens: int) -> int:
    """What an order costs in the end: GPU share and prompt tokens in full, completion tokens as far as verified."""
    completion = _up(price.completion_micro * verified_tokens, max(1, price.max_completion_tokens))
    parts = price.gpu_micro + price.prompt_micro + completion
    total = parts + _up(parts * price.margin_percent, 100)
    return min(price.price_micro, max(total, price.minimum_micro))
