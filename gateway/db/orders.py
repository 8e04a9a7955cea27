"""Rows of orders, their lines and their tasks."""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from sqlalchemy import func, insert, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.states import ORDER, TASK, OrderState, TaskState
from gateway.db.paging import Page, fetch_page
from gateway.db.schema import idempotency_keys, lines, orders, submissions, tasks
from gateway.db.transitions import create, transition

OPEN_STATES = sorted({str(state) for state in ORDER.states} - ORDER.final_states - {OrderState.QUOTED})
CHUNK = 250  # a chunk is prepared in one go, while other requests wait


@dataclass(frozen=True)
class NewOrder:
    """What is known of an order when it is placed; columns of the table."""

    id: str
    account_id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    model_spec: dict[str, Any]
    model_repo: str
    model_revision: str
    sampling: dict[str, Any]
    prompts_blob_key: str
    total_lines: int
    refused_lines: int
    prompt_tokens: int
    pricing: dict[str, Any]
    price_micro: int
    beacon_round: int | None
    randomness: bytes | None
    output_expires_after_seconds: int | None
    created_at: int
    expires_at: int


@dataclass(frozen=True)
class OrderRecord(NewOrder):
    """One order; the columns of the table."""

    state: str
    refunded_micro: int | None
    completed_lines: int | None
    accepted_samples: int | None
    completion_tokens: int | None
    output_file_id: str | None
    error_file_id: str | None
    failure_code: str | None
    failure_message: str | None
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None


@dataclass(frozen=True, slots=True)  # a file has 50,000 of them
class LineRecord:
    """One line of an order's file: usable (with a prompt) or refused (with a code)."""

    line_number: int
    custom_id: str | None
    prompt_offset: int | None
    prompt_tokens: int | None
    refusal_code: str | None
    refusal_message: str | None


@dataclass(frozen=True)
class NewTask:
    """Samples first_sample … first_sample + sample_count − 1 of a line."""

    line_number: int
    first_sample: int
    sample_count: int


@dataclass(frozen=True)
class Progress:
    """How far an order is: lines with all their samples, accepted samples and their tokens."""

    completed_lines: int
    accepted_samples: int
    completion_tokens: int


NOTHING = Progress(0, 0, 0)


@dataclass(frozen=True)
class IdempotencyRecord:
    """The order that a key already made, and the digest of the body it was made from."""

    order_id: str
    body_sha256: str


async def insert_order(
    conn: AsyncConnection, order: NewOrder, order_lines: Iterable[LineRecord], order_tasks: Iterable[NewTask], now: int
) -> None:
    """Place an order: reserved, or queued at once when its randomness is already fixed.

    The caller holds the funds in the same transaction.
    """
    await create(conn, ORDER, [asdict(order)], now)
    await transition(conn, ORDER, order.id, from_state=OrderState.QUOTED, event="reserve", now=now)
    if order.randomness is not None:
        await transition(conn, ORDER, order.id, from_state=OrderState.RESERVED, event="randomness_fixed", now=now)
    for chunk in _batched(order_lines):
        await conn.execute(insert(lines), [{"order_id": order.id, **asdict(line)} for line in chunk])
    for chunk_of_tasks in _batched(order_tasks):
        rows = [
            {"id": secrets.token_hex(12), "order_id": order.id, "attempts": 0, **asdict(task)}
            for task in chunk_of_tasks
        ]
        await create(conn, TASK, rows, now)


def _batched(rows: Iterable[Any]) -> Iterator[Sequence[Any]]:
    source = iter(rows)
    while chunk := list(islice(source, CHUNK)):
        yield chunk


async def get_order(conn: AsyncConnection, order_id: str) -> OrderRecord | None:
    """Any account's order."""
    row = (await conn.execute(select(orders).where(orders.c.id == order_id))).mappings().first()
    return None if row is None else OrderRecord(**row)


async def lock_order(conn: AsyncConnection, order_id: str) -> OrderRecord | None:
    """Any account's order, its row locked until the transaction ends."""
    row = (await conn.execute(select(orders).where(orders.c.id == order_id).with_for_update())).mappings().first()
    return None if row is None else OrderRecord(**row)


async def find_order(conn: AsyncConnection, account_id: str, order_id: str) -> OrderRecord | None:
    """An account's order; None for another account's and for a mere quote."""
    query = select(orders).where(
        orders.c.id == order_id, orders.c.account_id == account_id, orders.c.state != OrderState.QUOTED
    )
    row = (await conn.execute(query)).mappings().first()
    return None if row is None else OrderRecord(**row)


async def list_orders(conn: AsyncConnection, account_id: str, page: Page) -> Sequence[OrderRecord]:
    """A page of the account's orders.

    Raises:
        UnknownCursor: when page.after is no order of the account.
    """
    query = select(orders).where(orders.c.state != OrderState.QUOTED)
    return [OrderRecord(**row) for row in await fetch_page(conn, orders, account_id, page, query)]


async def open_order_count(conn: AsyncConnection, account_id: str) -> int:
    """Orders of the account that have not ended."""
    query = select(func.count()).where(orders.c.account_id == account_id, orders.c.state.in_(OPEN_STATES))
    return int((await conn.execute(query)).scalar_one())


async def orders_in_state(
    conn: AsyncConnection, state: str, limit: int, after: OrderRecord | None = None
) -> Sequence[OrderRecord]:
    """Some orders in a state, the earliest deadline first, beginning behind one of them."""
    query = select(orders).where(orders.c.state == state).order_by(orders.c.expires_at, orders.c.id).limit(limit)
    if after is not None:
        query = query.where(tuple_(orders.c.expires_at, orders.c.id) > tuple_(after.expires_at, after.id))
    return [OrderRecord(**row) for row in (await conn.execute(query)).mappings()]


async def queue_position(conn: AsyncConnection, order: OrderRecord) -> int:
    """How many waiting orders were placed before this one."""
    waiting = orders.c.state.in_([OrderState.RESERVED, OrderState.QUEUED])
    earlier = (orders.c.created_at < order.created_at) | (
        (orders.c.created_at == order.created_at) & (orders.c.id < order.id)
    )
    return int((await conn.execute(select(func.count()).where(waiting, earlier))).scalar_one())


async def progress(conn: AsyncConnection, order: OrderRecord, tasks_per_line: int) -> Progress:
    """How far an order is: derived from its tasks while it runs, noted with its end."""
    if order.completed_lines is not None:
        return Progress(order.completed_lines, order.accepted_samples or 0, order.completion_tokens or 0)
    if order.in_progress_at is None:
        return NOTHING
    is_accepted = (tasks.c.order_id == order.id) & (tasks.c.state == TaskState.ACCEPTED)
    sums = select(
        func.count(),
        func.coalesce(func.sum(tasks.c.sample_count), 0),
        func.coalesce(func.sum(submissions.c.completion_tokens), 0),
    ).join(submissions, submissions.c.id == tasks.c.submission_id)
    accepted, samples, tokens = (await conn.execute(sums.where(is_accepted))).one()
    if tasks_per_line == 1:
        return Progress(int(accepted), int(samples), int(tokens))
    complete = select(tasks.c.line_number).where(is_accepted).group_by(tasks.c.line_number)
    complete = complete.having(func.count() == tasks_per_line)
    lines_done = (await conn.execute(select(func.count()).select_from(complete.subquery()))).scalar_one()
    return Progress(int(lines_done), int(samples), int(tokens))


async def lines_of(conn: AsyncConnection, order_id: str, after_line: int, limit: int) -> Sequence[LineRecord]:
    """The next lines of the order's file after a line number."""
    columns = [column for column in lines.c if column.name != "order_id"]
    query = select(*columns).where(lines.c.order_id == order_id, lines.c.line_number > after_line)
    found = await conn.execute(query.order_by(lines.c.line_number).limit(limit))
    return [LineRecord(**row) for row in found.mappings()]


async def find_idempotency(conn: AsyncConnection, account_id: str, key: str) -> IdempotencyRecord | None:
    """What a key of the account was used for."""
    query = select(idempotency_keys.c.order_id, idempotency_keys.c.body_sha256).where(
        idempotency_keys.c.account_id == account_id, idempotency_keys.c.key == key
    )
    row = (await conn.execute(query)).first()
    return None if row is None else IdempotencyRecord(row.order_id, row.body_sha256)


async def insert_idempotency(
    conn: AsyncConnection, account_id: str, key: str, record: IdempotencyRecord, now: int
) -> None:
    """Bind a key to its order; sqlalchemy.exc.IntegrityError when the key is taken."""
    await conn.execute(
        insert(idempotency_keys).values(account_id=account_id, key=key, created_at=now, **asdict(record))
    )
