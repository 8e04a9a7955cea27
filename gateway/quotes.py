"""What an order costs, and whether the model can serve it at all: the checks that need the whole file."""

from dataclasses import dataclass

from gateway.core.pricing import PricingUnavailable, Quote, expected_seconds, quote
from gateway.errors import Conflict, PaymentRequired, Unprocessable
from gateway.models import PinnedModel
from gateway.services import Services
from protocol.sampling import Sampling

PROMPT_TOKENS_ALLOWED_FOR = 8_192
"""A node is planned for prompts of at least this length, however short those of the file are."""
SEQUENCES_AT_ONCE = 8


@dataclass(frozen=True)
class Demand:
    """What a file asks of a model.

    Attributes:
        longest_prompt_tokens: of one line.
        prompt_tokens: of all usable lines.
        usable_lines: lines that will run.
    """

    sampling: Sampling
    longest_prompt_tokens: int
    prompt_tokens: int
    usable_lines: int

    @property
    def sequence_tokens(self) -> int:
        """The longest sequence that a node must hold."""
        return max(self.longest_prompt_tokens, PROMPT_TOKENS_ALLOWED_FOR) + self.sampling.max_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens if every sample had max_tokens."""
        return self.usable_lines * self.sampling.n * self.sampling.max_tokens


@dataclass(frozen=True)
class Terms:
    """What the customer sets.

    Attributes:
        window_hours: the completion window.
        max_price_micro: refuse a higher price; None for no ceiling.
    """

    window_hours: int
    max_price_micro: int | None


def make_quote(services: Services, model: PinnedModel, demand: Demand, terms: Terms) -> Quote:
    """The worst-case price of a file that the model can serve within the window.

    Raises:
        Unprocessable: context_too_long, model_too_large, exceeds_generation_deadline.
        Conflict: pricing_unavailable.
        PaymentRequired: price_above_max.
    """
    _check_context(model, demand)
    _check_memory(services, model, demand)
    size = services.rates, model.spec.parameter_count, demand.prompt_tokens, demand.completion_tokens
    try:
        found, seconds = quote(*size), expected_seconds(*size)
    except PricingUnavailable as error:
        raise Conflict("pricing_unavailable", str(error), param="model") from error
    if seconds > terms.window_hours * 3600:
        message = f"the file takes about {seconds / 3600:.0f} h, the completion window is {terms.window_hours} h"
        raise Unprocessable("exceeds_generation_deadline", message, param="completion_window")
    if terms.max_price_micro is not None and found.price_micro > terms.max_price_micro:
        ceiling = usd(terms.max_price_micro)
        message = f"the price is {usd(found.price_micro)} USD, above metadata.max_price_usd ({ceiling})"
        raise PaymentRequired("price_above_max", message, param="metadata.max_price_usd")
    return found


def _check_context(model: PinnedModel, demand: Demand) -> None:
    needed, context = demand.sequence_tokens, model.spec.context_length
    if needed > context:
        longest = max(demand.longest_prompt_tokens, PROMPT_TOKENS_ALLOWED_FOR)
        message = (
            f"{longest} prompt tokens (at least {PROMPT_TOKENS_ALLOWED_FOR} are allowed for) and max_tokens "
            f"{demand.sampling.max_tokens} are {needed} tokens; the model's context is {context}"
        )
        raise Unprocessable("context_too_long", message, param="input_file_id")


def _check_memory(services: Services, model: PinnedModel, demand: Demand) -> None:
    weights = -(-13 * model.spec.weights_bytes // 10)
    needed = weights + SEQUENCES_AT_ONCE * demand.sequence_tokens * model.kv_bytes_per_token
    available = services.settings.node_memory_bytes
    if needed > available:
        message = (
            f"the weights and the key-value cache of {SEQUENCES_AT_ONCE} sequences of {demand.sequence_tokens} tokens "
            f"take {needed} bytes; a node has {available}"
        )
        raise Unprocessable("model_too_large", message, param="model")


def usd(amount_micro: int) -> str:
    """Micro-USD as USD in decimal, exactly."""
    whole, fraction = divmod(amount_micro, 1_000_000)
    return f"{whole}.{fraction:06d}".rstrip("0").rstrip(".")
