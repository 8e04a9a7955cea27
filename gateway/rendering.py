"""A pool of processes that parse lines, render templates and tokenise; the other half is gateway/render_worker.py."""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from gateway.core.jsonl import LineRefusal, RawLine
from gateway.errors import Unavailable
from gateway.render_process import Answer, CannotLoad, Job, ProcessDied, ProcessOverran, RenderProcess
from protocol.encoding import BYTES_PER_TOKEN_ID, encode_token_ids
from protocol.sampling import Sampling

CHUNK_ITEMS = 64
CHUNK_BYTES = 1024 * 1024
GRACE_SECONDS = 10.0
"""How much longer than its time limit an item may take before its process is killed: tokenising comes after rendering,
and no alarm interrupts it."""
SLOW_ITEMS = 3
LOST_PROCESSES = 3
HASTE = 50
FILE_SECONDS = 600.0
NAMING_SECONDS = 60.0
NOT_TRIED = "not tried: other lines of the file took too long"


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
class ReadLine:
    """A line that can be used.

    Attributes:
        model: the repository that the line names, if it names one.
        packed_ids: the prompt, as encode_token_ids writes it; empty for a line that was only parsed.
    """

    line_number: int
    custom_id: str
    url: str
    model: str | None
    sampling: Sampling
    packed_ids: bytes

    @property
    def prompt_tokens(self) -> int:
        """How many token ids the prompt has."""
        return len(self.packed_ids) // BYTES_PER_TOKEN_ID


class Patience:
    """What the lines of one file may still cost the pool, whatever they and their template do.

    After SLOW_ITEMS slow items each further one gets a fiftieth of the time, plenty for an honest one. From
    LOST_PROCESSES lost processes on, a chunk's items after the one that cost a process are not tried. When the file's
    CPU time is used up, nothing more is.
    """

    def __init__(self, cpu_seconds: float) -> None:
        """Begin a file that may take so much CPU time in all."""
        self._cpu_seconds = cpu_seconds
        self._slow_items = 0
        self._lost_processes = 0

    @property
    def is_spent(self) -> bool:
        """Whether the file has had its time."""
        return self._cpu_seconds <= 0

    def item_seconds(self, seconds: float) -> float:
        """The time limit of the next items."""
        return seconds if self._slow_items < SLOW_ITEMS else seconds / HASTE

    def count(self, answers: Sequence[Answer]) -> None:
        """Take note of answers."""
        self._slow_items += sum("slow" in answer for answer in answers)
        self._cpu_seconds -= sum(answer.get("cpu_seconds", 0.0) for answer in answers)

    def lose(self, message: str, seconds: float, items_left: int) -> list[Answer]:
        """The answers to the item that cost a process, and to those after it where they are given up."""
        self._slow_items += 1
        self._lost_processes += 1
        self._cpu_seconds -= seconds
        answers = [_template_error(message)]
        if self._lost_processes >= LOST_PROCESSES:
            answers += [_template_error(NOT_TRIED)] * (items_left - 1)
        return answers


@dataclass(frozen=True)
class _Errand:
    """What one call asks of the processes: an action, with the tokenizer and the model that it needs."""

    action: str
    tokenizer: TokenizerFiles | None
    model: str | None

    def job(self, item_seconds: float, chunk_seconds: float, grace_seconds: float) -> Job:
        """The errand with its times."""
        if self.tokenizer is None:
            return Job(self.action, None, {}, self.model, item_seconds, chunk_seconds, grace_seconds)
        name, files = self.tokenizer.sha256, asdict(self.tokenizer)
        return Job(self.action, name, files, self.model, item_seconds, chunk_seconds, grace_seconds)


_PARSE = _Errand("parse", None, None)


def _template_error(message: str) -> Answer:
    return {"code": "template_error", "message": message}


class RenderPool:
    """Reads lines and decodes in processes, off the event loop; processes start when they are first needed."""

    def __init__(
        self,
        workers: int,
        line_seconds: float,
        file_seconds: float = FILE_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        """Make the pool.

        Args:
            workers: processes.
            line_seconds: longest time one line's template may take.
            file_seconds: most CPU time that the lines of one file may take together.
            grace_seconds: how much longer than line_seconds a process may be silent before it is killed.
        """
        self._line_seconds = line_seconds
        self._file_seconds = file_seconds
        self._grace_seconds = grace_seconds
        self._processes = [RenderProcess() for _ in range(workers)]
        self._idle: asyncio.Queue[RenderProcess] = asyncio.Queue()
        for process in self._processes:
            self._idle.put_nowait(process)

    async def close(self) -> None:
        """End the processes; a call that still goes on fails."""
        for process in self._processes:
            await process.close()

    def patience(self) -> Patience:
        """For the lines of one file."""
        return Patience(self._file_seconds)

    async def parse(self, lines: Sequence[RawLine], patience: Patience) -> list[ReadLine | LineRefusal]:
        """The outcome of each line as far as it can be told without the model, in order.

        Raises:
            Unavailable: batch_unavailable when no process could be started.
        """
        items = await asyncio.to_thread(_items, lines)
        answers = await self._answers(_PARSE, items, patience)
        return [_outcome(line, answer) for line, answer in zip(lines, answers, strict=True)]

    async def read(
        self, lines: Sequence[RawLine], repo: str, tokenizer: TokenizerFiles, patience: Patience
    ) -> list[ReadLine | LineRefusal]:
        """The outcome of each line with its prompt, in order; a line that names another model than repo is refused.

        Raises:
            Unprocessable: model_unsupported when the tokenizer cannot be used at all.
            Unavailable: batch_unavailable when no process could load it.
        """
        items = await asyncio.to_thread(_items, lines)  # a call's lines may be many megabytes
        answers = await self._answers(_Errand("read", tokenizer, repo), items, patience)
        await self._name(items, answers)
        return [_outcome(line, answer) for line, answer in zip(lines, answers, strict=True)]

    async def _name(self, items: Sequence[bytes], answers: list[Answer]) -> None:
        """Give the lines that cost a process, or were not tried for it, the custom_id that parsing alone finds."""
        unnamed = [at for at, answer in enumerate(answers) if "custom_id" not in answer]
        found = await self._answers(_PARSE, [items[at] for at in unnamed], Patience(NAMING_SECONDS))
        for at, answer in zip(unnamed, found, strict=True):
            answers[at] = {**answers[at], "custom_id": answer.get("custom_id")}

    async def decode(self, tokenizer: TokenizerFiles, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence: one decode of the whole, special tokens left out.

        Raises:
            Unprocessable, Unavailable: as read.
        """
        items = [b'"' + base64.b64encode(encode_token_ids(ids)) + b'"' for ids in sequences]
        answers = await self._answers(_Errand("decode", tokenizer, None), items, self.patience())
        failed = next((answer["message"] for answer in answers if "text" not in answer), None)
        if failed is not None:
            raise Unavailable("batch_unavailable", f"token ids could not be decoded: {failed}")
        return [answer["text"] for answer in answers]

    async def _answers(self, errand: _Errand, items: Sequence[bytes], patience: Patience) -> list[Answer]:
        """The answers to all items, in order, from as many processes as are idle."""
        chunks = [asyncio.create_task(self._chunk(errand, chunk, patience)) for chunk in _chunks(items)]
        try:
            parts = await asyncio.gather(*chunks)
        except BaseException:  # also a cancelled call: its chunks must not go on holding processes
            for task in chunks:
                task.cancel()
            await asyncio.gather(*chunks, return_exceptions=True)
            raise
        return [answer for part in parts for answer in part]

    async def _chunk(self, errand: _Errand, items: Sequence[bytes], patience: Patience) -> list[Answer]:
        """The answers to a chunk's items, whatever some of them do to the processes."""
        answers: list[Answer] = []
        suspect = -1
        while (start := len(answers)) < len(items):
            if patience.is_spent:
                answers += [_template_error(NOT_TRIED)] * (len(items) - start)
                break
            job = errand.job(patience.item_seconds(self._line_seconds), self._line_seconds, self._grace_seconds)
            lost_seconds = job.item_seconds + job.grace_seconds
            try:
                await self._work(job, items[start:], answers)
            except ProcessOverran:
                message = "the line could not be stopped in time"
                answers += patience.lose(message, lost_seconds, len(items) - len(answers))
            except ProcessDied:
                if suspect == len(answers):
                    message = "the line ended the process that did it"
                    answers += patience.lose(message, lost_seconds, len(items) - len(answers))
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


def _items(lines: Sequence[RawLine]) -> list[bytes]:
    """Lines as the JSON that a process reads."""
    return [
        b'{"number": %d, "data": %s}'
        % (line.number, b"null" if line.data is None else b'"' + base64.b64encode(line.data) + b'"')
        for line in lines
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


def _outcome(line: RawLine, answer: Answer) -> ReadLine | LineRefusal:
    if "code" in answer:
        return LineRefusal(line.number, answer.get("custom_id"), answer["code"], answer["message"])
    return ReadLine(
        line_number=line.number,
        custom_id=answer["custom_id"],
        url=answer["url"],
        model=answer["model"],
        sampling=_sampling(*answer["sampling"].items()),
        packed_ids=base64.b64decode(answer.get("ids", "")),
    )


@lru_cache(maxsize=64)  # the lines of a file have one sampling
def _sampling(*values: tuple[str, Any]) -> Sampling:
    return Sampling.model_validate(dict(values))
