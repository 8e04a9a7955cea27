"""Orders: placing a batch, reading it back, cancelling it."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.identifiers import can_be_id
from gateway.core.states import BATCH_STATUS, ORDER, OrderState
from gateway.db import orders as order_rows
from gateway.db.ledger import InsufficientBalance, hold
from gateway.db.orders import IdempotencyRecord, NewOrder, NewTask, OrderRecord, Progress
from gateway.db.paging import Page
from gateway.db.quotes import delete_quote_request, insert_quote_request, quotes_since
from gateway.db.schema import accounts
from gateway.ending import end_early
from gateway.errors import (
    NEVER,
    Conflict,
    DatabaseBusy,
    LimitReached,
    NotFound,
    PaymentRequired,
    Unavailable,
    pointless_before,
)
from gateway.intake import BatchRequest, PreparedBatch, prepare_batch
from gateway.prompts import blob_key_of
from gateway.quotes import usd
from gateway.services import Services
from gateway.tokenizers import keep_tokenizer
from protocol.beacon import first_round_after
from protocol.draw import seed_randomness
from protocol.params import V1

BATCH_PREFIX = "batch_"
NOT_STARTED = frozenset({OrderState.RESERVED, OrderState.QUEUED})
QUOTA_SECONDS = 24 * 3600
COMMIT_SECONDS = 10
"""The round that will fix the randomness is published at least this long after the order was written down, so that
nobody knew it when the prompts were fixed."""


@dataclass(frozen=True)
class BatchView:
    """An order as its owner sees it.

    Attributes:
        orders_ahead: waiting orders that were placed before; None once it no longer waits.
    """

    order: OrderRecord
    progress: Progress
    orders_ahead: int | None


async def create_batch(
    services: Services, account_id: str, request: BatchRequest, clock: Callable[[], int]
) -> BatchView:
    """Quote a file and place the order, once per idempotency key.

    The clock is read anew when the order is placed, because reading and rendering a large file takes time and the
    randomness must come from after that.

    Raises:
        Conflict: idempotency_conflict when the key was used with another body; order_refused when others held the
            account's rows for too long.
        LimitReached: order_limit with too many open orders, rate_limited with too many quotes.
        PaymentRequired: insufficient_balance; and all that prepare_batch raises.
    """
    earlier = await _earlier_batch(services, account_id, request)
    if earlier is not None:
        return earlier
    try:
        quote_id = await _ask_for_quote(services, account_id, clock())
        return await _quote_and_place(services, account_id, request, quote_id, clock)
    except DatabaseBusy as error:
        raise Conflict("order_refused", "the order could not be placed; retry", retry=error.retry) from error


async def _ask_for_quote(services: Services, account_id: str, now: int) -> str:
    """Count a quote against the account's quota before any work is done for it; what it is counted under."""
    limit = services.settings.max_quotes_per_day
    async with services.database.transaction() as connection:
        await _lock_account(connection, account_id)
        await _require_room(connection, services, account_id)
        count, first = await quotes_since(connection, account_id, now - QUOTA_SECONDS)
        if first is not None and count >= limit:
            message = f"{limit} quotes were made in the last {QUOTA_SECONDS // 3600} hours"
            wait = pointless_before(first + QUOTA_SECONDS - now)
            raise LimitReached("rate_limited", message, retry=wait)
        return await insert_quote_request(connection, account_id, now)


async def _quote_and_place(
    services: Services, account_id: str, request: BatchRequest, quote_id: str, clock: Callable[[], int]
) -> BatchView:
    """prepare_batch and place_batch; what failed for no fault of the customer's does not count against the quota."""
    try:
        prepared = await prepare_batch(services, account_id, request, clock())
        return await place_batch(services, account_id, prepared, clock())
    except Unavailable:
        async with services.database.transaction() as connection:
            await delete_quote_request(connection, quote_id)
        raise


async def place_batch(services: Services, account_id: str, prepared: PreparedBatch, now: int) -> BatchView:
    """Write a prepared batch down: tokenizer and prompts first, then everything else and the hold in one transaction.

    Raises:
        LimitReached, PaymentRequired, Conflict: as create_batch.
    """
    order = _new_order(services, account_id, prepared, now)
    await keep_tokenizer(services, order.model_repo, order.model_revision, prepared.tokenizer)
    await services.blobs.put(order.prompts_blob_key, prepared.prompts)
    try:
        async with services.database.transaction() as connection:
            # Before anything that refers to the account, so that two orders at once queue up instead of deadlocking;
            # and nobody else's order slips in between the count and the commit.
            await _lock_account(connection, account_id)
            await _require_room(connection, services, account_id)
            await order_rows.insert_order(connection, order, prepared.lines, _tasks(prepared), now)
            await hold(connection, account_id, order.id, order.price_micro, now)
            await _bind_key(connection, account_id, prepared.request, order.id, now)
    except InsufficientBalance as error:
        await services.blobs.delete(order.prompts_blob_key)
        message = f"the price is {usd(order.price_micro)} USD and {usd(error.available_micro)} USD are available"
        raise PaymentRequired("insufficient_balance", message) from error
    except DatabaseBusy:  # nothing was written
        await services.blobs.delete(order.prompts_blob_key)
        raise
    except (LimitReached, IntegrityError):
        await services.blobs.delete(order.prompts_blob_key)
        winner = await _earlier_batch(services, account_id, prepared.request)
        if winner is None:
            raise
        return winner
    return await get_batch(services, account_id, order.id)


def _new_order(services: Services, account_id: str, prepared: PreparedBatch, now: int) -> NewOrder:
    order_id = secrets.token_hex(12)
    request, seed = prepared.request, prepared.sampling.seed
    refused = sum(line.refusal_code is not None for line in prepared.lines)
    return NewOrder(
        id=order_id,
        account_id=account_id,
        endpoint=request.endpoint,
        input_file_id=request.input_file_id,
        completion_window=f"{request.window_hours}h",
        metadata=None if request.metadata is None else dict(request.metadata),
        model_spec=prepared.model.model_dump(mode="json"),
        model_repo=prepared.model.repo,
        model_revision=prepared.model.revision,
        sampling=prepared.sampling.model_dump(mode="json"),
        prompts_blob_key=blob_key_of(order_id),
        total_lines=len(prepared.lines),
        refused_lines=refused,
        prompt_tokens=prepared.prompt_tokens,
        pricing=prepared.quote.model_dump(mode="json"),
        price_micro=prepared.quote.price_micro,
        beacon_round=first_round_after(services.beacon.chain, now + COMMIT_SECONDS) if seed is None else None,
        randomness=None if seed is None else seed_randomness(seed),
        output_expires_after_seconds=request.output_expires_after_seconds,
        created_at=now,
        expires_at=now + request.window_hours * 3600,
    )


def _tasks(prepared: PreparedBatch) -> Iterator[NewTask]:
    samples = prepared.sampling.n
    for line in prepared.lines:
        if line.refusal_code is None:
            for first in range(0, samples, V1.samples_per_task):
                yield NewTask(line.line_number, first, min(V1.samples_per_task, samples - first))


def _tasks_per_line(samples: int) -> int:
    return -(-samples // V1.samples_per_task)


async def _lock_account(connection: AsyncConnection, account_id: str) -> None:
    await connection.execute(select(accounts.c.id).where(accounts.c.id == account_id).with_for_update())


async def _require_room(connection: AsyncConnection, services: Services, account_id: str) -> None:
    limit = services.settings.max_open_orders
    if await order_rows.open_order_count(connection, account_id) >= limit:
        raise LimitReached("order_limit", f"{limit} orders are open already; wait for one to end", retry=NEVER)


async def _earlier_batch(services: Services, account_id: str, request: BatchRequest) -> BatchView | None:
    """The batch that an earlier request with the same key made."""
    if request.idempotency is None:
        return None
    async with services.database.snapshot() as connection:
        found = await order_rows.find_idempotency(connection, account_id, request.idempotency.key)
    if found is None:
        return None
    if found.body_sha256 != request.idempotency.body_sha256:
        raise Conflict("idempotency_conflict", "this Idempotency-Key was used with another body")
    return await get_batch(services, account_id, found.order_id)


async def _bind_key(
    connection: AsyncConnection, account_id: str, request: BatchRequest, order_id: str, now: int
) -> None:
    if request.idempotency is not None:
        record = IdempotencyRecord(order_id, request.idempotency.body_sha256)
        await order_rows.insert_idempotency(connection, account_id, request.idempotency.key, record, now)


async def get_batch(services: Services, account_id: str, order_id: str) -> BatchView:
    """An order of the account.

    Raises:
        NotFound: batch_not_found when there is none or it is another account's.
    """
    if not can_be_id(order_id):
        raise _not_found(order_id)
    async with services.database.snapshot() as connection:
        order = await order_rows.find_order(connection, account_id, order_id)
        if order is None:
            raise _not_found(order_id)
        return await _view(connection, order)


async def list_batches(services: Services, account_id: str, page: Page) -> tuple[Sequence[BatchView], bool]:
    """A page of the account's orders, and whether there are more after it.

    Raises:
        UnknownCursor: when page.after is no order of the account.
    """
    async with services.database.snapshot() as connection:
        found = await order_rows.list_orders(connection, account_id, replace(page, limit=page.limit + 1))
        views = [await _view(connection, order) for order in found[: page.limit]]
    return views, len(found) > page.limit


async def _view(connection: AsyncConnection, order: OrderRecord) -> BatchView:
    waits = order.state in NOT_STARTED
    ahead = await order_rows.queue_position(connection, order) if waits else None
    return BatchView(order, await order_rows.progress(connection, order, _tasks_per_line(order.sampling["n"])), ahead)


def _not_found(order_id: str) -> NotFound:
    return NotFound("batch_not_found", f"there is no batch {BATCH_PREFIX}{order_id}", param="batch_id")


async def cancel_batch(services: Services, account_id: str, order_id: str, now: int) -> BatchView:
    """Stop an order: before it started it is released in full, later what was verified is delivered.

    Raises:
        NotFound: as get_batch.
        Conflict: batch_not_cancellable when it is being exported or has ended.
    """
    if not can_be_id(order_id):
        raise _not_found(order_id)
    async with services.database.transaction() as connection:
        order = await order_rows.lock_order(connection, order_id)
        if order is None or order.account_id != account_id or order.state == OrderState.QUOTED:
            raise _not_found(order_id)
        if (order.state, "cancel") in ORDER.table:
            await end_early(connection, order, "cancel", now)
        elif order.state != OrderState.CANCELLING:
            status = BATCH_STATUS[order.state]
            raise Conflict("batch_not_cancellable", f"a batch that is {status} cannot be cancelled")
    return await get_batch(services, account_id, order_id)
