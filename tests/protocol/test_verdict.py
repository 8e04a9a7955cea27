"""Structure and statistics: what is accepted, what is refused, and with which code."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from vectors import load

from protocol.errors import RemoteProtocolError
from protocol.evidence import encode_radius, pack_codes
from protocol.messages import AuditedSample, SampleEvidence
from protocol.models import ModelSpec
from protocol.params import V1
from protocol.sampling import Sampling
from protocol.verdict import (
    MISMATCH_BUDGET,
    Calibration,
    JudgeContext,
    Verdict,
    check_structure,
    judge,
    mismatch_p_value,
    select_calibration,
)

EOS = 9
MODEL = ModelSpec(
    repo="a/b",
    revision="0" * 40,
    architecture="Qwen3ForCausalLM",
    tokenizer_sha256="0" * 64,
    chat_template_sha256=None,
    eos_token_ids=(EOS,),
    vocab_size=100,
    context_length=2048,
    dtype="float32",
    parameter_count=1,
    weights_bytes=4,
)
SAMPLING = Sampling(max_tokens=16)


def calibration(**changes: Any) -> Calibration:
    fields: dict[str, Any] = {
        "id": "test",
        "model_repo": "*",
        "miner_engine": "hf/float32",
        "validator_engine": "hf/float32",
        "radius_tolerance": 0.01,
        "eos_radius_tolerance": 0.001,
        "mismatch_alpha": 0.5,
        "mismatch_beta": 100_000.5,
        "tokens_measured": 100_000,
        "mismatches_measured": 0,
        "largest_radius_measured": 0.0,
        "largest_logit_error_measured": 0.0005,
        "measured_on": "never",
        "command": "none",
    }
    return Calibration(**{**fields, **changes})


def verdict_on(radii: Sequence[float], *, ends: bool = True, suppressed: tuple[int, ...] = ()) -> Verdict:
    ids = (*range(10, 10 + len(radii) - 1), EOS if ends else 50)
    claim = AuditedSample(sample_index=0, sample_key="0" * 64, token_ids=ids)
    codes = pack_codes([encode_radius(radius) for radius in radii])
    evidence = SampleEvidence(sample_index=0, radius_codes=codes, suppressed_eos=suppressed)
    return judge([claim], [evidence], JudgeContext(MODEL, calibration()))


@pytest.mark.parametrize(
    ("token_ids", "code"),
    [
        ([], "empty_sample"),
        ([1] * 17, "too_many_tokens"),
        ([1, 100, EOS], "token_out_of_range"),
        ([1, -1, EOS], "token_out_of_range"),
        ([1, EOS, 2, EOS], "eos_not_last"),
        ([EOS, EOS], "eos_not_last"),
        ([1, 2, 3], "unfinished_sample"),
        ([1, 2, EOS], None),
        ([EOS], None),
        ([1] * 16, None),
        ([1] * 15 + [EOS], None),
    ],
)
def test_structure_is_checked_exactly(token_ids: list[int], code: str | None) -> None:
    assert check_structure(token_ids, MODEL, SAMPLING) == code


@pytest.mark.parametrize(
    ("radii", "code"),
    [
        ([0.0] * 300, "ok"),
        ([0.0] * 100 + [0.005] + [0.0] * 100, "ok"),
        ([0.0] * 100 + [0.02] + [0.0] * 100, "largest_radius"),
        ([0.0] * 10 + [0.001] * 4 + [0.0] * 100, "too_many_mismatches"),
        ([0.0] * 10 + [0.002], "eos_event"),
        ([0.0] * 10 + [0.0005], "ok"),
    ],
    ids=["all match", "a near tie", "too far", "too often", "an end drawn too early", "an end at a near tie"],
)
def test_a_sample_is_judged_by_its_radii(radii: list[float], code: str) -> None:
    assert verdict_on(radii).code == code


def test_a_suppressed_end_is_judged_by_its_own_tolerance() -> None:
    radii = [0.0, 0.005, *([0.0] * 14)]
    assert verdict_on(radii, ends=False).code == "ok"
    assert verdict_on(radii, ends=False, suppressed=(1,)).code == "eos_event"


def test_one_bad_sample_rejects_its_task() -> None:
    claims = [AuditedSample(sample_index=at, sample_key="0" * 64, token_ids=(1, EOS)) for at in (0, 1)]
    evidence = [
        SampleEvidence(sample_index=0, radius_codes=pack_codes([0, 0])),
        SampleEvidence(sample_index=1, radius_codes=pack_codes([200, 0])),
    ]
    verdict = judge(claims, evidence, JudgeContext(MODEL, calibration()))
    assert (verdict.state, verdict.code) == ("rejected", "largest_radius")
    assert [sample.code for sample in verdict.samples] == ["ok", "largest_radius"]


@pytest.mark.parametrize(
    ("index", "codes", "suppressed"),
    [(1, [0, 0], ()), (0, [0], ()), (0, [0, 0, 0], ()), (0, [0, 5], (0,)), (0, [5, 5], (1, 0)), (0, [5, 5], (2,))],
    ids=["other sample", "too short", "too long", "suppressed at a match", "unsorted", "beyond the end"],
)
def test_evidence_that_does_not_fit_the_claim_is_the_validators_fault(
    index: int, codes: list[int], suppressed: tuple[int, ...]
) -> None:
    claim = AuditedSample(sample_index=0, sample_key="0" * 64, token_ids=(1, EOS))
    evidence = SampleEvidence(sample_index=index, radius_codes=pack_codes(codes), suppressed_eos=suppressed)
    with pytest.raises(RemoteProtocolError) as refused:
        judge([claim], [evidence], JudgeContext(MODEL, calibration()))
    assert refused.value.code == "malformed_evidence"


@pytest.mark.parametrize("vector", load("verdict"), ids=lambda v: f"{v['mismatches']} of {v['tokens']}")
def test_p_values_are_those_of_the_vectors(vector: dict[str, Any]) -> None:
    found = mismatch_p_value(vector["tokens"], vector["mismatches"], vector["alpha"], vector["beta"])
    assert found == pytest.approx(float.fromhex(vector["p_value"]), rel=1e-9)


def test_the_mismatch_tail_is_that_of_a_simulated_beta_binomial() -> None:
    random = np.random.default_rng(3)
    counts = random.binomial(200, random.beta(5.0, 200.0, 200_000))
    for mismatches in (3, 8, 15):
        simulated = (counts >= mismatches).mean()
        assert mismatch_p_value(200, mismatches, 5.0, 200.0) == pytest.approx(simulated, rel=0.05)


def test_the_tests_together_keep_to_the_false_positive_budget() -> None:
    assert V1.false_positive_budget >= MISMATCH_BUDGET
    null = calibration()
    for tokens in (16, 256, 4096, 131_072):
        refused_from = next(
            m
            for m in range(1, 400)
            if mismatch_p_value(tokens, m, null.mismatch_alpha, null.mismatch_beta) < MISMATCH_BUDGET
        )
        assert mismatch_p_value(tokens, refused_from, null.mismatch_alpha, null.mismatch_beta) < MISMATCH_BUDGET
        assert refused_from > 1, "one near tie must never refuse an honest sample"


def test_the_models_own_calibration_goes_before_the_general_one() -> None:
    general, own = calibration(), calibration(id="own", model_repo="a/b")
    assert select_calibration([general, own], "a/b", "hf/float32", "hf/float32") == own
    assert select_calibration([general, own], "c/d", "hf/float32", "hf/float32") == general
    assert select_calibration([general, own], "a/b", "hf/bfloat16", "hf/float32") is None
