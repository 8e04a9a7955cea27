"""Rows of audits: one validator's look at one claim."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.states import AUDIT, AuditState
from gateway.db.schema import audits, orders, submissions
from gateway.db.transitions import create
from protocol.models import ModelRef


@dataclass(frozen=True)
class AuditRecord:
    """One audit; the columns of the table."""

    id: str
    submission_id: str
    order_id: str
    state: str
    validator: str | None
    deadline_at: int | None
    engine: str | None
    evidence: list[dict[str, Any]] | None
    signature: bytes | None
    calibration_id: str | None
    accepted: int | None
    code: str | None
    created_at: int


async def insert_audit(conn: AsyncConnection, submission_id: str, order_id: str, now: int) -> None:
    """Ask for an audit of a claim."""
    row = {"id": secrets.token_hex(12), "submission_id": submission_id, "order_id": order_id, "created_at": now}
    await create(conn, AUDIT, [row], now)


async def lock_pending_audits(
    conn: AsyncConnection, validator: str, models: Sequence[ModelRef], limit: int
) -> Sequence[AuditRecord]:
    """Pending audits of the models, oldest first, none of the validator's own claims; locked, skipping locked ones."""
    served = or_(*(and_(orders.c.model_repo == m.repo, orders.c.model_revision == m.revision) for m in models))
    query = (
        select(audits)
        .join(orders, orders.c.id == audits.c.order_id)
        .join(submissions, submissions.c.id == audits.c.submission_id)
        .where(audits.c.state == AuditState.PENDING, served, submissions.c.miner != validator)
        .order_by(audits.c.created_at, audits.c.id)
        .limit(limit)
        .with_for_update(of=audits, skip_locked=True)
    )
    return [AuditRecord(**row) for row in (await conn.execute(query)).mappings()]


async def get_audit(conn: AsyncConnection, audit_id: str) -> AuditRecord | None:
    """An audit."""
    row = (await conn.execute(select(audits).where(audits.c.id == audit_id))).mappings().first()
    return None if row is None else AuditRecord(**row)


async def lock_audits(conn: AsyncConnection, *conditions: Any) -> Sequence[AuditRecord]:
    """Audits by any conditions on their columns, locked in the order of their ids."""
    query = select(audits).where(*conditions).order_by(audits.c.id).with_for_update()
    return [AuditRecord(**row) for row in (await conn.execute(query)).mappings()]
