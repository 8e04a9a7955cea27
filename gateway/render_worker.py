"""The process in which templates render and text becomes ids: python -m gateway.render_worker.

It speaks frames on stdin and stdout: 4 bytes of length (little-endian), then JSON. It ends when stdin does, so a
killed gateway leaves no orphan. Templates are strangers' code in a sandbox: each line has a time limit here, the
process has a memory limit, and what gets past both is killed from outside (gateway/rendering.py).
"""

import base64
import json
import resource
import signal
import struct
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NoReturn

from tokenizers import Tokenizer

from protocol.encoding import decode_token_ids, encode_token_ids
from protocol.rendering import ChatTemplate, TemplateFailed, reads_tools, template_variables

MEMORY_BYTES = 4 * 1024**3
MAX_CHARACTERS = 4_000_000
MAX_PROMPT_TOKENS = 131_072
KEPT_TOKENIZERS = 4
Outcome = dict[str, Any]


class _TooSlow(BaseException):
    """Raised by the alarm; a BaseException, so that nothing inside a template can catch it."""


def _on_alarm(_signal: int, _frame: Any) -> NoReturn:
    raise _TooSlow


class _Refused(Exception):
    """A line cannot be rendered."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class _Model:
    """A tokenizer with its compiled template; a template that does not compile refuses each chat line."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self.tokenizer = Tokenizer.from_str(files["tokenizer_json"])
        self.vocab_size = int(files["vocab_size"])
        self.template: ChatTemplate | None = None
        self.fault: _Refused | None = None
        source = files["chat_template"]
        if source is None:
            self.fault = _Refused("chat_template_unavailable", "the model has no chat template; use /v1/completions")
            return
        try:
            self.variables = template_variables(source)
            self.takes_tools = reads_tools(source)
            self.template = ChatTemplate(source, files["special_tokens"])
        except TemplateFailed as error:
            self.fault = _Refused("template_error", f"the model's chat template cannot be used: {error}")

    def render(self, request: Mapping[str, Any], seconds: float) -> str:
        """The text of a chat line; _Refused otherwise."""
        if self.template is None:
            raise self.fault or _Refused("template_error", "the model's chat template cannot be used")
        unknown = sorted(set(request["template_kwargs"]) - self.variables)
        if unknown:
            message = f"the model's chat template has no variable {unknown[0][:64]} that may be set"
            raise _Refused("unsupported_template_kwarg", message)
        if request["tools"] and not self.takes_tools:
            raise _Refused("tools_unavailable", "the model's chat template takes no tools")
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            return self.template.render(
                request["messages"], request["tools"], request["template_kwargs"], MAX_CHARACTERS
            )
        except TemplateFailed as error:
            raise _Refused("template_error", f"the chat template refused the line: {error}") from error
        except _TooSlow:
            raise _Refused("template_error", f"the chat template took longer than {seconds:g} s") from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def ids(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """Token ids of texts."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts), add_special_tokens=special)]


def _checked(ids: list[int], vocab_size: int) -> Outcome:
    if not ids:
        return {"code": "invalid_prompt", "message": "the prompt has no tokens"}
    if len(ids) > MAX_PROMPT_TOKENS:
        return {"code": "prompt_too_long", "message": f"{len(ids)} prompt tokens; at most {MAX_PROMPT_TOKENS}"}
    if max(ids) >= vocab_size:
        return {"code": "invalid_prompt", "message": f"token id {max(ids)} is not below {vocab_size}"}
    return {"ids": base64.b64encode(encode_token_ids(ids)).decode()}


def _render(model: _Model, frame: Mapping[str, Any]) -> list[Outcome]:
    requests = frame["requests"]
    outcomes: list[Outcome] = [{} for _ in requests]
    texts: dict[bool, list[tuple[int, str]]] = {False: [], True: []}
    for at, request in enumerate(requests):
        prompt = request["prompt"]
        try:
            if isinstance(prompt, list):
                outcomes[at] = _checked(prompt, model.vocab_size)
            elif prompt is not None:
                texts[True].append((at, prompt))
            else:
                texts[False].append((at, model.render(request, frame["seconds"])))
        except _Refused as refused:
            outcomes[at] = {"code": refused.code, "message": refused.message}
    for special, found in texts.items():
        for (at, _), ids in zip(found, model.ids([text for _, text in found], special=special), strict=True):
            outcomes[at] = _checked(ids, model.vocab_size)
    return outcomes


def _decode(model: _Model, frame: Mapping[str, Any]) -> list[str]:
    sequences = [decode_token_ids(base64.b64decode(text)) for text in frame["sequences"]]
    return model.tokenizer.decode_batch(sequences, skip_special_tokens=True)


def _answer(models: OrderedDict[str, _Model], frame: Mapping[str, Any]) -> Any:
    name = frame["tokenizer"]
    if frame["action"] == "load":
        models[name] = _Model(frame["files"])
        if len(models) > KEPT_TOKENIZERS:
            models.popitem(last=False)
        return None
    models.move_to_end(name)
    return (_render if frame["action"] == "render" else _decode)(models[name], frame)


def _read(source: BinaryIO) -> Any:
    header = source.read(4)
    return json.loads(source.read(struct.unpack("<I", header)[0])) if len(header) == 4 else None


def main() -> None:
    """Answer frames until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides when to stop
    models: OrderedDict[str, _Model] = OrderedDict()
    while (frame := _read(sys.stdin.buffer)) is not None:
        body = json.dumps(_answer(models, frame)).encode()
        sys.stdout.buffer.write(struct.pack("<I", len(body)) + body)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
