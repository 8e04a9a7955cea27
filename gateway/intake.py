"""From an uploaded file to a priced plan: read, parse, pin, render, check, price. Nothing is written here."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.core.jsonl import MAX_LINES, DuplicateCheck, LineRefusal, LineSplitter, RawLine
from gateway.core.pricing import Quote
from gateway.db.orders import LineRecord
from gateway.errors import InvalidRequest, Unprocessable
from gateway.files import BATCH_PURPOSE, file_not_found, get_file
from gateway.models import PinnedModel, pin_model
from gateway.quotes import Demand, Terms, make_quote
from gateway.rendering import ReadLine, TokenizerFiles
from gateway.services import Services
from protocol.models import ModelSpec
from protocol.sampling import Sampling

MAX_PROMPT_TOKENS_PER_FILE = 30_000_000
LINES_AT_ONCE = 256


@dataclass(frozen=True)
class IdempotencyKey:
    """A customer's key with the digest of the body that came with it."""

    key: str
    body_sha256: str


@dataclass(frozen=True)
class BatchRequest:
    """What a customer orders; every field is in range, nothing was looked up yet.

    Attributes:
        metadata: exactly as it was sent.
        model: repository, None to take the first line's.
        revision: commit, None to take what main names.
        max_price_micro: refuse a higher price; None for no ceiling.
    """

    input_file_id: str
    endpoint: str
    window_hours: int
    metadata: Mapping[str, str] | None = None
    model: str | None = None
    revision: str | None = None
    max_price_micro: int | None = None
    output_expires_after_seconds: int | None = None
    idempotency: IdempotencyKey | None = None


@dataclass(frozen=True)
class PreparedBatch:
    """A file that can be ordered.

    Attributes:
        tokenizer: what the prompts were made with, and completions will be read with.
        lines: every non-blank line of the file, by line number.
        prompts: encode_token_ids of the usable lines' prompts, one after another.
        prompt_tokens: how many there are.
    """

    request: BatchRequest
    model: ModelSpec
    tokenizer: TokenizerFiles
    sampling: Sampling
    lines: Sequence[LineRecord]
    prompts: bytes
    prompt_tokens: int
    quote: Quote


@dataclass
class _Plan:
    """What is known of the file so far."""

    lines: list[LineRecord] = field(default_factory=list)
    prompts: bytearray = field(default_factory=bytearray)
    prompt_tokens: int = 0
    longest_prompt_tokens: int = 0
    kinds: set[tuple[str, Sampling]] = field(default_factory=set)

    def refuse(self, refusal: LineRefusal) -> None:
        """Note a line that will not run; PostgreSQL's text cannot hold a NUL character."""
        custom_id = None if refusal.custom_id is None or "\0" in refusal.custom_id else refusal.custom_id
        message = refusal.message.replace("\0", "\\0")
        self.lines.append(LineRecord(refusal.line_number, custom_id, None, None, refusal.code, message))

    def accept(self, line: ReadLine) -> None:
        """Note a line that will run."""
        tokens = line.prompt_tokens
        self.lines.append(LineRecord(line.line_number, line.custom_id, self.prompt_tokens, tokens, None, None))
        self.prompts += line.packed_ids
        self.prompt_tokens += tokens
        self.longest_prompt_tokens = max(self.longest_prompt_tokens, tokens)
        self.kinds.add((line.url, line.sampling))


async def prepare_batch(services: Services, account_id: str, request: BatchRequest, now: int) -> PreparedBatch:
    """Everything about an order that can be found out before it is placed.

    Raises:
        NotFound: file_not_found.
        InvalidRequest: invalid_file, invalid_model, invalid_revision, endpoint_mismatch.
        Unprocessable: invalid_batch_file, mixed_sampling, or the model's refusal; and all that make_quote raises.
        Unavailable: the model hub does not answer.
    """
    record = await get_file(services, account_id, request.input_file_id, now, param="input_file_id")
    if record.purpose != BATCH_PURPOSE:
        message = f"the file's purpose is {record.purpose}, not {BATCH_PURPOSE}"
        raise InvalidRequest("invalid_file", message, param="input_file_id")
    intake = _Intake(services, request)
    try:
        async for lines in _lines(services.blobs.stream(record.blob_key)):
            await intake.take(lines)
    except FileNotFoundError as error:  # deleted since the row was read
        raise file_not_found(record.id, "input_file_id") from error
    return intake.result()


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[Sequence[RawLine]]:
    """A file's lines, some at a time."""
    splitter = LineSplitter()
    async for chunk in chunks:
        lines = await asyncio.to_thread(lambda data: list(splitter.feed(data)), chunk)
        for start in range(0, len(lines), LINES_AT_ONCE):
            yield lines[start : start + LINES_AT_ONCE]
    yield list(splitter.finish())


class _Intake:
    """Takes the lines of one file, part by part, and knows at the end what it costs.

    Everything that grows with a line's length happens in the rendering processes.
    """

    def __init__(self, services: Services, request: BatchRequest) -> None:
        self._services = services
        self._request = request
        self._plan = _Plan()
        self._duplicates = DuplicateCheck()
        self._patience = services.renderer.patience()
        self._pinned: PinnedModel | None = None

    async def take(self, lines: Sequence[RawLine]) -> None:
        """Read some lines; the first usable one names the model."""
        if len(self._plan.lines) + len(lines) > MAX_LINES:
            raise invalid_batch_file("too_many_lines", f"a file has at most {MAX_LINES} lines")
        for outcome in await self._read(lines):
            checked = self._duplicates.check(_storable(outcome))
            if isinstance(checked, ReadLine):
                self._plan.accept(checked)
            else:
                self._plan.refuse(checked)
        _check_limits(self._plan)

    async def _read(self, lines: Sequence[RawLine]) -> Sequence[ReadLine | LineRefusal]:
        renderer = self._services.renderer
        if self._pinned is None:
            parsed = await renderer.parse(lines, self._patience)
            first = next((outcome for outcome in parsed if isinstance(outcome, ReadLine)), None)
            if first is None:
                return parsed
            self._pinned = await self._pin(first)
        return await renderer.read(lines, self._pinned.spec.repo, self._pinned.tokenizer, self._patience)

    async def _pin(self, line: ReadLine) -> PinnedModel:
        repo = self._request.model or line.model
        if repo is None:
            message = "name the model in the first line's body.model or in metadata.model"
            raise InvalidRequest("invalid_model", message, param="model")
        return await pin_model(self._services.hub, repo, self._request.revision)

    def result(self) -> PreparedBatch:
        """The priced plan, once every line was taken."""
        plan, request = self._plan, self._request
        if not plan.kinds or self._pinned is None:
            raise invalid_batch_file("no_usable_line", _why_unusable(plan.lines))
        sampling = _only_sampling(plan, request.endpoint)
        usable = sum(line.refusal_code is None for line in plan.lines)
        demand = Demand(sampling, plan.longest_prompt_tokens, plan.prompt_tokens, usable)
        terms = Terms(request.window_hours, request.max_price_micro)
        return PreparedBatch(
            request=request,
            model=self._pinned.spec,
            tokenizer=self._pinned.tokenizer,
            sampling=sampling,
            lines=plan.lines,
            prompts=bytes(plan.prompts),
            prompt_tokens=plan.prompt_tokens,
            quote=make_quote(self._services, self._pinned, demand, terms),
        )


def _storable(outcome: ReadLine | LineRefusal) -> ReadLine | LineRefusal:
    if isinstance(outcome, ReadLine) and "\0" in outcome.custom_id:
        return LineRefusal(outcome.line_number, None, "invalid_text", "custom_id holds a NUL character")
    return outcome


def invalid_batch_file(reason: str, message: str) -> Unprocessable:
    """The refusal of a whole file; the reason stands first in the message."""
    return Unprocessable("invalid_batch_file", f"{reason}: {message}", param="input_file_id")


def _why_unusable(lines: Sequence[LineRecord]) -> str:
    if not lines:
        return "the file has no lines"
    first = lines[0]
    return f"no line can be used; line {first.line_number}: {first.refusal_code}: {first.refusal_message}"


def _check_limits(plan: _Plan) -> None:
    if plan.prompt_tokens > MAX_PROMPT_TOKENS_PER_FILE:
        message = f"a file has at most {MAX_PROMPT_TOKENS_PER_FILE} prompt tokens"
        raise invalid_batch_file("too_many_tokens", message)
    if len({sampling for _, sampling in plan.kinds}) > 1 or len({url for url, _ in plan.kinds}) > 1:
        message = "the file's usable lines differ in url or sampling; use one file per sampling"
        raise Unprocessable("mixed_sampling", message, param="input_file_id")


def _only_sampling(plan: _Plan, endpoint: str) -> Sampling:
    ((url, sampling),) = plan.kinds
    if url != endpoint:
        raise InvalidRequest("endpoint_mismatch", f"the url of the file's lines is {url}", param="endpoint")
    return sampling
