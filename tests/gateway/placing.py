"""Placing orders, leasing and answering, a step at a time."""

from typing import Any

from customer import ENGINE, EOS, MODEL, REVISION, SIGNATURE, World, chat_line, jsonl
from sqlalchemy import select

from gateway.audits import assign_audits, report_evidence
from gateway.db import schema
from gateway.dispatch import lease_tasks, submit
from protocol.evidence import pack_codes
from protocol.messages import (
    AuditAssignment,
    AuditReceipt,
    AuditRequest,
    ClaimedSample,
    EvidenceReport,
    LeasedTask,
    LeaseRequest,
    SampleEvidence,
    Submission,
    SubmissionReceipt,
)
from protocol.models import ModelRef

SERVED = (ModelRef(repo=MODEL, revision=REVISION),)
GOOD = (300, 301, EOS)
BROKEN = (EOS, EOS)


async def place(world: World, lines: int = 2, **body: Any) -> str:
    """An order of chat lines, through the front door; its id."""
    content = jsonl(*(chat_line(f"q{number}", f"What is {number} plus 1?", **body) for number in range(lines)))
    async with world.client() as client:
        file = await client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    return batch.id.removeprefix("batch_")


async def lease(world: World, miner: str = "miner", max_tasks: int = 256) -> tuple[LeasedTask, ...]:
    """What a miner gets."""
    request = LeaseRequest(models=SERVED, max_tasks=max_tasks)
    return (await lease_tasks(world.services, miner, request, world.now)).tasks


def claim_on(task: LeasedTask, token_ids: tuple[int, ...] = GOOD, count: int | None = None) -> Submission:
    """A claim of the same tokens for every sample of a task."""
    indices = range(task.first_sample, task.first_sample + (count or len(task.sample_keys)))
    samples = tuple(ClaimedSample(sample_index=index, token_ids=token_ids) for index in indices)
    return Submission(task_id=task.task_id, lease_id=task.lease_id, engine=ENGINE, samples=samples, signature=SIGNATURE)


async def answer(
    world: World, task: LeasedTask, token_ids: tuple[int, ...] = GOOD, miner: str = "miner"
) -> SubmissionReceipt:
    """A claim handed in."""
    return await submit(world.services, miner, claim_on(task, token_ids), world.now)


async def assigned(world: World, validator: str = "validator", max_audits: int = 256) -> tuple[AuditAssignment, ...]:
    """What a validator gets."""
    request = AuditRequest(models=SERVED, max_audits=max_audits)
    return (await assign_audits(world.services, validator, request, world.now)).audits


def evidence_on(audit: AuditAssignment, code: int = 0) -> EvidenceReport:
    """Evidence whose first radius code in every sample is the given one."""
    samples = tuple(
        SampleEvidence(
            sample_index=sample.sample_index, radius_codes=pack_codes([code, *[0] * (len(sample.token_ids) - 1)])
        )
        for sample in audit.samples
    )
    return EvidenceReport(audit_id=audit.audit_id, engine=ENGINE, samples=samples, signature=SIGNATURE)


async def judge(world: World, audit: AuditAssignment, code: int = 0, validator: str = "validator") -> AuditReceipt:
    """Evidence handed in."""
    return await report_evidence(world.services, validator, evidence_on(audit, code), world.now)


async def states(world: World, table: str) -> list[str]:
    """The states of a table's rows, in the order of their keys."""
    chosen = schema.metadata.tables[table]
    async with world.services.database.snapshot() as conn:
        query = select(chosen.c.state).order_by(*chosen.primary_key.columns)
        return list((await conn.execute(query)).scalars())


async def order_state(world: World, order_id: str) -> str:
    """The state of one order."""
    async with world.services.database.snapshot() as conn:
        query = select(schema.orders.c.state).where(schema.orders.c.id == order_id)
        return str((await conn.execute(query)).scalar_one())
