"""The process in which templates render and text becomes ids: python -m gateway.render_worker.

It speaks frames on stdin and stdout: 4 bytes of length (little-endian), then JSON. A request to load a tokenizer has
one answer: null, or why it cannot be loaded. A request with items (lines to parse, lines to read into token ids, ids to
decode) has one answer for each item as soon as that is done, in order, then null; when its time is used up the null
comes early and the rest is for the gateway to send again. So whoever reads the answers knows at which item a process
ended.

It ends when stdin does, and by its limit of CPU time at the latest, so a killed gateway leaves no orphan. Templates are
strangers' code in a sandbox: each line has a time limit here, the process has a memory limit, and what gets past both
is killed from outside (gateway/render_process.py).

Nothing here may import NumPy or the engine: a process is one of many, and starts while a customer waits. It runs at a
lower priority than the gateway, whose short requests come first.
"""

import base64
import json
import math
import os
import resource
import signal
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NoReturn

from tokenizers import Tokenizer

from gateway.core.jsonl import LineRefusal, ParsedLine, RawLine, parse_line
from protocol.rendering import ChatTemplate, TemplateFailed, reads_tools, template_variables

MEMORY_BYTES = 4 * 1024**3
MAX_CHARACTERS = 2_000_000
"""Of one prompt: 15 times the most tokens that it may have. Tokenising more would take seconds and be refused."""
MAX_PROMPT_TOKENS = 131_072
KEPT_TOKENIZERS = 4
SPARE_CPU_SECONDS = 30
NICENESS = 10
Answer = dict[str, Any]


class _TooSlow(BaseException):
    """Raised by the alarm; a BaseException, so that nothing inside a template can catch it."""


def _on_alarm(_signal: int, _frame: Any) -> NoReturn:
    raise _TooSlow


class _Refused(Exception):
    """An item cannot be done; its answer says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.answer: Answer = {"code": code, "message": message}


class _TookTooLong(_Refused):
    """An item was stopped at its time limit; the answer says so, because the gateway's patience is finite."""

    def __init__(self, code: str, what: str, seconds: float) -> None:
        super().__init__(code, f"{what} took longer than {seconds:g} s")
        self.answer["slow"] = True


def _timed(
    work: Callable[[], Any], seconds: float, code: str = "template_error", what: str = "the chat template"
) -> Any:
    """What work returns; code and what are for the refusal when it takes too long.

    CPU time is measured, of which templates are made: an honest line is not refused because the machine is busy.

    Raises:
        _TookTooLong: when it takes longer.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return work()
    except _TooSlow:
        raise _TookTooLong(code, what, seconds) from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class _Model:
    """A tokenizer with its compiled template; a template that does not compile refuses each chat line."""

    def __init__(self, files: Mapping[str, Any], seconds: float) -> None:
        self.tokenizer = _tokenizer(files["tokenizer_json"])
        self.vocab_size = int(files["vocab_size"])
        self._source, self._special_tokens = files["chat_template"], files["special_tokens"]
        self._template: ChatTemplate | None = None
        self._fault = "chat_template_unavailable", "the model has no chat template; use /v1/completions"
        if self._source is None:
            return
        try:
            _timed(self._compile, seconds)
        except (TemplateFailed, _TookTooLong) as error:
            self._fault = "template_error", f"the model's chat template cannot be used: {error}"

    def _compile(self) -> None:
        variables = template_variables(self._source)
        self._variables = variables - set(self._special_tokens)
        self._takes_tools = reads_tools(self._source)
        self._template = ChatTemplate(self._source, self._special_tokens)

    def _render(self, line: ParsedLine, seconds: float) -> str:
        template, body = self._template, line.body
        if template is None or body.messages is None:
            raise _Refused(*self._fault)
        unknown = sorted(set(body.template_kwargs) - self._variables)
        if unknown:
            message = f"the model's chat template has no variable {unknown[0][:64]} that may be set"
            raise _Refused("unsupported_template_kwarg", message)
        if body.tools and not self._takes_tools:
            raise _Refused("tools_unavailable", "the model's chat template takes no tools")
        arguments = body.messages, body.tools, body.template_kwargs, MAX_CHARACTERS
        try:
            return str(_timed(lambda: template.render(*arguments), seconds))
        except TemplateFailed as error:
            raise _Refused("template_error", f"the chat template refused the line: {error}") from error

    def prompt(self, line: ParsedLine, seconds: float) -> bytes:
        """The token ids of a line's prompt, packed."""
        prompt = line.body.prompt
        if prompt is None:
            ids = self._ids(self._render(line, seconds), special=False)
        else:
            ids = self._ids(prompt, special=True) if isinstance(prompt, str) else prompt
        if not ids:
            raise _Refused("invalid_prompt", "the prompt has no tokens")
        if len(ids) > MAX_PROMPT_TOKENS:
            raise _Refused("prompt_too_long", f"{len(ids)} prompt tokens; at most {MAX_PROMPT_TOKENS}")
        if max(ids) >= self.vocab_size:
            raise _Refused("invalid_prompt", f"token id {max(ids)} is not below {self.vocab_size}")
        return struct.pack(f"<{len(ids)}I", *ids)

    def _ids(self, text: str, *, special: bool) -> Sequence[int]:
        if len(text) > MAX_CHARACTERS:
            raise _Refused("prompt_too_long", f"{len(text)} characters; at most {MAX_CHARACTERS}")
        try:
            # Three times as fast as encode, because it keeps no offsets.
            ids: list[int] = self.tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
        except Exception as error:  # the library raises Exception itself
            raise _Refused("invalid_prompt", f"the tokenizer cannot take the text: {error}"[:300]) from error
        return ids

    def text(self, packed: str) -> str:
        """The text of packed token ids."""
        data = base64.b64decode(packed)
        ids = struct.unpack(f"<{len(data) // 4}I", data)
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def _tokenizer(source: str) -> Tokenizer:
    try:
        return Tokenizer.from_str(source)
    except Exception as error:  # the library raises Exception itself
        raise _Refused("model_unsupported", f"tokenizer.json cannot be loaded: {error}"[:300]) from error


def _load(models: OrderedDict[str, _Model], frame: Mapping[str, Any]) -> Answer | None:
    try:
        models[frame["tokenizer"]] = _Model(frame["files"], frame["seconds"])
    except _Refused as refused:
        return refused.answer
    if len(models) > KEPT_TOKENIZERS:
        models.popitem(last=False)
    return None


def _read_line(item: Mapping[str, Any], frame: Mapping[str, Any], model: _Model | None) -> Answer:
    """The outcome of a line: parsed alone, or its prompt as well where there is a model."""
    data = None if item["data"] is None else base64.b64decode(item["data"])
    raw = RawLine(item["number"], data)
    line = _timed(lambda: parse_line(raw), frame["seconds"], "invalid_json", "parsing the line")
    if isinstance(line, LineRefusal):
        return {"custom_id": line.custom_id, "code": line.code, "message": line.message}
    answer: Answer = {"custom_id": line.custom_id}
    try:
        if model is not None:
            if line.body.model not in (None, frame["model"]):
                raise _Refused("model_mismatch", f"the batch's model is {frame['model']}")
            answer["ids"] = base64.b64encode(model.prompt(line, frame["seconds"])).decode()
    except _Refused as refused:
        return answer | refused.answer
    return answer | {"url": line.url, "model": line.body.model, "sampling": line.body.sampling.model_dump()}


def _do(item: Any, frame: Mapping[str, Any], model: _Model | None) -> Answer:
    """The answer to one item, with the CPU time that it took."""
    began = time.process_time()
    try:
        if frame["action"] == "decode" and model is not None:
            answer: Answer = {"text": model.text(item)}
        else:
            answer = _read_line(item, frame, model)
    except _Refused as refused:
        answer = refused.answer
    return answer | {"cpu_seconds": time.process_time() - began}


def _work(model: _Model | None, frame: Mapping[str, Any]) -> None:
    ends_at = time.monotonic() + frame["chunk_seconds"]
    for item in frame["items"]:
        _allow_cpu(frame["seconds"] + SPARE_CPU_SECONDS)
        _write(_do(item, frame, model))
        if time.monotonic() > ends_at:
            break
    _write(None)


def _allow_cpu(seconds: float) -> None:
    """Let the kernel end the process when it works longer than this, whatever it is doing."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    until = math.ceil(used.ru_utime + used.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (until if most == resource.RLIM_INFINITY else min(until, most), most))


def _read(source: BinaryIO) -> Any:
    """The next frame; None when stdin ended, be it within a frame."""
    header = source.read(4)
    if len(header) < 4:
        return None
    (length,) = struct.unpack("<I", header)
    body = source.read(length)
    return json.loads(body) if len(body) == length else None


def _write(answer: Answer | None) -> None:
    body = json.dumps(answer).encode()
    sys.stdout.buffer.write(struct.pack("<I", len(body)) + body)
    sys.stdout.buffer.flush()


def _kept(models: OrderedDict[str, _Model], name: str | None) -> _Model | None:
    if name is None:
        return None
    models.move_to_end(name)
    return models[name]


def main() -> None:
    """Answer frames until stdin ends."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _on_alarm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides when to stop
    models: OrderedDict[str, _Model] = OrderedDict()
    while (frame := _read(sys.stdin.buffer)) is not None:
        _allow_cpu(frame["seconds"] + SPARE_CPU_SECONDS)
        if frame["action"] == "load":
            _write(_load(models, frame))
        else:
            _work(_kept(models, frame["tokenizer"]), frame)


if __name__ == "__main__":
    main()
