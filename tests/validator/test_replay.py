"""Replay: an honest claim shows nothing, a tampered one shows where."""

import pytest
from small_model import EOS, SPEC, VOCAB_SIZE, job, run_all, small_model

from miner.engine import DrawJob
from miner.hf_engine import HfEngine
from neurons.cheats import CHEATS, CheatingEngine
from protocol.errors import RemoteProtocolError
from protocol.evidence import decode_radius, unpack_codes
from protocol.messages import AuditAssignment, AuditedSample, SampleEvidence
from protocol.sampling import Sampling
from protocol.verdict import check_structure
from validator.forward import TeacherForced
from validator.replay import replay

MODEL = small_model()
NUMBERS = range(16)


def assignment(jobs: list[DrawJob], claims: list[tuple[int, ...]]) -> AuditAssignment:
    samples = tuple(
        AuditedSample(sample_index=at, sample_key=each.sample_key.hex(), token_ids=ids)
        for at, (each, ids) in enumerate(zip(jobs, claims, strict=True))
    )
    return AuditAssignment(
        audit_id="audit",
        task_id="task",
        model=SPEC,
        sampling=jobs[0].sampling,
        prompt_token_ids=jobs[0].prompt_token_ids,
        samples=samples,
        miner_engine="hf/float32",
        deadline_seconds=60,
    )


def evidence_on(each: DrawJob, ids: tuple[int, ...], rows: int = 512) -> SampleEvidence:
    return replay(assignment([each], [ids]), TeacherForced(MODEL, VOCAB_SIZE, rows))[0]


def radii(evidence: SampleEvidence, length: int) -> list[float]:
    return [decode_radius(code) for code in unpack_codes(evidence.radius_codes, length)]


@pytest.fixture(scope="module")
def honest() -> dict[str, tuple[int, ...]]:
    """What an honest miner draws."""
    return run_all(HfEngine(MODEL, SPEC.ref, 16), [job(number) for number in NUMBERS])


@pytest.mark.parametrize("number", NUMBERS)
def test_an_honest_claim_is_the_draw_everywhere(honest: dict[str, tuple[int, ...]], number: int) -> None:
    ids = honest[job(number).job_id]
    evidence = evidence_on(job(number), ids)
    assert radii(evidence, len(ids)) == [0.0] * len(ids)
    assert evidence.suppressed_eos == ()


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_the_size_of_chunks_changes_nothing(honest: dict[str, tuple[int, ...]], rows: int) -> None:
    changed = (*honest["lease/0"][:2], 50, *honest["lease/0"][3:])
    assert evidence_on(job(0), changed, rows) == evidence_on(job(0), changed)


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_no_more_logits_than_a_chunk_are_ever_held(honest: dict[str, tuple[int, ...]], rows: int) -> None:
    prompt, claims = job(0).prompt_token_ids, [honest["lease/0"], honest["lease/2"]]
    chunks = list(TeacherForced(MODEL, VOCAB_SIZE, rows).run(prompt, claims))
    assert max(chunk.logits.shape[0] for chunk in chunks) <= rows
    covered = [(chunk.claim, chunk.first_position + at) for chunk in chunks for at in range(len(chunk.logits))]
    assert covered == [(claim, at) for claim in (0, 1) for at in range(len(claims[claim]))]


def test_samples_of_one_prompt_give_the_same_evidence_together_as_alone() -> None:
    jobs = [job(number, prompt_token_ids=(5, 6, 7), sampling=Sampling(max_tokens=30)) for number in range(4)]
    drawn = run_all(HfEngine(MODEL, SPEC.ref, 4), jobs)
    claims = [drawn[each.job_id] for each in jobs]
    claims[1] = (*claims[1][:-1], 60)
    together = replay(assignment(jobs, claims), TeacherForced(MODEL, VOCAB_SIZE, 512))
    alone = [evidence_on(each, ids) for each, ids in zip(jobs, claims, strict=True)]
    assert [evidence.radius_codes for evidence in together] == [evidence.radius_codes for evidence in alone]


def test_a_replaced_token_has_a_radius_where_it_stands(honest: dict[str, tuple[int, ...]]) -> None:
    ids = honest["lease/0"]
    other = next(token for token in range(VOCAB_SIZE) if token not in (ids[2], *EOS))
    found = radii(evidence_on(job(0), (*ids[:2], other, *ids[3:])), len(ids))
    assert found[:2] == [0.0, 0.0]
    assert found[2] > 0.01


def test_a_hidden_end_is_listed(honest: dict[str, tuple[int, ...]]) -> None:
    number = next(each for each in NUMBERS if honest[job(each).job_id][-1] in EOS)
    ids = (*honest[job(number).job_id][:-1], 50)
    assert evidence_on(job(number), ids).suppressed_eos == (len(ids) - 1,)


@pytest.mark.parametrize("claim", [(), (1, VOCAB_SIZE, 7)], ids=["empty", "out of range"])
def test_a_claim_that_no_model_can_be_run_over_is_refused(claim: tuple[int, ...]) -> None:
    with pytest.raises(RemoteProtocolError):
        evidence_on(job(0), claim)


@pytest.mark.parametrize("kind", sorted(set(CHEATS) - {"unsigned", "replayed", "other_model"}))
def test_a_cheat_breaks_the_structure_or_shows_a_radius_far_above_any_tolerance(kind: str) -> None:
    sampling = Sampling(max_tokens=40, temperature=0.9, top_p=0.9)
    jobs = [job(number, sampling=sampling) for number in range(12)]
    cheat = CHEATS[kind]
    engine = CheatingEngine(HfEngine(MODEL, SPEC.ref, 16, cheat.choose), cheat, SPEC.ref)
    engine.add(jobs)
    claims = {}
    while engine.unfinished:
        claims.update({sample.job_id: sample.token_ids for sample in engine.step()})
    shown = []
    for each in jobs:
        ids = claims[each.job_id]
        broken = check_structure(ids, SPEC, sampling) is not None
        shown.append(broken or max(radii(evidence_on(each, ids), len(ids))) > 0.005)
    assert any(shown)
