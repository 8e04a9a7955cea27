"""The port behind which an inference engine draws tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol.models import ModelRef, ModelSpec
from protocol.sampling import Sampling


@dataclass(frozen=True)
class DrawJob:
    """One sample to draw.

    Attributes:
        job_id: the worker's own name for it.
        model: with its end-of-sequence ids and its true vocabulary.
        prompt_token_ids: at least one.
        sample_key: 32 bytes that force every draw.
    """

    job_id: str
    model: ModelSpec
    sampling: Sampling
    prompt_token_ids: tuple[int, ...]
    sample_key: bytes


@dataclass(frozen=True)
class FinishedSample:
    """The drawn ids of a job: an EOS last, or max_tokens of them."""

    job_id: str
    token_ids: tuple[int, ...]


class Engine(Protocol):
    """Draws many samples at once. Not thread-safe: one caller, which may call from any one thread at a time.

    A step interface, so that new work can join while other work runs: an engine with continuous batching admits jobs
    at every step, a simpler one when it has room.
    """

    @property
    def name(self) -> str:
        """What calibrations call it, e.g. "hf/float32"."""
        ...

    @property
    def models(self) -> tuple[ModelRef, ...]:
        """What it can draw from."""
        ...

    @property
    def unfinished(self) -> int:
        """Jobs that were added and are neither finished nor cancelled."""
        ...

    def add(self, jobs: Sequence[DrawJob]) -> None:
        """Take jobs in."""
        ...

    def step(self) -> list[FinishedSample]:
        """Draw one token for what is running; the samples that ended with it."""
        ...

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Forget jobs; unknown ones are ignored."""
        ...
