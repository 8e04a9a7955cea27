"""Lines of the output and error files, as bytes. The same order gives the same bytes however often it is exported.

An output line is OpenAI's batch output; an error line is {"custom_id", "error", "line"} for a refused line and
{"custom_id", "prompt_index", "error"} for one that is short of samples.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from protocol.encoding import digest

CHAT_ENDPOINT = "/v1/chat/completions"
# JSON allows them raw, but many readers take them for the end of a line.
_LINE_BREAKS = {ord(character): f"\\u{ord(character):04x}" for character in "\u2028\u2029\u0085"}


@dataclass(frozen=True)
class OrderFacts:
    """What every output line of an order says alike.

    Attributes:
        created_at: Unix seconds; when generation began, so that it does not change from one export to the next.
    """

    order_id: str
    endpoint: str
    model_repo: str
    eos_token_ids: frozenset[int]
    created_at: int


@dataclass(frozen=True)
class DeliveredSample:
    """A verified sample with its text."""

    sample_index: int
    token_ids: Sequence[int]
    text: str


@dataclass(frozen=True)
class DeliveredLine:
    """A usable line with the samples it received, in sample order, at least one."""

    line_number: int
    custom_id: str
    prompt_tokens: int
    samples: Sequence[DeliveredSample]


def output_line(facts: OrderFacts, line: DeliveredLine) -> bytes:
    """One line of the output file."""
    drawn = sum(len(sample.token_ids) for sample in line.samples)
    is_chat = facts.endpoint == CHAT_ENDPOINT
    body = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{_derived('completion', facts, line)}",
        "object": "chat.completion" if is_chat else "text_completion",
        "model": facts.model_repo,
        "created": facts.created_at,
        "choices": [_choice(facts, sample) for sample in line.samples],
        "usage": {
            "prompt_tokens": line.prompt_tokens,
            "completion_tokens": drawn,
            "total_tokens": line.prompt_tokens + drawn,
        },
    }
    request_id = f"req_{_derived('request', facts, line)}"
    return _json_line(
        {
            "id": f"batch_req_{_derived('batch-request', facts, line)}",
            "custom_id": line.custom_id,
            "response": {"status_code": 200, "request_id": request_id, "body": body},
            "error": None,
        }
    )


def _choice(facts: OrderFacts, sample: DeliveredSample) -> dict[str, Any]:
    reason = "stop" if sample.token_ids[-1] in facts.eos_token_ids else "length"
    content: dict[str, Any] = {"text": sample.text}
    if facts.endpoint == CHAT_ENDPOINT:
        content = {"message": {"role": "assistant", "content": sample.text}}
    return {"index": sample.sample_index, "finish_reason": reason, **content, "logprobs": None}


def _derived(kind: str, facts: OrderFacts, line: DeliveredLine) -> str:
    return digest(f"reliquary/{kind}-id/v1", facts.order_id, line.line_number).hex()[:32]


def refused_line(line_number: int, custom_id: str | None, code: str, message: str) -> bytes:
    """The error line of a line that could not be used."""
    return _json_line({"custom_id": custom_id, "error": {"code": code, "message": message}, "line": line_number})


def short_line(custom_id: str, prompt_index: int, delivered: int, wanted: int) -> bytes:
    """The error line of a line short of samples; prompt_index counts the usable lines from 0."""
    error = {"code": "missing_samples", "message": f"{delivered} of {wanted} samples delivered"}
    return _json_line({"custom_id": custom_id, "prompt_index": prompt_index, "error": error})


def _json_line(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_LINE_BREAKS).encode() + b"\n"
