"""A pool of processes that render chat templates and tokenise; see gateway/render_worker.py for the other half."""

import asyncio
import base64
import contextlib
import json
import struct
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.render_worker import KEPT_TOKENIZERS
from protocol.encoding import decode_token_ids, encode_token_ids

CHUNK = 64
START_SECONDS = 30.0


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


class _WorkerDied(Exception):
    """The process ended before it answered, perhaps for a reason that is not the line's."""


class _WorkerOverran(Exception):
    """The process did not answer in time and was killed."""


class _Patience:
    """How many overruns one call may still cost: a template that hangs on every line must not hold the pool."""

    def __init__(self) -> None:
        self.overruns_left = 3


class _Worker:
    """One process and the tokenizers it has loaded."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._loaded: OrderedDict[str, None] = OrderedDict()

    async def ask(self, tokenizer: TokenizerFiles, frame: Mapping[str, Any], seconds: float) -> Any:
        """The answer to a frame; a worker that overruns or dies is replaced at the next call."""
        try:
            async with asyncio.timeout(seconds + START_SECONDS if self._process is None else seconds):
                if self._process is None:
                    self._process = await _spawn()
                if tokenizer.sha256 not in self._loaded:
                    await self._exchange({"action": "load", "tokenizer": tokenizer.sha256, "files": _files(tokenizer)})
                    self._remember(tokenizer.sha256)
                self._loaded.move_to_end(tokenizer.sha256)
                return await self._exchange({**frame, "tokenizer": tokenizer.sha256})
        except TimeoutError as error:
            await self.stop()
            raise _WorkerOverran from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            await self.stop()
            raise _WorkerDied from error
        except BaseException:  # a cancelled call leaves half an answer in the pipe: this process cannot go on
            await self.stop()
            raise

    def _remember(self, name: str) -> None:
        self._loaded[name] = None
        if len(self._loaded) > KEPT_TOKENIZERS:
            self._loaded.popitem(last=False)

    async def _exchange(self, frame: Mapping[str, Any]) -> Any:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ConnectionError("the worker is gone")
        body = json.dumps(frame).encode()
        process.stdin.write(struct.pack("<I", len(body)) + body)
        await process.stdin.drain()
        (length,) = struct.unpack("<I", await process.stdout.readexactly(4))
        return json.loads(await process.stdout.readexactly(length))

    async def stop(self) -> None:
        """Kill the process, if there is one."""
        process, self._process = self._process, None
        self._loaded.clear()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _files(tokenizer: TokenizerFiles) -> dict[str, Any]:
    return {
        "tokenizer_json": tokenizer.tokenizer_json,
        "chat_template": tokenizer.chat_template,
        "special_tokens": dict(tokenizer.special_tokens),
        "vocab_size": tokenizer.vocab_size,
    }


async def _spawn() -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.render_worker", stdin=PIPE, stdout=PIPE, stderr=DEVNULL
    )


class RenderPool:
    """Renders and decodes in worker processes, off the event loop; processes start when they are first needed."""

    def __init__(self, workers: int, line_seconds: float) -> None:
        """Make the pool.

        Args:
            workers: processes.
            line_seconds: longest time one line's template may take.
        """
        self._line_seconds = line_seconds
        self._workers = [_Worker() for _ in range(workers)]
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        for worker in self._workers:
            self._idle.put_nowait(worker)

    async def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            await worker.stop()

    async def render(
        self, tokenizer: TokenizerFiles, requests: Sequence[RenderRequest]
    ) -> list[RenderedPrompt | RenderRefusal]:
        """The outcome of each request, in order."""
        patience = _Patience()
        chunks = [requests[at : at + CHUNK] for at in range(0, len(requests), CHUNK)]
        parts = await asyncio.gather(*(self._render_chunk(tokenizer, chunk, patience) for chunk in chunks))
        return [outcome for part in parts for outcome in part]

    async def _render_chunk(
        self, tokenizer: TokenizerFiles, requests: Sequence[RenderRequest], patience: _Patience
    ) -> list[RenderedPrompt | RenderRefusal]:
        """The outcomes of a chunk; when it brings a process down, each of its lines is tried alone."""
        with contextlib.suppress(_WorkerDied, _WorkerOverran):
            return await self._try(tokenizer, requests)
        outcomes: list[RenderedPrompt | RenderRefusal] = []
        for request in requests:
            outcomes += await self._render_alone(tokenizer, request, patience)
        return outcomes

    async def _render_alone(
        self, tokenizer: TokenizerFiles, request: RenderRequest, patience: _Patience
    ) -> list[RenderedPrompt | RenderRefusal]:
        if patience.overruns_left == 0:
            return [RenderRefusal("template_error", "the chat template took too long on too many lines")]
        try:
            return await self._try(tokenizer, [request])
        except _WorkerOverran:
            patience.overruns_left -= 1
            return [RenderRefusal("template_error", "the chat template could not be stopped in time")]
        except _WorkerDied:
            return [RenderRefusal("template_error", "rendering this line ended the process that did it")]

    async def _try(
        self, tokenizer: TokenizerFiles, requests: Sequence[RenderRequest]
    ) -> list[RenderedPrompt | RenderRefusal]:
        lines = [
            {
                "messages": request.messages,
                "tools": request.tools,
                "template_kwargs": dict(request.template_kwargs),
                "prompt": request.prompt,
            }
            for request in requests
        ]
        frame = {"action": "render", "seconds": self._line_seconds, "requests": lines}
        # More than one line's time: the alarm inside comes first, the kill is for code that no alarm interrupts.
        answers = await self._ask(tokenizer, frame, 2 * self._line_seconds + 5)
        return [_outcome(answer) for answer in answers]

    async def decode(self, tokenizer: TokenizerFiles, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence: one decode of the whole, special tokens left out."""
        packed = [base64.b64encode(encode_token_ids(ids)).decode() for ids in sequences]
        frame = {"action": "decode", "sequences": packed}
        answer: list[str] = await self._ask(tokenizer, frame, 60.0)
        return answer

    async def _ask(self, tokenizer: TokenizerFiles, frame: Mapping[str, Any], seconds: float) -> Any:
        worker = await self._idle.get()
        try:
            return await worker.ask(tokenizer, frame, seconds)
        finally:
            self._idle.put_nowait(worker)


def _outcome(answer: Mapping[str, Any]) -> RenderedPrompt | RenderRefusal:
    if "code" in answer:
        return RenderRefusal(answer["code"], answer["message"])
    return RenderedPrompt(decode_token_ids(base64.b64decode(answer["ids"])))
