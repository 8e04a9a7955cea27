"""A pool of processes that render chat templates and tokenise; see gateway/render_worker.py for the other half."""

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gateway.errors import Unavailable
from gateway.render_process import Answer, CannotLoad, Job, ProcessDied, ProcessOverran, RenderProcess
from protocol.encoding import decode_token_ids, encode_token_ids

CHUNK_ITEMS = 64
CHUNK_BYTES = 1024 * 1024
GRACE_SECONDS = 10.0
"""How much longer than its time limit an item may take before its process is killed: tokenising comes after rendering,
and no alarm interrupts it."""
SLOW_ITEMS = 3
LOST_PROCESSES = 3
HASTE = 50


@dataclass(frozen=True)
class TokenizerFiles:
    """What a worker needs of a pinned model.

    Attributes:
        sha256: of everything else here: the name under which workers keep it.
        special_tokens: texts by name (bos_token …) that a template may use.
        vocab_size: true vocabulary; larger ids are refused.
    """

    sha256: str
    tokenizer_json: str
    chat_template: str | None
    special_tokens: Mapping[str, str]
    vocab_size: int


@dataclass(frozen=True)
class RenderRequest:
    """A chat line (messages) or a completions line (prompt as text or ids)."""

    messages: Sequence[Mapping[str, Any]] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | Sequence[int] | None = None


@dataclass(frozen=True)
class RenderedPrompt:
    """The token ids of a line's prompt."""

    token_ids: list[int]


@dataclass(frozen=True)
class RenderRefusal:
    """Why a line cannot be rendered."""

    code: str
    message: str


class _Patience:
    """What one call may still cost the pool, whatever its template does.

    After SLOW_ITEMS slow items each further one gets a fiftieth of the time, plenty for an honest one. From
    LOST_PROCESSES lost processes on, a chunk's items after the one that cost a process are not tried.
    """

    def __init__(self) -> None:
        self._slow_items = 0
        self._lost_processes = 0

    def item_seconds(self, seconds: float) -> float:
        """The time limit of the next items."""
        return seconds if self._slow_items < SLOW_ITEMS else seconds / HASTE

    def count(self, answers: Sequence[Answer]) -> None:
        """Take note of answers."""
        self._slow_items += sum("slow" in answer for answer in answers)

    def lose(self, message: str, items_left: int) -> list[Answer]:
        """The answers to the item that cost a process, and to those after it where they are given up."""
        self._slow_items += 1
        self._lost_processes += 1
        answers = [_template_error(message)]
        if self._lost_processes >= LOST_PROCESSES:
            answers += [_template_error("not tried: other lines of the file took too long")] * (items_left - 1)
        return answers


def _template_error(message: str) -> Answer:
    return {"code": "template_error", "message": message}


class RenderPool:
    """Renders and decodes in processes, off the event loop; processes start when they are first needed."""

    def __init__(self, workers: int, line_seconds: float, grace_seconds: float = GRACE_SECONDS) -> None:
        """Make the pool.

        Args:
            workers: processes.
            line_seconds: longest time one line's template may take.
            grace_seconds: how much longer than that a process may be silent before it is killed.
        """
        self._line_seconds = line_seconds
        self._grace_seconds = grace_seconds
        self._processes = [RenderProcess() for _ in range(workers)]
        self._idle: asyncio.Queue[RenderProcess] = asyncio.Queue()
        for process in self._processes:
            self._idle.put_nowait(process)

    async def close(self) -> None:
        """End the processes; a call that still goes on fails."""
        for process in self._processes:
            await process.close()

    async def render(
        self, tokenizer: TokenizerFiles, requests: Sequence[RenderRequest]
    ) -> list[RenderedPrompt | RenderRefusal]:
        """The outcome of each request, in order.

        Raises:
            Unprocessable: model_unsupported when the tokenizer cannot be used at all.
            Unavailable: batch_unavailable when no process could load it.
        """
        items = await asyncio.to_thread(_items, requests)  # a call's lines may be many megabytes
        return [_outcome(answer) for answer in await self._answers("render", tokenizer, items)]

    async def decode(self, tokenizer: TokenizerFiles, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence: one decode of the whole, special tokens left out.

        Raises:
            Unprocessable, Unavailable: as render.
        """
        items = [b'"' + base64.b64encode(encode_token_ids(ids)) + b'"' for ids in sequences]
        answers = await self._answers("decode", tokenizer, items)
        failed = next((answer["message"] for answer in answers if "text" not in answer), None)
        if failed is not None:
            raise Unavailable("batch_unavailable", f"token ids could not be decoded: {failed}")
        return [answer["text"] for answer in answers]

    async def _answers(self, action: str, tokenizer: TokenizerFiles, items: Sequence[bytes]) -> list[Answer]:
        """The answers to all items, in order, from as many processes as are idle."""
        patience = _Patience()
        chunks = [asyncio.create_task(self._chunk(action, tokenizer, chunk, patience)) for chunk in _chunks(items)]
        try:
            parts = await asyncio.gather(*chunks)
        except BaseException:  # also a cancelled call: its chunks must not go on holding processes
            for task in chunks:
                task.cancel()
            await asyncio.gather(*chunks, return_exceptions=True)
            raise
        return [answer for part in parts for answer in part]

    async def _chunk(
        self, action: str, tokenizer: TokenizerFiles, items: Sequence[bytes], patience: _Patience
    ) -> list[Answer]:
        """The answers to a chunk's items, whatever some of them do to the processes."""
        answers: list[Answer] = []
        suspect = -1
        while (start := len(answers)) < len(items):
            item_seconds = patience.item_seconds(self._line_seconds)
            times = item_seconds, self._line_seconds, self._grace_seconds
            job = Job(action, tokenizer.sha256, asdict(tokenizer), *times)
            try:
                await self._work(job, items[start:], answers)
            except ProcessOverran:
                answers += patience.lose("the line could not be stopped in time", len(items) - len(answers))
            except ProcessDied:
                if suspect == len(answers):
                    answers += patience.lose("the line ended the process that did it", len(items) - len(answers))
                else:  # the process may have been killed for no fault of the item: once more
                    suspect = len(answers)
            patience.count(answers[start:])
        return answers

    async def _work(self, job: Job, items: Sequence[bytes], answers: list[Answer]) -> None:
        """Have an idle process do as many of the items as it will; one that cannot load is followed by another."""
        for _ in range(2):
            process = await self._idle.get()
            try:
                return await process.work(job, items, answers)
            except CannotLoad:
                continue
            finally:
                self._idle.put_nowait(process)
        raise Unavailable("batch_unavailable", "the model's tokenizer could not be loaded; retry shortly")


def _items(requests: Sequence[RenderRequest]) -> list[bytes]:
    """Requests as the JSON that a process reads."""
    return [
        json.dumps(
            {
                "messages": request.messages,
                "tools": request.tools,
                "template_kwargs": dict(request.template_kwargs),
                "prompt": request.prompt,
            }
        ).encode()
        for request in requests
    ]


def _chunks(items: Sequence[bytes]) -> list[list[bytes]]:
    """Items in order, in parts of at most CHUNK_ITEMS and (but for a single item) CHUNK_BYTES."""
    chunks: list[list[bytes]] = []
    size = 0
    for item in items:
        if not chunks or len(chunks[-1]) == CHUNK_ITEMS or size + len(item) > CHUNK_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(item)
        size += len(item)
    return chunks


def _outcome(answer: Answer) -> RenderedPrompt | RenderRefusal:
    if "code" in answer:
        return RenderRefusal(answer["code"], answer["message"])
    return RenderedPrompt(decode_token_ids(base64.b64decode(answer["ids"])))
