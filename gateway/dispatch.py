"""Work to miners: leases out, claims in."""

import logging
import secrets
from collections.abc import Sequence

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.audits import reject
from gateway.core.states import ORDER, TASK, MinerState, OrderState, TaskState
from gateway.db import schema
from gateway.db.audits import insert_audit
from gateway.db.miners import lock_miner
from gateway.db.orders import OrderRecord, get_order, lock_order
from gateway.db.tasks import (
    NewSubmission,
    SubmissionRecord,
    TaskRecord,
    candidate_tasks,
    get_task,
    insert_submission,
    lock_queued,
    lock_tasks,
    prompts_of,
    submission_of_lease,
)
from gateway.db.transitions import transition, transition_many
from gateway.errors import NEVER, Conflict, Forbidden, NotFound, retry_after
from gateway.prompts import Prompted, prompted
from gateway.services import Services
from gateway.suspension import FREED, lock_miner_and_orders
from protocol.encoding import encode_token_ids
from protocol.messages import (
    LeasedTask,
    LeaseList,
    LeaseListResponse,
    LeaseRequest,
    LeaseResponse,
    Submission,
    SubmissionReceipt,
    submission_statement,
)
from protocol.verdict import check_structure

log = logging.getLogger("reliquary.gateway")

IDLE_SECONDS = 1.0


async def lease_tasks(services: Services, hotkey: str, request: LeaseRequest, now: int) -> LeaseResponse:
    """Lease up to max_tasks tasks of the models that the miner serves.

    Raises:
        Forbidden: miner_suspended.
    """
    expires_at = now + services.settings.lease_seconds
    async with services.database.transaction() as conn:
        await _require_active(conn, hotkey, now)
        leased = await _lease(conn, hotkey, request, expires_at, now)
    answers = []
    for order_id in dict.fromkeys(task.order_id for task in leased):
        tasks = [task for task in leased if task.order_id == order_id]
        answers += [
            LeasedTask(
                task_id=work.task.id,
                lease_id=work.task.lease_id or "",
                model=work.model,
                sampling=work.sampling,
                prompt_token_ids=tuple(work.prompt_token_ids),
                first_sample=work.task.first_sample,
                sample_keys=tuple(key.hex() for key in work.sample_keys),
                lease_expires_at=expires_at,
                lease_seconds=services.settings.lease_seconds,
            )
            for work in await load_work(services, tasks)
        ]
    return LeaseResponse(tasks=tuple(answers), retry_after_seconds=0.0 if answers else IDLE_SECONDS)


async def load_work(services: Services, tasks: Sequence[TaskRecord]) -> list[Prompted]:
    """Tasks of one order with their prompts and sample keys."""
    async with services.database.snapshot() as conn:
        order = await get_order(conn, tasks[0].order_id)
        prompts = await prompts_of(conn, tasks)
    if order is None:
        raise LookupError(f"order {tasks[0].order_id} is gone")
    return await prompted(services, order, tasks, list(prompts.values()))


async def _require_active(conn: AsyncConnection, hotkey: str, now: int) -> None:
    miner = await lock_miner(conn, hotkey, now)
    if miner.state == MinerState.SUSPENDED and miner.suspended_until is not None:
        raise Forbidden(
            "miner_suspended",
            f"suspended for {miner.suspension_code} until {miner.suspended_until}",
            retry=retry_after(max(1, miner.suspended_until - now)),
        )


async def _lease(
    conn: AsyncConnection, hotkey: str, request: LeaseRequest, expires_at: int, now: int
) -> list[TaskRecord]:
    """Lock order rows before task rows, as everybody does; then choose anew, because the locks were waited for."""
    leased: list[TaskRecord] = []
    found = await candidate_tasks(conn, hotkey, request.models, request.max_tasks)
    orders = [await lock_order(conn, order_id) for order_id in sorted({task.order_id for task in found})]
    candidates = await candidate_tasks(conn, hotkey, request.models, request.max_tasks) if orders else []
    for order in orders:
        if order is None or order.state not in (OrderState.QUEUED, OrderState.RUNNING):
            continue
        order_id = order.id
        locked = await lock_queued(conn, [task.id for task in candidates if task.order_id == order_id])
        if locked and order.state == OrderState.QUEUED:
            started = {"in_progress_at": now}
            await transition(
                conn, ORDER, order_id, from_state=OrderState.QUEUED, event="first_lease", now=now, values=started
            )
        for task in locked:
            values = {"miner": hotkey, "lease_id": secrets.token_hex(12), "lease_expires_at": expires_at}
            await transition(conn, TASK, task.id, from_state=TaskState.QUEUED, event="lease", now=now, values=values)
            leased.append(await _reread(conn, task.id))
    return leased


async def _reread(conn: AsyncConnection, task_id: str) -> TaskRecord:
    task = await get_task(conn, task_id)
    if task is None:
        raise LookupError(f"task {task_id} is gone")
    return task


async def heartbeat(services: Services, hotkey: str, request: LeaseList, now: int) -> LeaseListResponse:
    """Keep leases alive; the answer names those that are still held."""
    expires_at = now + services.settings.lease_seconds
    async with services.database.transaction() as conn:
        held = await _held(conn, hotkey, request)
        ids = [task.id for task in held]
        # No transition: the task stays leased, only its deadline moves.
        change = update(schema.tasks).where(schema.tasks.c.id.in_(ids), schema.tasks.c.state == TaskState.LEASED)
        await conn.execute(change.values(lease_expires_at=expires_at))
    return LeaseListResponse(lease_ids=tuple(task.lease_id for task in held if task.lease_id))


async def release(services: Services, hotkey: str, request: LeaseList, now: int) -> LeaseListResponse:
    """Hand leases back; the answer names those that were held."""
    async with services.database.transaction() as conn:
        held = await _held(conn, hotkey, request)
        ids = [task.id for task in held]
        await transition_many(conn, TASK, ids, from_state=TaskState.LEASED, event="release", now=now, values=FREED)
    return LeaseListResponse(lease_ids=tuple(task.lease_id for task in held if task.lease_id))


async def _held(conn: AsyncConnection, hotkey: str, request: LeaseList) -> Sequence[TaskRecord]:
    columns = schema.tasks.c
    return await lock_tasks(
        conn, columns.lease_id.in_(request.lease_ids), columns.miner == hotkey, columns.state == TaskState.LEASED
    )


async def submit(services: Services, hotkey: str, submission: Submission, now: int) -> SubmissionReceipt:
    """Take a claim: refused at once if it breaks an exact rule, else kept for an audit.

    The same lease answered again gets the same receipt. A late answer counts while nobody else took the task.

    Raises:
        NotFound: unknown_task.
        Conflict: lease_lost; engine_not_calibrated, when nobody could ever judge claims of this engine.
    """
    async with services.database.snapshot() as conn:
        known = await submission_of_lease(conn, submission.lease_id)
        task = await get_task(conn, submission.task_id)
    if known is not None:
        return _known_receipt(known, hotkey)
    if task is None:
        raise NotFound("unknown_task", f"there is no task {submission.task_id}")
    _require_lease(task, hotkey, submission)
    (work,) = await load_work(services, [task])
    _require_judgeable(services, submission.engine, work.model.repo)
    fault = _fault_of(services, hotkey, submission, work)
    async with services.database.transaction() as conn:
        return await _take(conn, services, _row_of(hotkey, submission, task, now), fault)


def _known_receipt(known: SubmissionRecord, hotkey: str) -> SubmissionReceipt:
    if known.miner != hotkey:
        raise Conflict("lease_lost", "the lease belongs to another miner")
    status = "rejected" if known.state == "rejected" else "submitted"
    return SubmissionReceipt(task_id=known.task_id, status=status, code=known.code if status == "rejected" else None)


def _require_lease(task: TaskRecord, hotkey: str, submission: Submission) -> None:
    mine = task.miner == hotkey and task.lease_id == submission.lease_id
    if not mine or task.state not in (TaskState.LEASED, TaskState.QUEUED):
        raise Conflict("lease_lost", "the lease has ended and the task is not free any more")


def _require_judgeable(services: Services, engine: str, repo: str) -> None:
    """Refuse what no validator could be judged on: its audit would go round for ever, ahead of all later ones."""
    if not any(each.miner_engine == engine and each.model_repo in (repo, "*") for each in services.calibrations):
        raise Conflict("engine_not_calibrated", f"there is no calibration for {engine} on {repo}", retry=NEVER)


def _fault_of(services: Services, hotkey: str, submission: Submission, work: Prompted) -> str | None:
    """The first exact rule that the claim breaks.

    The request as a whole is signed by the hotkey, so a claim without a statement of its own is that miner's doing.
    """
    if [sample.sample_index for sample in submission.samples] != list(work.task.sample_indices):
        return "wrong_samples"
    claimed = zip(work.sample_keys, submission.samples, strict=True)
    statement = submission_statement(
        submission.task_id, submission.engine, tuple((key.hex(), sample.token_ids) for key, sample in claimed)
    )
    if not services.verify_signature(statement, bytes.fromhex(submission.signature), hotkey):
        return "bad_statement_signature"
    faults = (check_structure(sample.token_ids, work.model, work.sampling) for sample in submission.samples)
    return next((code for code in faults if code is not None), None)


def _row_of(hotkey: str, submission: Submission, task: TaskRecord, now: int) -> NewSubmission:
    counts = [len(sample.token_ids) for sample in submission.samples]
    return NewSubmission(
        id=secrets.token_hex(12),
        task_id=task.id,
        order_id=task.order_id,
        lease_id=submission.lease_id,
        miner=hotkey,
        engine=submission.engine,
        token_counts=counts,
        token_ids=b"".join(encode_token_ids(sample.token_ids) for sample in submission.samples),
        completion_tokens=sum(counts),
        signature=bytes.fromhex(submission.signature),
        submitted_at=now,
    )


async def _take(conn: AsyncConnection, services: Services, row: NewSubmission, fault: str | None) -> SubmissionReceipt:
    """Store the claim in one transaction, the lease checked again under the locks."""
    now = row.submitted_at
    await lock_miner(conn, row.miner, now)
    if fault is not None:
        await lock_miner_and_orders(conn, row.miner, row.order_id, now)
    order = await _lock_running(conn, row.order_id)
    (task,) = await lock_tasks(conn, schema.tasks.c.id == row.task_id)
    known = await submission_of_lease(conn, row.lease_id)
    if known is not None:  # a copy of this request was quicker
        return _known_receipt(known, row.miner)
    if order is None or task.lease_id != row.lease_id or task.state not in (TaskState.LEASED, TaskState.QUEUED):
        raise Conflict("lease_lost", "the lease has ended and the task is not free any more")
    await _require_active(conn, row.miner, now)
    await insert_submission(conn, row, now)
    values = {"lease_expires_at": None, "submission_id": row.id}
    await transition(conn, TASK, task.id, from_state=task.state, event="submit", now=now, values=values)
    if fault is None:
        await insert_audit(conn, row.id, row.order_id, now)
        return SubmissionReceipt(task_id=task.id, status="submitted")
    await reject(conn, services, task, row, (fault, now))
    log.info("claim refused", extra={"action": "refuse_claim", "task": task.id, "miner": row.miner, "code": fault})
    return SubmissionReceipt(task_id=task.id, status="rejected", code=fault)


async def _lock_running(conn: AsyncConnection, order_id: str) -> OrderRecord | None:
    order = await lock_order(conn, order_id)
    return order if order is not None and order.state == OrderState.RUNNING else None
