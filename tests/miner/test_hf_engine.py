"""The Hugging Face engine: every token is the forced draw, whatever runs beside it."""

import pytest
import torch
from small_model import EOS, SPEC, VOCAB_SIZE, job, run_all, small_model

from miner.hf_engine import HfEngine
from protocol.draw import draw
from protocol.sampling import Sampling
from protocol.verdict import check_structure

MODEL = small_model()


def engine(max_batch: int = 16) -> HfEngine:
    return HfEngine(MODEL, SPEC.ref, max_batch)


@pytest.mark.parametrize("number", range(8))
def test_every_token_is_the_references_draw_on_the_models_own_logits(number: int) -> None:
    wanted = job(number)
    ids = run_all(engine(), [job(at) for at in range(8)])[wanted.job_id]
    with torch.inference_mode():
        logits = MODEL(torch.tensor([[*wanted.prompt_token_ids, *ids]])).logits[0, :, :VOCAB_SIZE].float().numpy()
    start = len(wanted.prompt_token_ids) - 1
    drawn = [draw(logits[start + at], wanted.sample_key, at, wanted.sampling) for at in range(len(ids))]
    assert list(ids) == drawn
    assert check_structure(ids, SPEC, wanted.sampling) is None


def test_batch_mates_order_and_batch_size_change_nothing() -> None:
    jobs = [job(number) for number in range(24)]
    together = run_all(engine(24), jobs)
    assert run_all(engine(5), list(reversed(jobs))) == together
    assert run_all(engine(1), jobs[:6]) == {each.job_id: together[each.job_id] for each in jobs[:6]}


def test_samples_that_share_a_prompt_share_its_prefill_and_differ() -> None:
    jobs = [job(number, prompt_token_ids=(5, 6, 7), sampling=Sampling(max_tokens=30)) for number in range(6)]
    together = run_all(engine(), jobs)
    alone = {each.job_id: run_all(engine(), [each])[each.job_id] for each in jobs}
    assert together == alone
    assert len(set(together.values())) == 6


def test_samples_end_with_an_end_token_or_at_the_limit() -> None:
    ends = set()
    for number, ids in enumerate(run_all(engine(), [job(number) for number in range(40)]).values()):
        assert ids[-1] in EOS or len(ids) in (16, 24, 40), number
        ends.add("stop" if ids[-1] in EOS else "length")
        assert not set(ids[:-1]) & set(EOS)
    assert ends == {"stop", "length"}


def test_a_cancelled_job_never_finishes_and_the_others_do() -> None:
    running = engine(2)
    jobs = [job(number, sampling=Sampling(max_tokens=16, top_k=1)) for number in range(4)]
    running.add(jobs)
    running.step()
    running.cancel([jobs[0].job_id, jobs[3].job_id, "unknown"])
    finished = []
    while running.unfinished:
        finished += [sample.job_id for sample in running.step()]
    assert sorted(finished) == [jobs[1].job_id, jobs[2].job_id]


def test_jobs_that_come_later_wait_for_the_next_group() -> None:
    running = engine(4)
    running.add([job(0), job(1)])
    running.step()
    running.add([job(2)])
    assert running.unfinished == 3
    assert set(run_all(running, [])) == {"lease/0", "lease/1", "lease/2"}


def test_the_engine_says_its_name_and_model() -> None:
    assert engine().name == "hf/float32"
    assert engine().models == (SPEC.ref,)
    assert engine().step() == []
