"""Audits and verdicts."""

import pytest
from customer import World
from placing import answer, assigned, evidence_on, judge, lease, order_state, place, states

from gateway.audits import report_evidence
from gateway.errors import Conflict, Forbidden, InvalidRequest, NotFound
from gateway.orders import cancel_batch
from gateway.sweeper import sweep

FAR_OFF = 200
"""A radius code far above any tolerance."""


async def test_an_accepted_claim_is_accepted_once_however_often_it_is_reported(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    await answer(world, task)
    (audit,) = await assigned(world)
    receipts = [await judge(world, audit) for _ in range(3)]
    assert receipts[0].status == "accepted"
    assert receipts[0] == receipts[1] == receipts[2]
    assert await states(world, "tasks") == ["accepted"]


async def test_a_rejected_claim_suspends_its_miner_and_frees_the_task(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    await answer(world, task)
    (audit,) = await assigned(world)
    receipt = await judge(world, audit, FAR_OFF)
    assert (receipt.status, receipt.code) == ("rejected", "largest_radius")
    assert await states(world, "tasks") == ["queued"]
    assert await states(world, "miners") == ["suspended"]
    with pytest.raises(Forbidden, match="miner_suspended"):
        await lease(world)


async def test_a_validator_never_audits_its_own_claims(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world, "both")
    await answer(world, task, miner="both")
    assert await assigned(world, "both") == ()
    assert len(await assigned(world, "other")) == 1


async def test_an_audit_that_is_not_answered_goes_to_another_validator(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    await answer(world, task)
    (audit,) = await assigned(world, "slow")
    world.now += world.services.settings.audit_seconds
    await sweep(world.services, world.now)
    (again,) = await assigned(world, "quick")
    with pytest.raises(Conflict, match="audit_lost"):
        await judge(world, audit, validator="slow")
    assert (await judge(world, again, validator="quick")).status == "accepted"


async def test_evidence_that_does_not_fit_sends_the_audit_back(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    await answer(world, task)
    (audit,) = await assigned(world)
    report = evidence_on(audit)
    bad = report.model_copy(update={"samples": (report.samples[0].model_copy(update={"radius_codes": "AA=="}),)})
    with pytest.raises(InvalidRequest, match="malformed_evidence"):
        await report_evidence(world.services, "validator", bad, world.now)
    assert await states(world, "audits") == ["pending"]
    assert await states(world, "miners") == ["active"]


async def test_an_engine_without_a_calibration_judges_nothing(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    await answer(world, task)
    (audit,) = await assigned(world)
    report = evidence_on(audit).model_copy(update={"engine": "hf/int4"})
    with pytest.raises(Conflict, match="engine_not_calibrated"):
        await report_evidence(world.services, "validator", report, world.now)
    assert await states(world, "audits") == ["pending"]


async def test_an_unknown_audit_and_somebody_elses_are_refused(world: World) -> None:
    await place(world, lines=1)
    (task,) = await lease(world)
    await answer(world, task)
    (audit,) = await assigned(world)
    with pytest.raises(NotFound, match="unknown_audit"):
        await judge(world, audit.model_copy(update={"audit_id": "nothing"}))
    with pytest.raises(Conflict, match="audit_lost"):
        await judge(world, audit, validator="stranger")


async def test_evidence_on_a_cancelled_batch_changes_nothing(world: World) -> None:
    order_id = await place(world, lines=2)
    first, _ = await lease(world)
    await answer(world, first)
    (audit,) = await assigned(world)
    await cancel_batch(world.services, world.account_id, order_id, world.now)
    with pytest.raises(Conflict, match="audit_lost"):
        await judge(world, audit)
    await sweep(world.services, world.now)
    assert await order_state(world, order_id) == "cancelled"
    assert await states(world, "submissions") == ["dropped"]
