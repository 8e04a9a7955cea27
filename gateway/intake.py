"""From an uploaded file to a priced plan: read, parse, pin, render, check, price. Nothing is written here."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.core.jsonl import MAX_LINES, DuplicateCheck, LineRefusal, LineSplitter, ParsedLine, RawLine, parse_line
from gateway.core.pricing import PricingUnavailable, Quote, quote
from gateway.db.orders import LineRecord
from gateway.errors import Conflict, InvalidRequest, PaymentRequired, Unprocessable
from gateway.files import BATCH_PURPOSE, file_not_found, get_file
from gateway.models import PinnedModel, pin_model
from gateway.rendering import RenderedPrompt, RenderRequest
from gateway.services import Services
from protocol.encoding import encode_token_ids
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
        lines: every non-blank line of the file, by line number.
        prompts: encode_token_ids of the usable lines' prompts, one after another.
        prompt_tokens: how many there are.
    """

    request: BatchRequest
    model: ModelSpec
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

    def accept(self, line: ParsedLine, token_ids: Sequence[int]) -> None:
        """Note a line that will run."""
        self.lines.append(LineRecord(line.line_number, line.custom_id, self.prompt_tokens, len(token_ids), None, None))
        self.prompts += encode_token_ids(token_ids)
        self.prompt_tokens += len(token_ids)
        self.longest_prompt_tokens = max(self.longest_prompt_tokens, len(token_ids))
        self.kinds.add((line.url, line.body.sampling))


async def prepare_batch(services: Services, account_id: str, request: BatchRequest, now: int) -> PreparedBatch:
    """Everything about an order that can be found out before it is placed.

    Raises:
        NotFound: file_not_found.
        InvalidRequest: invalid_file, invalid_model, invalid_revision, endpoint_mismatch.
        Unprocessable: invalid_batch_file, mixed_sampling, context_too_long, or the model's refusal.
        Conflict: pricing_unavailable.
        PaymentRequired: price_above_max.
        Unavailable: the model hub does not answer.
    """
    record = await get_file(services, account_id, request.input_file_id, now, param="input_file_id")
    if record.purpose != BATCH_PURPOSE:
        message = f"the file's purpose is {record.purpose}, not {BATCH_PURPOSE}"
        raise InvalidRequest("invalid_file", message, param="input_file_id")
    intake = _Intake(services, request)
    try:
        async for outcomes in _parsed(services.blobs.stream(record.blob_key)):
            await intake.take(outcomes)
    except FileNotFoundError as error:  # deleted since the row was read
        raise file_not_found(record.id, "input_file_id") from error
    return intake.result()


async def _parsed(chunks: AsyncIterator[bytes]) -> AsyncIterator[Sequence[ParsedLine | LineRefusal]]:
    """The outcomes of a file's lines, some at a time, parsed off the event loop."""
    splitter, duplicates = LineSplitter(), DuplicateCheck()
    async for chunk in chunks:
        outcomes = await asyncio.to_thread(_parse, splitter.feed(chunk), duplicates)
        for start in range(0, len(outcomes), LINES_AT_ONCE):
            yield outcomes[start : start + LINES_AT_ONCE]
    yield await asyncio.to_thread(_parse, splitter.finish(), duplicates)


def _parse(lines: Iterable[RawLine], duplicates: DuplicateCheck) -> list[ParsedLine | LineRefusal]:
    return [duplicates.check(_storable(parse_line(line))) for line in lines]


def _storable(outcome: ParsedLine | LineRefusal) -> ParsedLine | LineRefusal:
    if isinstance(outcome, ParsedLine) and "\0" in outcome.custom_id:
        return LineRefusal(outcome.line_number, None, "invalid_text", "custom_id holds a NUL character")
    return outcome


class _Intake:
    """Takes the lines of one file, part by part, and knows at the end what it costs."""

    def __init__(self, services: Services, request: BatchRequest) -> None:
        self._services = services
        self._request = request
        self._plan = _Plan()
        self._pinned: PinnedModel | None = None

    async def take(self, outcomes: Sequence[ParsedLine | LineRefusal]) -> None:
        """Render the usable ones among some lines; the first usable line names the model."""
        if len(self._plan.lines) + len(outcomes) > MAX_LINES:
            raise invalid_batch_file("too_many_lines", f"a file has at most {MAX_LINES} lines")
        usable: list[ParsedLine] = []
        for outcome in outcomes:
            if isinstance(outcome, LineRefusal):
                self._plan.refuse(outcome)
                continue
            model = (await self._pin(outcome)).spec.repo
            if outcome.body.model not in (None, model):
                message = f"the batch's model is {model}"
                self._plan.refuse(LineRefusal(outcome.line_number, outcome.custom_id, "model_mismatch", message))
            else:
                usable.append(outcome)
        await self._render(usable)
        self._plan.lines.sort(key=_line_number)
        _check_limits(self._plan)

    async def _pin(self, line: ParsedLine) -> PinnedModel:
        if self._pinned is None:
            repo = self._request.model or line.body.model
            if repo is None:
                message = "name the model in the first line's body.model or in metadata.model"
                raise InvalidRequest("invalid_model", message, param="model")
            self._pinned = await pin_model(self._services.hub, repo, self._request.revision)
        return self._pinned

    async def _render(self, lines: Sequence[ParsedLine]) -> None:
        if not lines or self._pinned is None:
            return
        requests = [
            RenderRequest(line.body.messages, line.body.tools, line.body.template_kwargs, line.body.prompt)
            for line in lines
        ]
        rendered = await self._services.renderer.render(self._pinned.tokenizer, requests)
        for line, outcome in zip(lines, rendered, strict=True):
            if isinstance(outcome, RenderedPrompt):
                self._plan.accept(line, outcome.token_ids)
            else:
                self._plan.refuse(LineRefusal(line.line_number, line.custom_id, outcome.code, outcome.message))

    def result(self) -> PreparedBatch:
        """The priced plan, once every line was taken."""
        plan, request = self._plan, self._request
        if not plan.kinds or self._pinned is None:
            raise invalid_batch_file("no_usable_line", _why_unusable(plan.lines))
        model, sampling = self._pinned.spec, _only_sampling(plan, request.endpoint)
        _check_context(plan, model, sampling)
        usable = sum(line.refusal_code is None for line in plan.lines)
        return PreparedBatch(
            request=request,
            model=model,
            sampling=sampling,
            lines=plan.lines,
            prompts=bytes(plan.prompts),
            prompt_tokens=plan.prompt_tokens,
            quote=self._price(model, usable * sampling.n * sampling.max_tokens),
        )

    def _price(self, model: ModelSpec, max_completion_tokens: int) -> Quote:
        try:
            found = quote(self._services.rates, model.parameter_count, self._plan.prompt_tokens, max_completion_tokens)
        except PricingUnavailable as error:
            raise Conflict("pricing_unavailable", str(error), param="model") from error
        ceiling = self._request.max_price_micro
        if ceiling is not None and found.price_micro > ceiling:
            message = f"the price is {usd(found.price_micro)} USD, above metadata.max_price_usd ({usd(ceiling)})"
            raise PaymentRequired("price_above_max", message, param="metadata.max_price_usd")
        return found


def invalid_batch_file(reason: str, message: str) -> Unprocessable:
    """The refusal of a whole file; the reason stands first in the message."""
    return Unprocessable("invalid_batch_file", f"{reason}: {message}", param="input_file_id")


def usd(amount_micro: int) -> str:
    """Micro-USD as USD in decimal, exactly."""
    whole, fraction = divmod(amount_micro, 1_000_000)
    return f"{whole}.{fraction:06d}".rstrip("0").rstrip(".")


def _line_number(line: LineRecord) -> int:
    return line.line_number


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


def _check_context(plan: _Plan, model: ModelSpec, sampling: Sampling) -> None:
    needed = plan.longest_prompt_tokens + sampling.max_tokens
    if needed > model.context_length:
        message = f"the longest prompt and max_tokens are {needed} tokens, the model's context {model.context_length}"
        raise Unprocessable("context_too_long", message, param="input_file_id")
