"""Rows of tasks, of the lines they belong to and of the claims made on them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import and_, exists, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.states import SUBMISSION, OrderState, SubmissionState, TaskState
from gateway.db.schema import audits, lines, orders, submissions, task_exclusions, tasks
from gateway.db.transitions import create
from protocol.encoding import decode_token_ids
from protocol.models import ModelRef

LIVE_TASKS = (TaskState.QUEUED, TaskState.LEASED, TaskState.SUBMITTED)


@dataclass(frozen=True)
class TaskRecord:
    """One task; the columns of the table."""

    id: str
    order_id: str
    line_number: int
    first_sample: int
    sample_count: int
    state: str
    attempts: int
    miner: str | None
    lease_id: str | None
    lease_expires_at: int | None
    submission_id: str | None

    @property
    def sample_indices(self) -> range:
        """The samples of the task."""
        return range(self.first_sample, self.first_sample + self.sample_count)


@dataclass(frozen=True)
class PromptRecord:
    """Where a usable line's prompt lies in its order's prompts blob, in tokens."""

    order_id: str
    line_number: int
    custom_id: str
    prompt_offset: int
    prompt_tokens: int


@dataclass(frozen=True)
class NewSubmission:
    """A miner's claim on a task; columns of the table."""

    id: str
    task_id: str
    order_id: str
    lease_id: str
    miner: str
    engine: str
    token_counts: list[int]
    token_ids: bytes
    completion_tokens: int
    signature: bytes
    submitted_at: int


@dataclass(frozen=True)
class SubmissionRecord(NewSubmission):
    """One claim with what became of it."""

    state: str
    code: str | None

    def samples(self) -> list[list[int]]:
        """The token ids of each sample, in sample order."""
        return split_samples(self.token_ids, self.token_counts)


@dataclass(frozen=True)
class AcceptedTask:
    """The accepted samples of a task, with the evidence that they were accepted on."""

    line_number: int
    first_sample: int
    samples: list[list[int]]
    evidence: list[dict[str, Any]]
    attempts: int


def split_samples(token_ids: bytes, token_counts: Sequence[int]) -> list[list[int]]:
    """Concatenated token ids, cut at the samples' lengths."""
    ids, found, at = decode_token_ids(token_ids), [], 0
    for count in token_counts:
        found.append(ids[at : at + count])
        at += count
    return found


async def candidate_tasks(
    conn: AsyncConnection, miner: str, models: Sequence[ModelRef], limit: int
) -> Sequence[TaskRecord]:
    """Tasks that a miner may lease, unlocked: earliest deadline first, samples of one line together."""
    served = or_(*(and_(orders.c.model_repo == m.repo, orders.c.model_revision == m.revision) for m in models))
    excluded = exists().where(task_exclusions.c.task_id == tasks.c.id, task_exclusions.c.miner == miner)
    query = (
        select(tasks)
        .join(orders, orders.c.id == tasks.c.order_id)
        .where(tasks.c.state == TaskState.QUEUED, orders.c.state.in_([OrderState.QUEUED, OrderState.RUNNING]))
        .where(served, ~excluded)
        .order_by(orders.c.expires_at, orders.c.id, tasks.c.line_number, tasks.c.first_sample)
        .limit(limit)
    )
    return [TaskRecord(**row) for row in (await conn.execute(query)).mappings()]


async def lock_queued(conn: AsyncConnection, task_ids: Sequence[str]) -> Sequence[TaskRecord]:
    """Those of the tasks that are still queued and that nobody else has locked, now locked."""
    query = select(tasks).where(tasks.c.id.in_(task_ids), tasks.c.state == TaskState.QUEUED)
    query = query.order_by(tasks.c.line_number, tasks.c.first_sample).with_for_update(skip_locked=True)
    return [TaskRecord(**row) for row in (await conn.execute(query)).mappings()]


async def get_task(conn: AsyncConnection, task_id: str) -> TaskRecord | None:
    """A task."""
    row = (await conn.execute(select(tasks).where(tasks.c.id == task_id))).mappings().first()
    return None if row is None else TaskRecord(**row)


async def lock_tasks(conn: AsyncConnection, *conditions: Any) -> Sequence[TaskRecord]:
    """Tasks by any conditions on their columns, locked in the order of their ids."""
    query = select(tasks).where(*conditions).order_by(tasks.c.id).with_for_update()
    return [TaskRecord(**row) for row in (await conn.execute(query)).mappings()]


async def prompts_of(conn: AsyncConnection, wanted: Sequence[TaskRecord]) -> dict[tuple[str, int], PromptRecord]:
    """The prompts of the tasks' lines, by (order id, line number)."""
    keys = {(task.order_id, task.line_number) for task in wanted}
    if not keys:
        return {}
    columns = [lines.c[name] for name in ("order_id", "line_number", "custom_id", "prompt_offset", "prompt_tokens")]
    one_of = or_(*(and_(lines.c.order_id == order, lines.c.line_number == line) for order, line in keys))
    found = (await conn.execute(select(*columns).where(one_of))).mappings()
    return {(row["order_id"], row["line_number"]): PromptRecord(**row) for row in found}


async def exclude_miner(conn: AsyncConnection, task_id: str, miner: str) -> None:
    """Never give the task to the miner again."""
    known = select(task_exclusions.c.task_id).where(
        task_exclusions.c.task_id == task_id, task_exclusions.c.miner == miner
    )
    if (await conn.execute(known)).first() is None:
        await conn.execute(insert(task_exclusions).values(task_id=task_id, miner=miner))


async def insert_submission(conn: AsyncConnection, submission: NewSubmission, now: int) -> None:
    """Keep a claim; IntegrityError when its lease has been answered already."""
    await create(conn, SUBMISSION, [asdict(submission)], now)


async def get_submission(conn: AsyncConnection, submission_id: str) -> SubmissionRecord | None:
    """A claim."""
    row = (await conn.execute(select(submissions).where(submissions.c.id == submission_id))).mappings().first()
    return None if row is None else SubmissionRecord(**row)


async def submission_of_lease(conn: AsyncConnection, lease_id: str) -> SubmissionRecord | None:
    """The answer to a lease, if it was given."""
    query = select(submissions).where(submissions.c.lease_id == lease_id)
    row = (await conn.execute(query)).mappings().first()
    return None if row is None else SubmissionRecord(**row)


async def accepted_of_lines(
    conn: AsyncConnection, order_id: str, first_line: int, last_line: int
) -> dict[int, list[AcceptedTask]]:
    """The accepted tasks of a range of lines, by line number, in sample order."""
    query = (
        select(
            tasks.c.line_number,
            tasks.c.first_sample,
            tasks.c.attempts,
            submissions.c.token_ids,
            submissions.c.token_counts,
            audits.c.evidence,
        )
        .join(submissions, submissions.c.id == tasks.c.submission_id)
        .join(audits, and_(audits.c.submission_id == submissions.c.id, audits.c.accepted == 1))
        .where(
            tasks.c.order_id == order_id,
            tasks.c.line_number.between(first_line, last_line),
            tasks.c.state == TaskState.ACCEPTED,
            submissions.c.state == SubmissionState.ACCEPTED,
        )
        .order_by(tasks.c.line_number, tasks.c.first_sample)
    )
    found: dict[int, list[AcceptedTask]] = {}
    for row in await conn.execute(query):
        samples = split_samples(row.token_ids, row.token_counts)
        task = AcceptedTask(row.line_number, row.first_sample, samples, row.evidence, row.attempts)
        found.setdefault(row.line_number, []).append(task)
    return found
