"""One rendering process as the gateway holds it: started when needed, killed when it must be.

The other half, and what the two say to each other, is gateway/render_worker.py.
"""

import asyncio
import contextlib
import json
import logging
import struct
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import Unprocessable
from gateway.render_worker import KEPT_TOKENIZERS

log = logging.getLogger("reliquary.gateway")

START_SECONDS = 30.0
"""For starting a process and loading a tokenizer."""

COMMAND = ("/usr/bin/env", "TOKENIZERS_PARALLELISM=false", sys.executable, "-m", "gateway.render_worker")
"""The pool is parallel already; a thread for every core in each process would reach its memory limit."""

Answer = dict[str, Any]


class ProcessDied(Exception):
    """The process ended before it answered, perhaps for a reason that is not the item's."""


class ProcessOverran(Exception):
    """The process did not answer in time and was killed."""


class CannotLoad(Exception):
    """The process died or overran over the tokenizer, before the first item."""


@dataclass(frozen=True)
class Job:
    """What is asked of a process: an action on items of one tokenizer.

    Attributes:
        action: parse, read or decode.
        tokenizer: the name under which the process keeps it; None for parsing, which needs none.
        files: what it is loaded from.
        model: the repository that a line may name.
        item_seconds: time limit of one item, kept by the process.
        chunk_seconds: after this the process starts no further item.
        grace_seconds: added to item_seconds before the process is killed.
    """

    action: str
    tokenizer: str | None
    files: Mapping[str, Any]
    model: str | None
    item_seconds: float
    chunk_seconds: float
    grace_seconds: float

    def request(self, items: Sequence[bytes]) -> bytes:
        """The frame that asks for items, each of them JSON already."""
        head = {
            "action": self.action,
            "tokenizer": self.tokenizer,
            "model": self.model,
            "seconds": self.item_seconds,
            "chunk_seconds": self.chunk_seconds,
        }
        return json.dumps(head)[:-1].encode() + b', "items": [' + b",".join(items) + b"]}"


class RenderProcess:
    """A process and the tokenizers it has loaded; one that fails is replaced at the next call."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self._is_closed = False

    async def work(self, job: Job, items: Sequence[bytes], answers: list[Answer]) -> None:
        """Append the answers to items, in order and as they come; perhaps not to all, but to one at least.

        Raises:
            ProcessDied, ProcessOverran: while the first unanswered item was being done.
            CannotLoad: before the first.
            Unprocessable: model_unsupported.
        """
        try:
            refused = await self._prepare(job)
            if refused is None:
                await self._exchange(job, items, answers)
        except (CannotLoad, TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            code = await self.stop()
            log.warning(
                "a rendering process was lost",
                extra={"action": "render", "error": type(error).__name__, "exit_code": code},
            )
            if isinstance(error, CannotLoad):
                raise
            raise (ProcessOverran if isinstance(error, TimeoutError) else ProcessDied) from error
        except BaseException:  # a cancelled call leaves answers in the pipe: this process cannot go on
            await self.stop()
            raise
        if refused is not None:
            raise Unprocessable(refused["code"], refused["message"], param="model")

    async def _prepare(self, job: Job) -> Answer | None:
        """Start the process and load the tokenizer, where that is still to be done; why it cannot be loaded."""
        if self._process is not None and self._process.returncode is not None:
            await self.stop()  # it was killed while nobody asked anything of it
        if self._process is None:
            if self._is_closed:
                raise RuntimeError("the pool is closed")
            self._process = await asyncio.create_subprocess_exec(*COMMAND, stdin=PIPE, stdout=PIPE)
        name = job.tokenizer
        if name is None:
            return None
        if name not in self._loaded:
            frame = {"action": "load", "tokenizer": name, "seconds": job.item_seconds, "files": dict(job.files)}
            try:
                async with asyncio.timeout(START_SECONDS + job.item_seconds):
                    await self._send(json.dumps(frame).encode())
                    refused: Answer | None = await self._receive()
            except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
                raise CannotLoad from error
            if refused is not None:
                return refused
            self._remember(name)
        self._loaded.move_to_end(name)
        return None

    def _remember(self, name: str) -> None:
        self._loaded[name] = None
        if len(self._loaded) > KEPT_TOKENIZERS:
            self._loaded.popitem(last=False)

    async def _exchange(self, job: Job, items: Sequence[bytes], answers: list[Answer]) -> None:
        seconds = job.item_seconds + job.grace_seconds
        async with asyncio.timeout(seconds):
            await self._send(job.request(items))
        while True:
            async with asyncio.timeout(seconds):
                answer = await self._receive()
            if answer is None:
                return
            answers.append(answer)

    async def _send(self, body: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            raise ConnectionError("the process is gone")
        self._process.stdin.write(struct.pack("<I", len(body)) + body)
        await self._process.stdin.drain()

    async def _receive(self) -> Answer | None:
        if self._process is None or self._process.stdout is None:
            raise ConnectionError("the process is gone")
        (length,) = struct.unpack("<I", await self._process.stdout.readexactly(4))
        answer: Answer | None = json.loads(await self._process.stdout.readexactly(length))
        return answer

    async def stop(self) -> int | None:
        """Kill the process, if there is one; its exit code."""
        process, self._process = self._process, None
        self._loaded.clear()
        if process is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return await process.wait()

    async def close(self) -> None:
        """Kill the process, and start no other."""
        self._is_closed = True
        await self.stop()
