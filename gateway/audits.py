"""Claims to validators: audits out, evidence in, verdicts drawn."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.states import AUDIT, SUBMISSION, TASK, AuditState, OrderState, SubmissionState, TaskState
from gateway.db import schema
from gateway.db.audits import AuditRecord, get_audit, lock_audits, lock_pending_audits
from gateway.db.orders import get_order, lock_order
from gateway.db.tasks import (
    NewSubmission,
    SubmissionRecord,
    TaskRecord,
    exclude_miner,
    get_submission,
    get_task,
    lock_tasks,
    prompts_of,
)
from gateway.db.transitions import transition, transition_many
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.prompts import Prompted, prompted
from gateway.services import Services
from gateway.suspension import FREED, lock_miner_and_orders, suspend
from protocol.errors import RemoteProtocolError
from protocol.messages import (
    AuditAssignment,
    AuditedSample,
    AuditReceipt,
    AuditRequest,
    AuditResponse,
    EvidenceReport,
    evidence_statement,
    submission_statement,
)
from protocol.verdict import JudgeContext, Verdict, VerdictState, judge, select_calibration

log = logging.getLogger("reliquary.gateway")

IDLE_SECONDS = 0.5


@dataclass(frozen=True)
class _Case:
    """An audit with everything that its evidence is judged against."""

    audit: AuditRecord
    submission: SubmissionRecord
    work: Prompted

    @property
    def claims(self) -> list[AuditedSample]:
        """The claimed samples with their keys, in sample order."""
        parts = zip(self.work.task.sample_indices, self.work.sample_keys, self.submission.samples(), strict=True)
        return [
            AuditedSample(sample_index=index, sample_key=key.hex(), token_ids=tuple(ids)) for index, key, ids in parts
        ]


async def assign_audits(services: Services, hotkey: str, request: AuditRequest, now: int) -> AuditResponse:
    """Hand a validator up to max_audits pending audits of its models, never of its own claims."""
    deadline = {"validator": hotkey, "deadline_at": now + services.settings.audit_seconds}
    async with services.database.transaction() as conn:
        found = await lock_pending_audits(conn, hotkey, request.models, request.max_audits)
        ids = [audit.id for audit in found]
        await transition_many(conn, AUDIT, ids, from_state=AuditState.PENDING, event="assign", now=now, values=deadline)
    cases = [await _load_case(services, audit) for audit in found]
    assignments = tuple(
        AuditAssignment(
            audit_id=case.audit.id,
            task_id=case.work.task.id,
            model=case.work.model,
            sampling=case.work.sampling,
            prompt_token_ids=tuple(case.work.prompt_token_ids),
            samples=tuple(case.claims),
            miner_engine=case.submission.engine,
            deadline_seconds=services.settings.audit_seconds,
        )
        for case in cases
    )
    return AuditResponse(audits=assignments, retry_after_seconds=0.0 if assignments else IDLE_SECONDS)


async def _load_case(services: Services, audit: AuditRecord) -> _Case:
    async with services.database.snapshot() as conn:
        submission = await get_submission(conn, audit.submission_id)
        task = await get_task(conn, submission.task_id) if submission is not None else None
        order = await get_order(conn, audit.order_id)
        prompts = await prompts_of(conn, [task]) if task is not None else {}
    if submission is None or task is None or order is None:
        raise LookupError(f"audit {audit.id} refers to rows that are gone")
    (work,) = await prompted(services, order, [task], list(prompts.values()))
    return _Case(audit, submission, work)


async def report_evidence(services: Services, hotkey: str, report: EvidenceReport, now: int) -> AuditReceipt:
    """Take a validator's evidence and draw the verdict; the same report again gets the same receipt.

    Raises:
        NotFound: unknown_audit.
        Conflict: audit_lost (timed out, dropped, or somebody else's); engine_not_calibrated.
        InvalidRequest: bad_statement_signature, malformed_evidence; the audit goes back to the queue.
    """
    async with services.database.snapshot() as conn:
        audit = await get_audit(conn, report.audit_id)
    if audit is None:
        raise NotFound("unknown_audit", f"there is no audit {report.audit_id}")
    if audit.validator == hotkey and audit.state == AuditState.JUDGED:
        return _receipt(audit.id, audit.accepted == 1, audit.code or "")
    if audit.validator != hotkey or audit.state != AuditState.ASSIGNED:
        raise Conflict("audit_lost", "the audit has timed out, was dropped or is another validator's")
    case = await _load_case(services, audit)
    if not _is_signed(services, hotkey, report, case):
        await _give_back(services, audit, now)
        raise InvalidRequest("bad_statement_signature", "the evidence is not signed by the validator's hotkey")
    calibration = select_calibration(services.calibrations, case.work.model.repo, case.submission.engine, report.engine)
    if calibration is None:
        await _give_back(services, audit, now)
        pair = f"{case.submission.engine} audited by {report.engine}"
        raise Conflict("engine_not_calibrated", f"there is no calibration for {pair} on {case.work.model.repo}")
    try:
        verdict = judge(case.claims, report.samples, JudgeContext(case.work.model, calibration))
    except RemoteProtocolError as error:
        await _give_back(services, audit, now)
        raise InvalidRequest(error.code, error.message) from error
    async with services.database.transaction() as conn:
        await _record_verdict(conn, services, case, (report, verdict, calibration.id, now))
    services.metrics.verdicts.labels(verdict.code).inc()
    return _receipt(audit.id, verdict.state is VerdictState.ACCEPTED, verdict.code)


def _receipt(audit_id: str, accepted: bool, code: str) -> AuditReceipt:  # noqa: FBT001 - a column of the row
    return AuditReceipt(audit_id=audit_id, status="accepted" if accepted else "rejected", code=code)


def _is_signed(services: Services, hotkey: str, report: EvidenceReport, case: _Case) -> bool:
    samples = tuple((claim.sample_key, claim.token_ids) for claim in case.claims)
    claim = submission_statement(case.submission.task_id, case.submission.engine, samples)
    statement = evidence_statement(report.audit_id, report.engine, claim, report.samples)
    return services.verify_signature(statement, bytes.fromhex(report.signature), hotkey)


async def _give_back(services: Services, audit: AuditRecord, now: int) -> None:
    """Put the audit back, unless it has timed out meanwhile and may be another validator's by now."""
    columns = schema.audits.c
    async with services.database.transaction() as conn:
        found = await lock_audits(
            conn,
            columns.id == audit.id,
            columns.state == AuditState.ASSIGNED,
            columns.validator == audit.validator,
            columns.deadline_at == audit.deadline_at,
        )
        await time_out(conn, [each.id for each in found], now)


async def time_out(conn: AsyncConnection, audit_ids: Sequence[str], now: int) -> None:
    """Put assigned audits back into the queue."""
    values = {"validator": None, "deadline_at": None}
    await transition_many(
        conn, AUDIT, audit_ids, from_state=AuditState.ASSIGNED, event="time_out", now=now, values=values
    )


async def _record_verdict(
    conn: AsyncConnection, services: Services, case: _Case, drawn: tuple[EvidenceReport, Verdict, str, int]
) -> None:
    """Everything that a verdict changes, in one transaction, rows locked order first."""
    report, verdict, calibration_id, now = drawn
    accepted = verdict.state is VerdictState.ACCEPTED
    if not accepted:
        await lock_miner_and_orders(conn, case.submission.miner, case.audit.order_id, now)
    order = await lock_order(conn, case.audit.order_id)
    (task,) = await lock_tasks(conn, schema.tasks.c.id == case.work.task.id)
    (audit,) = await lock_audits(conn, schema.audits.c.id == case.audit.id)
    mine = audit.state == AuditState.ASSIGNED and audit.validator == case.audit.validator
    if not mine or order is None or order.state != OrderState.RUNNING:
        raise Conflict("audit_lost", "the audit has timed out, was dropped or is another validator's")
    values = {
        "deadline_at": None,
        "engine": report.engine,
        "evidence": [sample.model_dump(mode="json") for sample in report.samples],
        "signature": bytes.fromhex(report.signature),
        "calibration_id": calibration_id,
        "accepted": int(accepted),
        "code": verdict.code,
    }
    await transition(conn, AUDIT, audit.id, from_state=AuditState.ASSIGNED, event="judge", now=now, values=values)
    if not accepted:
        await reject(conn, services, task, case.submission, (verdict.code, now))
        return
    code = {"code": verdict.code}
    submission_id = case.submission.id
    await transition(
        conn, SUBMISSION, submission_id, from_state=SubmissionState.PENDING, event="accept", now=now, values=code
    )
    await transition(conn, TASK, task.id, from_state=TaskState.SUBMITTED, event="accept", now=now)


async def reject(
    conn: AsyncConnection,
    services: Services,
    task: TaskRecord,
    submission: NewSubmission,
    reason: tuple[str, int],
) -> None:
    """Refuse a claim: the task goes to somebody else or is given up, and the miner is suspended.

    Args:
        conn: a transaction that holds lock_miner_and_orders() and the lock of the submitted task.
        services: for the limits.
        task: the submitted task.
        submission: the pending claim.
        reason: the reason code and the time in Unix seconds.
    """
    code, now = reason
    await transition(
        conn,
        SUBMISSION,
        submission.id,
        from_state=SubmissionState.PENDING,
        event="reject",
        now=now,
        values={"code": code},
    )
    event = "reject" if task.attempts + 1 < services.settings.max_attempts else "give_up"
    values = {**FREED, "attempts": task.attempts + 1}
    await transition(conn, TASK, task.id, from_state=TaskState.SUBMITTED, event=event, now=now, values=values)
    await exclude_miner(conn, task.id, submission.miner)
    await suspend(conn, submission.miner, code, now + services.settings.suspension_seconds, now)
    log.info(
        "claim rejected", extra={"action": "reject_claim", "task": task.id, "miner": submission.miner, "code": code}
    )
