"""Consensus parameters: one frozen object per protocol version, never read from the environment."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameters:
    """Everything that all parties must agree on to reach the same verdict.

    Attributes:
        version: protocol version, part of every sample key and signed digest.
        false_positive_budget: probability with which one validator may refuse one honest sample,
            summed over all statistical tests of the verdict.
        samples_per_task: most samples of one line that are leased together.
        max_new_tokens_limit: largest max_tokens of a sample.
        noise_error: largest absolute error of an implementation's Gumbel noise against its definition.
        signature_max_age_seconds: how old a signed request may be.
        signature_max_skew_seconds: how far ahead of our clock a signed request may be.
    """

    version: int
    false_positive_budget: float
    samples_per_task: int
    max_new_tokens_limit: int
    noise_error: float
    signature_max_age_seconds: int
    signature_max_skew_seconds: int


V1 = Parameters(
    version=1,
    false_positive_budget=1e-4,
    samples_per_task=8,
    max_new_tokens_limit=131_072,
    noise_error=2.0**-20,
    signature_max_age_seconds=10,
    signature_max_skew_seconds=2,
)
