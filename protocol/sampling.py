"""Sampling parameters: their ranges, their normal form, and when two are the same."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from protocol.encoding import digest

MAX_SEED = 2**53 - 1


class Sampling(BaseModel):
    """The sampling of a sample, in normal form: equal sampling means equal objects.

    The warp order is fixed (SPEC.md §3): temperature, min-p, top-k, top-p, in float32.

    Attributes:
        temperature: above 0, at most 4.
        top_p: above 0, at most 1; 1 is off.
        top_k: 0 is off (the wire's -1 is normalised to 0).
        min_p: at least 0, below 1; 0 is off.
        max_tokens: most completion tokens of one sample.
        seed: the customer's seed, or None to take the randomness from the beacon.
        n: samples per line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    temperature: Annotated[float, Field(gt=0, le=4)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    max_tokens: Annotated[int, Field(ge=16, le=131_072)] = 4096
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    n: Annotated[int, Field(ge=1, le=64)] = 1

    def draw_digest(self) -> bytes:
        """32 bytes over what shapes the distribution and the length.

        The seed enters the sample key on its own, and n does not enter at all, so that sample 0 of a line is the
        same whether 1 or 64 samples are asked for.
        """
        return digest("reliquary/sampling/v1", self.temperature, self.top_p, self.top_k, self.min_p, self.max_tokens)
