"""The verdict: what evidence says about a claim, with an explicit false-positive budget. SPEC.md §10."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from protocol.errors import RemoteProtocolError
from protocol.evidence import SampleStatistics, decode_radius, statistics, unpack_codes
from protocol.messages import AuditedSample, SampleEvidence
from protocol.models import ModelSpec
from protocol.params import V1
from protocol.sampling import Sampling

MISMATCH_BUDGET = V1.false_positive_budget / 2
"""Share of the budget for the mismatch count; the other half is left to the two radius tests, whose tolerance lies a
safety factor above the largest logit error that was measured."""


class Calibration(BaseModel):
    """What honest generation looks like for a model and a pair of engines, as measured.

    Attributes:
        model_repo: repository, or "*" for any model.
        miner_engine: engine that generates, e.g. "hf/float32".
        validator_engine: engine that audits.
        radius_tolerance: no honest token has a larger radius. A radius never exceeds the largest difference between
            the two engines' logits, so this is a bound on that difference.
        eos_radius_tolerance: the same for tokens that end a sample, or that hide its end.
        mismatch_alpha: of the Beta(alpha, beta) that the mismatch rate of an honest sample is drawn from.
        mismatch_beta: see mismatch_alpha.
        tokens_measured: honest tokens behind the numbers.
        mismatches_measured: tokens among them that were not the auditor's draw.
        largest_radius_measured: among those tokens.
        largest_logit_error_measured: largest absolute difference between the two engines' logits.
        measured_on: date and machine.
        command: how to measure it again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    model_repo: str
    miner_engine: str
    validator_engine: str
    radius_tolerance: float
    eos_radius_tolerance: float
    mismatch_alpha: float
    mismatch_beta: float
    tokens_measured: int
    mismatches_measured: int
    largest_radius_measured: float
    largest_logit_error_measured: float
    measured_on: str
    command: str


class VerdictState(StrEnum):
    """A verdict is one of two; there is no abstaining."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"


@dataclass(frozen=True)
class SampleVerdict:
    """One sample's verdict with the reason code ("ok" when accepted) and its statistics."""

    sample_index: int
    state: VerdictState
    code: str
    statistics: SampleStatistics


@dataclass(frozen=True)
class Verdict:
    """A task's verdict: rejected if any of its samples is, with the first such sample's code."""

    state: VerdictState
    code: str
    samples: tuple[SampleVerdict, ...]


@dataclass(frozen=True)
class JudgeContext:
    """What a claim is judged against."""

    model: ModelSpec
    calibration: Calibration


def select_calibration(
    calibrations: Sequence[Calibration], repo: str, miner_engine: str, validator_engine: str
) -> Calibration | None:
    """The calibration of the engine pair for this model, else the pair's "*", else None."""
    for name in (repo, "*"):
        for calibration in calibrations:
            if (calibration.model_repo, calibration.miner_engine, calibration.validator_engine) == (
                name,
                miner_engine,
                validator_engine,
            ):
                return calibration
    return None


def check_structure(token_ids: Sequence[int], model: ModelSpec, sampling: Sampling) -> str | None:
    """The code of the first exact rule that a claimed sample breaks, or None."""
    if not token_ids:
        return "empty_sample"
    if len(token_ids) > sampling.max_tokens:
        return "too_many_tokens"
    if any(not 0 <= token < model.vocab_size for token in token_ids):
        return "token_out_of_range"
    eos = frozenset(model.eos_token_ids)
    if any(token in eos for token in token_ids[:-1]):
        return "eos_not_last"
    if len(token_ids) < sampling.max_tokens and token_ids[-1] not in eos:
        return "unfinished_sample"
    return None


def mismatch_p_value(tokens: int, mismatches: int, alpha: float, beta: float) -> float:
    """P(at least that many mismatches among the tokens) when the rate is Beta(alpha, beta): a beta-binomial tail."""
    if mismatches == 0:
        return 1.0
    constant = math.lgamma(tokens + 1) + math.lgamma(alpha + beta) - math.lgamma(alpha) - math.lgamma(beta)
    constant -= math.lgamma(tokens + alpha + beta)

    def log_mass(k: int) -> float:
        return (
            constant - math.lgamma(k + 1) - math.lgamma(tokens - k + 1)
            + math.lgamma(k + alpha) + math.lgamma(tokens - k + beta)
        )  # fmt: skip

    total = 0.0
    for k in range(mismatches, tokens + 1):
        mass = math.exp(log_mass(k))
        total += mass
        if mass < total * 1e-12 and k > mismatches:
            break
    return min(1.0, total)


def _eos_fault(codes: bytes, claim: AuditedSample, evidence: SampleEvidence, context: JudgeContext) -> bool:
    """Whether the sample's end, or a hidden end, lies further off than an honest engine can be."""
    doubtful = [*evidence.suppressed_eos]
    if claim.token_ids[-1] in context.model.eos_token_ids:
        doubtful.append(len(codes) - 1)
    tolerance = context.calibration.eos_radius_tolerance
    return any(decode_radius(codes[position]) > tolerance for position in doubtful)


def _judge_sample(claim: AuditedSample, evidence: SampleEvidence, context: JudgeContext) -> SampleVerdict:
    codes = unpack_codes(evidence.radius_codes, len(claim.token_ids))
    positions = evidence.suppressed_eos
    if list(positions) != sorted(set(positions)) or any(at >= len(codes) or codes[at] == 0 for at in positions):
        raise RemoteProtocolError("malformed_evidence", "suppressed_eos does not fit the radius codes")
    found, calibration = statistics(codes), context.calibration
    code = "ok"
    if _eos_fault(codes, claim, evidence, context):
        code = "eos_event"
    elif found.largest_radius > calibration.radius_tolerance:
        code = "largest_radius"
    else:
        mismatches = found.tokens - found.matches
        p_value = mismatch_p_value(found.tokens, mismatches, calibration.mismatch_alpha, calibration.mismatch_beta)
        if p_value < MISMATCH_BUDGET:
            code = "too_many_mismatches"
    state = VerdictState.ACCEPTED if code == "ok" else VerdictState.REJECTED
    return SampleVerdict(claim.sample_index, state, code, found)


def judge(claims: Sequence[AuditedSample], evidence: Sequence[SampleEvidence], context: JudgeContext) -> Verdict:
    """The verdict on a task.

    Args:
        claims: the audited samples, structurally sound (check_structure).
        evidence: one entry a sample, in the same order.
        context: the model and the calibration of the engine pair.

    Raises:
        RemoteProtocolError: malformed_evidence, when the evidence does not fit the claims (the validator's fault).
    """
    if [claim.sample_index for claim in claims] != [item.sample_index for item in evidence]:
        raise RemoteProtocolError("malformed_evidence", "the samples are not those of the assignment")
    samples = tuple(_judge_sample(claim, item, context) for claim, item in zip(claims, evidence, strict=True))
    for sample in samples:
        if sample.state is VerdictState.REJECTED:
            return Verdict(VerdictState.REJECTED, sample.code, samples)
    return Verdict(VerdictState.ACCEPTED, "ok", samples)
