"""Miners that cheat, for the tests and for localnet: each departs from the protocol in one way.

Never part of an honest node: nothing but localnet and the tests starts one.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from miner.engine import DrawJob, Engine, FinishedSample
from miner.hf_engine import Chooser, Row, choose_forced
from protocol.models import ModelRef
from protocol.signing import Signer

ChangeJob = Callable[[DrawJob], DrawJob]
ChangeTokens = Callable[[DrawJob, tuple[int, ...]], tuple[int, ...]]


def _other_seed(job: DrawJob) -> DrawJob:
    return replace(job, sample_key=hashlib.sha256(job.sample_key).digest())


def _warmer(job: DrawJob) -> DrawJob:
    return replace(job, sampling=job.sampling.model_copy(update={"temperature": job.sampling.temperature + 0.2}))


def _without_top_p(job: DrawJob) -> DrawJob:
    return replace(job, sampling=job.sampling.model_copy(update={"top_p": 1.0}))


def _stop_early(job: DrawJob, ids: tuple[int, ...]) -> tuple[int, ...]:
    return (*ids[: len(ids) // 2], job.model.eos_token_ids[-1])


def _pad(job: DrawJob, ids: tuple[int, ...]) -> tuple[int, ...]:
    eos = job.model.eos_token_ids[-1]
    return (*ids[: job.sampling.max_tokens - 2], eos, eos)


def _replace_one(job: DrawJob, ids: tuple[int, ...]) -> tuple[int, ...]:
    middle = len(ids) // 2
    other = next(token for token in range(job.model.vocab_size) if token not in (ids[middle], *job.model.eos_token_ids))
    return (*ids[:middle], other, *ids[middle + 1 :]) if middle + 1 < len(ids) else ids


def _out_of_range(job: DrawJob, ids: tuple[int, ...]) -> tuple[int, ...]:
    return (job.model.vocab_size + 5, *ids[1:])


def _greedy(logits: Tensor, _rows: Sequence[Row]) -> Tensor:
    return logits.argmax(1)


def _never_eos(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    eos = torch.tensor(rows[0].job.model.eos_token_ids, device=logits.device)
    return choose_forced(logits.index_fill(1, eos, -1e4), rows)


class _Copier:
    """Answers every sample with the first one it drew for the same limits."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[int, ...]] = {}

    def __call__(self, job: DrawJob, ids: tuple[int, ...]) -> tuple[int, ...]:
        return self._first.setdefault(job.sampling.max_tokens, ids)


class _OtherStatement:
    """Signs something else than the statement it is handed."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    @property
    def ss58_address(self) -> str:
        return self._signer.ss58_address

    def sign(self, message: bytes) -> bytes:
        return self._signer.sign(b"other" + message)


class _EarlierSignature(_OtherStatement):
    """Replays for each statement the signature of the one before."""

    _earlier = b""

    def sign(self, message: bytes) -> bytes:
        earlier, self._earlier = self._earlier, message
        return self._signer.sign(earlier)


@dataclass(frozen=True)
class Cheat:
    """One way to depart from the protocol.

    Attributes:
        choose: how tokens are chosen.
        change_job: makes another job of a leased one.
        tokens: makes what changes the drawn tokens; a fresh one for each miner.
        sign: wraps the signer of statements.
        repo: draws from this repository's weights instead.
    """

    choose: Chooser = choose_forced
    change_job: ChangeJob = lambda job: job
    tokens: Callable[[], ChangeTokens] = lambda: lambda _job, ids: ids
    sign: Callable[[Signer], Signer] = lambda signer: signer
    repo: str | None = None


CHEATS: Mapping[str, Cheat] = {
    "wrong_seed": Cheat(change_job=_other_seed),
    "other_model": Cheat(repo="tiny/qwen3-other"),
    "greedy": Cheat(choose=_greedy),
    "temperature": Cheat(change_job=_warmer),
    "no_top_p": Cheat(change_job=_without_top_p),
    "eos_suppressed": Cheat(choose=_never_eos),
    "stopped_early": Cheat(tokens=lambda: _stop_early),
    "padded_after_eos": Cheat(tokens=lambda: _pad),
    "one_token": Cheat(tokens=lambda: _replace_one),
    "copied_answer": Cheat(tokens=_Copier),
    "out_of_range": Cheat(tokens=lambda: _out_of_range),
    "unsigned": Cheat(sign=_OtherStatement),
    "replayed": Cheat(sign=_EarlierSignature),
}


class CheatingEngine:
    """An engine whose jobs and results a cheat changes on the way."""

    def __init__(self, engine: Engine, cheat: Cheat, claimed: ModelRef) -> None:
        """Wrap an honest engine; claimed is the model that it pretends to serve."""
        self._engine = engine
        self._cheat = cheat
        self._claimed = claimed
        self._change_tokens = cheat.tokens()
        self._jobs: dict[str, DrawJob] = {}

    @property
    def name(self) -> str:
        """The honest engine's."""
        return self._engine.name

    @property
    def models(self) -> tuple[ModelRef, ...]:
        """The claimed model."""
        return (self._claimed,)

    @property
    def unfinished(self) -> int:
        """The honest engine's."""
        return self._engine.unfinished

    def add(self, jobs: Sequence[DrawJob]) -> None:
        """Take jobs in, changed."""
        self._jobs.update({job.job_id: job for job in jobs})
        self._engine.add([self._cheat.change_job(job) for job in jobs])

    def step(self) -> list[FinishedSample]:
        """One step; what ended with it, changed."""
        return [
            FinishedSample(sample.job_id, self._change_tokens(self._jobs.pop(sample.job_id), sample.token_ids))
            for sample in self._engine.step()
        ]

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Forget jobs."""
        for job_id in job_ids:
            self._jobs.pop(job_id, None)
        self._engine.cancel(job_ids)
