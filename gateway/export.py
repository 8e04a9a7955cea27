"""Delivering an order: its output and error files in input order, and the money, in one transaction."""

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core.pricing import Quote, captured
from gateway.core.results import DeliveredLine, DeliveredSample, OrderFacts, output_line, refused_line, short_line
from gateway.core.states import ORDER, OrderState
from gateway.db.blobs import StoredBlob
from gateway.db.files import FileRecord, insert_file
from gateway.db.ledger import settle
from gateway.db.orders import LineRecord, OrderRecord, get_order, lines_of, lock_order
from gateway.db.rejections import rejections_by_code
from gateway.db.tasks import AcceptedTask, accepted_of_lines
from gateway.db.transitions import transition
from gateway.errors import Unprocessable
from gateway.files import OUTPUT_PURPOSE, blob_key_of
from gateway.rendering import TokenizerFiles
from gateway.services import Services
from gateway.tokenizers import kept_tokenizer
from protocol.encoding import digest
from protocol.evidence import statistics, unpack_codes
from protocol.models import ModelSpec
from protocol.sampling import Sampling

log = logging.getLogger("reliquary.gateway")

MAX_LINES_AT_ONCE = 500
MAX_TOKENS_AT_ONCE = 2_000_000
ENDED_AT = {
    OrderState.EXPORTING: "completed_at",
    OrderState.EXPIRING: "expired_at",
    OrderState.CANCELLING: "cancelled_at",
}
"""The states an order is exported from, and the time stamp that its end sets."""


@dataclass
class _Tally:
    """What went into the output file and what has to go into the error file."""

    completed_lines: int = 0
    accepted_samples: int = 0
    completion_tokens: int = 0
    refused: list[bytes] = field(default_factory=list)
    short: list[bytes] = field(default_factory=list)


async def export_order(services: Services, order_id: str, now: int) -> None:
    """Write an order's files and end it.

    The files' ids and bytes depend on the order alone and the bytes are written before the rows, so dying anywhere
    and running again ends in the same place. An order that somebody else has ended meanwhile is left alone.

    An order whose tokenizer turns out to be unusable can never be delivered: it fails, and its hold is released.

    Raises:
        Unavailable, FileNotFoundError: the blob store failed; the order stays as it is, to be exported later.
    """
    async with services.database.snapshot() as connection:
        order = await get_order(connection, order_id)
    if order is None or order.state not in ENDED_AT:
        return
    tally = _Tally()
    try:
        output = await _write(services, order, "output", _output_lines(services, order, tally))
    except Unprocessable as error:
        await _fail(services, order, error, now)
        return
    errors = await _write(services, order, "error", _each(tally.refused, tally.short))
    async with services.database.transaction() as connection:
        current = await lock_order(connection, order_id)
        if current is not None and current.state in ENDED_AT:
            await _end(connection, current, (output, errors), tally, now)


async def _fail(services: Services, order: OrderRecord, reason: Unprocessable, now: int) -> None:
    async with services.database.transaction() as connection:
        current = await lock_order(connection, order.id)
        if current is None or current.state not in ENDED_AT:
            return
        values = {
            "failure_code": reason.code,
            "failure_message": reason.message,
            "completed_lines": 0,
            "accepted_samples": 0,
            "completion_tokens": 0,
            "refunded_micro": await settle(connection, order.id, 0, now),
            "failed_at": now,
        }
        await transition(connection, ORDER, order.id, from_state=current.state, event="fail", now=now, values=values)
    log.error("order failed", extra={"action": "export", "order_id": order.id, "code": reason.code})


async def _end(
    connection: AsyncConnection,
    order: OrderRecord,
    written: tuple["_Written | None", "_Written | None"],
    tally: _Tally,
    now: int,
) -> None:
    output, errors = written
    for one in (output, errors):
        if one is not None:
            await insert_file(connection, _file_record(order, one, now))
    capture_micro = captured(Quote.model_validate(order.pricing), tally.completion_tokens)
    refunded_micro = await settle(connection, order.id, capture_micro, now)
    values = {
        "output_file_id": None if output is None else output.file_id,
        "error_file_id": None if errors is None else errors.file_id,
        "completed_lines": tally.completed_lines,
        "accepted_samples": tally.accepted_samples,
        "completion_tokens": tally.completion_tokens,
        "refunded_micro": refunded_micro,
        ENDED_AT[OrderState(order.state)]: now,
    }
    await transition(connection, ORDER, order.id, from_state=order.state, event="exported", now=now, values=values)
    log.info("order ended", extra={"action": "export", "order_id": order.id, "refunded_micro": refunded_micro})


@dataclass(frozen=True)
class _Written:
    """A file of an order, stored but not yet anybody's."""

    file_id: str
    kind: str
    blob: StoredBlob


async def _write(services: Services, order: OrderRecord, kind: str, content: AsyncIterator[bytes]) -> _Written | None:
    """Store a file of the order; None when it would be empty."""
    file_id = f"file-{base64.urlsafe_b64encode(digest('reliquary/file-id/v1', order.id, kind)[:18]).decode()}"
    blob = await services.blobs.put_stream(blob_key_of(file_id), content)
    if blob.bytes:
        return _Written(file_id, kind, blob)
    await services.blobs.delete(blob_key_of(file_id))
    return None


def _file_record(order: OrderRecord, written: _Written, now: int) -> FileRecord:
    kept_seconds = order.output_expires_after_seconds
    return FileRecord(
        id=written.file_id,
        account_id=order.account_id,
        filename=f"batch_{order.id}_{written.kind}.jsonl",
        purpose=OUTPUT_PURPOSE,
        bytes=written.blob.bytes,
        sha256=written.blob.sha256,
        blob_key=blob_key_of(written.file_id),
        created_at=now,
        expires_at=None if kept_seconds is None else now + kept_seconds,
        deleted_at=None,
    )


async def _each(*groups: Iterable[bytes]) -> AsyncIterator[bytes]:
    for group in groups:
        for line in group:
            yield line


class _Decoder:
    """The tokenizer that an order was pinned to, read when it is first needed."""

    def __init__(self, services: Services, order: OrderRecord) -> None:
        self._services = services
        self._order = order
        self._tokenizer: TokenizerFiles | None = None

    async def texts(self, sequences: Sequence[list[int]]) -> list[str]:
        """The text of each token sequence."""
        if not sequences:
            return []
        if self._tokenizer is None:
            repo, revision = self._order.model_repo, self._order.model_revision
            self._tokenizer = await kept_tokenizer(self._services, repo, revision)
        return await self._services.renderer.decode(self._tokenizer, sequences)


async def _output_lines(services: Services, order: OrderRecord, tally: _Tally) -> AsyncIterator[bytes]:
    """The lines of the output file, a bounded number of them in memory; what they lack goes into the tally."""
    facts, sampling = _facts(order), Sampling.model_validate(order.sampling)
    at_once = max(1, min(MAX_LINES_AT_ONCE, MAX_TOKENS_AT_ONCE // (sampling.n * sampling.max_tokens)))
    decoder, after, prompt_index = _Decoder(services, order), 0, 0
    while True:
        async with services.database.snapshot() as connection:
            lines = await lines_of(connection, order.id, after, at_once)
            if not lines:
                return
            after = lines[-1].line_number
            accepted = await accepted_of_lines(connection, order.id, lines[0].line_number, after)
        for line in await _deliver(decoder, lines, accepted):
            tally.completion_tokens += sum(len(sample.token_ids) for sample in line.samples)
            yield output_line(facts, line)
        for record in lines:
            if record.refusal_code is not None:
                refusal = (record.refusal_code, record.refusal_message or "")
                tally.refused.append(refused_line(record.line_number, record.custom_id, *refusal))
                continue
            delivered = sum(len(task.samples) for task in accepted.get(record.line_number, ()))
            tally.accepted_samples += delivered
            if delivered == sampling.n:
                tally.completed_lines += 1
            else:
                tally.short.append(short_line(str(record.custom_id), prompt_index, delivered, sampling.n))
            prompt_index += 1


def _facts(order: OrderRecord) -> OrderFacts:
    model = ModelSpec.model_validate(order.model_spec)
    created_at = order.created_at if order.in_progress_at is None else order.in_progress_at
    return OrderFacts(order.id, order.endpoint, order.model_repo, frozenset(model.eos_token_ids), created_at)


async def _deliver(
    decoder: _Decoder,
    lines: Sequence[LineRecord],
    accepted: dict[int, list[AcceptedTask]],
) -> list[DeliveredLine]:
    """The lines that received samples, their texts decoded off the event loop."""
    found = [
        (
            line,
            [
                (task.first_sample + at, ids)
                for task in accepted[line.line_number]
                for at, ids in enumerate(task.samples)
            ],
        )
        for line in lines
        if line.line_number in accepted
    ]
    texts = iter(await decoder.texts([ids for _, samples in found for _, ids in samples]))
    return [
        DeliveredLine(
            line_number=line.line_number,
            custom_id=str(line.custom_id),
            prompt_tokens=int(line.prompt_tokens or 0),
            samples=[DeliveredSample(index, ids, next(texts)) for index, ids in samples],
        )
        for line, samples in found
    ]


@dataclass(frozen=True)
class SampleVerification:
    """What the audit showed of one accepted sample.

    Attributes:
        tokens: drawn.
        matching: of these, how many are exactly the validator's draw.
        largest_radius: the largest error on the raw logits that any other one needs to be the draw.
        attempts: claims on its task that were rejected before.
    """

    sample_index: int
    tokens: int
    matching: int
    largest_radius: float
    attempts: int


@dataclass(frozen=True)
class LineVerification:
    """The accepted samples of one line."""

    line_number: int
    custom_id: str | None
    samples: list[SampleVerification]


@dataclass(frozen=True)
class Verification:
    """How an order, or some lines of it, was verified.

    Attributes:
        has_more: whether there are lines after these.
        rejected: claims that were refused, by reason code.
    """

    lines: list[LineVerification]
    has_more: bool
    rejected: dict[str, int]


async def verification_of(services: Services, order_id: str, after_line: int, limit: int) -> Verification:
    """The evidence on an order's usable lines, as far as they are accepted now."""
    async with services.database.snapshot() as connection:
        lines = await lines_of(connection, order_id, after_line, limit + 1)
        shown = lines[:limit]
        last = shown[-1].line_number if shown else after_line
        accepted = await accepted_of_lines(connection, order_id, after_line + 1, last)
        rejected = await rejections_by_code(connection, order_id)
    found = await asyncio.to_thread(_line_verifications, shown, accepted)
    return Verification(found, len(lines) > limit, rejected)


def _line_verifications(
    lines: Sequence[LineRecord], accepted: Mapping[int, Sequence[AcceptedTask]]
) -> list[LineVerification]:
    return [
        LineVerification(
            line.line_number,
            line.custom_id,
            [sample for task in accepted.get(line.line_number, ()) for sample in _sample_verifications(task)],
        )
        for line in lines
        if line.refusal_code is None
    ]


def _sample_verifications(task: AcceptedTask) -> Iterator[SampleVerification]:
    for at, (token_ids, evidence) in enumerate(zip(task.samples, task.evidence, strict=True)):
        found = statistics(unpack_codes(evidence["radius_codes"], len(token_ids)))
        yield SampleVerification(
            sample_index=task.first_sample + at,
            tokens=found.tokens,
            matching=found.matches,
            largest_radius=found.largest_radius,
            attempts=task.attempts,
        )
