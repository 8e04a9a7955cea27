"""The fields of a line's body, in tables that read like the specification's.

null equals omitted for every optional field; 64 and 64.0 are the same integer; booleans and texts are no numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.core import strict_json
from protocol.sampling import MAX_SEED, Sampling

CHAT_URL = "/v1/chat/completions"
COMPLETIONS_URL = "/v1/completions"
SMALLEST_TEMPERATURE = 2.0**-64
"""Less is 0 to float32, or makes infinities of logits: greedy sampling by another name."""
ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGE_KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})


class FieldRefused(Exception):
    """A field cannot be used; code and message go to the error file."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True)
class ParsedBody:
    """A request in normal form: chat has messages, completions has a prompt (text or ids)."""

    sampling: Sampling
    model: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | tuple[int, ...] | None = None
    answer: str | None = None


IGNORED = frozenset({"user", "metadata", "store", "parallel_tool_calls", "service_tier"})

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "stream": (False,),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "stop": ("", []),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto",),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Equality in which true is not 1 and 1.0 is."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral)


def _number(name: str, value: Any, fits: Callable[[float], bool], rule: str) -> float:
    # The bound keeps float() of a huge integer from overflowing; every range below lies far inside it.
    if not _is_number(value) or abs(value) > 2**63 or not fits(float(value)):
        raise FieldRefused(f"invalid_{name}", f"{name} must be {rule}")
    return float(value) + 0.0  # -0.0 becomes 0.0


def _integer(name: str, value: Any, low: int, high: int) -> int:
    if not _is_number(value) or value != int(value) or not low <= value <= high:
        raise FieldRefused(f"invalid_{name}", f"{name} must be an integer from {low} to {high}")
    return int(value)


def _temperature(value: Any) -> float:
    if _is_number(value) and 0 <= value < SMALLEST_TEMPERATURE:
        raise FieldRefused("greedy_unavailable", "temperature 0 is not offered: every token is a seeded draw")
    return _number("temperature", value, lambda x: 0 < x <= 4, "above 0 and at most 4")


def _top_k(value: Any) -> int:
    return max(0, _integer("top_k", value, -1, 2**31 - 1))


SAMPLING: Mapping[str, Callable[[Any], float | int]] = {
    "temperature": _temperature,
    "top_p": lambda value: _number("top_p", value, lambda x: 0 < x <= 1, "above 0 and at most 1"),
    "top_k": _top_k,
    "min_p": lambda value: _number("min_p", value, lambda x: 0 <= x < 1, "from 0 up to, not including, 1"),
    "seed": lambda value: _integer("seed", value, 0, MAX_SEED),
    "n": lambda value: _integer("n", value, 1, 64),
    "max_tokens": lambda value: _integer("max_tokens", value, 16, 131_072),
    "max_completion_tokens": lambda value: _integer("max_completion_tokens", value, 16, 131_072),
}


def _sampling(body: Mapping[str, Any]) -> Sampling:
    values = {name: parse(body[name]) for name, parse in SAMPLING.items() if name in body}
    other = values.pop("max_completion_tokens", None)
    if other is not None and values.setdefault("max_tokens", other) != other:
        raise FieldRefused("max_tokens_conflict", "max_tokens and max_completion_tokens differ")
    return Sampling.model_validate(values)


def _text_of(content: Any, where: str) -> str:
    """Content as text; parts are joined without a separator."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise FieldRefused("invalid_messages", f"{where}.content must be a text or a list of text parts")
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise FieldRefused("invalid_messages", f"{where}.content has a part that is no object with a type")
        if part["type"] != "text":
            raise FieldRefused("multimodal_unavailable", f"{where}.content has a part of type {part['type'][:32]}")
        if not isinstance(part.get("text"), str):
            raise FieldRefused("invalid_messages", f"{where}.content has a text part without a text")
    return "".join(part["text"] for part in content)


def _json_text(text: str, where: str) -> Any:
    """A JSON text inside the line, held to the same rules as the line itself."""
    try:
        value = strict_json.parse(text)
    except strict_json.NotStrictJson as error:
        raise FieldRefused("invalid_messages", f"{where} is not valid JSON: {error}") from error
    if strict_json.holds_lone_surrogate(text, value):
        raise FieldRefused("invalid_text", f"{where} holds a lone surrogate")
    return value


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise FieldRefused("invalid_messages", f"{where} must name a function")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _json_text(arguments, f"{where}.function.arguments")
    if not isinstance(arguments, dict):
        raise FieldRefused("invalid_messages", f"{where}.function.arguments must be a JSON object")
    kept = {key: call[key] for key in ("id", "type") if isinstance(call.get(key), str)}
    return {**kept, "function": {"name": function["name"], "arguments": arguments}}


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise FieldRefused("invalid_messages", f"{where} must be an object")
    given = {key: value for key, value in message.items() if value is not None}
    if given.get("role") not in ROLES:
        raise FieldRefused("invalid_messages", f"{where}.role must be one of {', '.join(ROLES)}")
    unknown = next((key for key in given if key not in MESSAGE_KEYS), None)
    if unknown is not None:
        raise FieldRefused("unsupported_parameter", f"{where}.{unknown[:64]} is not offered")
    for key in ("name", "tool_call_id"):
        if not isinstance(given.get(key, ""), str):
            raise FieldRefused("invalid_messages", f"{where}.{key} must be a text")
    made = {key: given[key] for key in ("role", "name", "tool_call_id") if key in given}
    calls = _tool_calls(given, where)
    if calls:
        made["tool_calls"] = calls
    elif "content" not in given:
        raise FieldRefused("invalid_messages", f"{where} has no content")
    made["content"] = _text_of(given["content"], where) if "content" in given else None
    return made


def _tool_calls(given: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    calls = given.get("tool_calls", [])
    if not isinstance(calls, list):
        raise FieldRefused("invalid_messages", f"{where}.tool_calls must be a list")
    if calls and given["role"] != "assistant":
        raise FieldRefused("invalid_messages", f"{where}: only an assistant calls tools")
    return [_tool_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(calls)]


def _messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise FieldRefused("invalid_messages", "messages must be a list with at least one message")
    return tuple(_message(message, f"messages[{at}]") for at, message in enumerate(value))


def _tools(value: Any) -> tuple[Mapping[str, Any], ...] | None:
    if not isinstance(value, list):
        raise FieldRefused("invalid_tools", "tools must be a list")
    for at, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if (
            not isinstance(function, dict)
            or tool.get("type") != "function"
            or not isinstance(function.get("name"), str)
        ):
            raise FieldRefused("invalid_tools", f"tools[{at}] must be a function with a name")
    return tuple(value) or None


def _template_kwargs(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise FieldRefused("invalid_chat_template_kwargs", "chat_template_kwargs must be an object")
    if not isinstance(value.get("enable_thinking", False), bool):
        raise FieldRefused("invalid_chat_template_kwargs", "enable_thinking must be true or false")
    return value


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value:
        # 5.0 is the integer 5 here as in every field; true is none.
        ids = tuple(int(item) if isinstance(item, float) and item.is_integer() else item for item in value)
        if all(type(item) is int and item >= 0 for item in ids):
            return ids
    raise FieldRefused("invalid_prompt", "prompt must be a text or a non-empty list of token ids, one prompt a line")


CHAT_FIELDS = frozenset({"messages", "tools", "chat_template_kwargs"})
COMPLETIONS_FIELDS = frozenset({"prompt"})


def _check_names(url: str, body: Mapping[str, Any]) -> None:
    own = CHAT_FIELDS if url == CHAT_URL else COMPLETIONS_FIELDS
    for name, value in body.items():
        if name in NEUTRAL:
            if not _is_neutral(value, NEUTRAL[name]):
                message = f"{name} is not offered (only its neutral value is accepted)"
                raise FieldRefused(f"{name}_unavailable", message)
        elif name not in own and name not in IGNORED and name not in SAMPLING and name != "model":
            raise FieldRefused("unsupported_parameter", f"{name[:64]} is not offered on {url}")


def parse_body(url: str, body: Mapping[str, Any]) -> ParsedBody:
    """A body in normal form.

    Raises:
        FieldRefused: with the specification's code for the first field that cannot be used.
    """
    given = {name: value for name, value in body.items() if value is not None}
    _check_names(url, given)
    model = given.get("model")
    if model is not None and not isinstance(model, str):
        raise FieldRefused("invalid_model", "model must be a text")
    sampling = _sampling(given)
    metadata = given.get("metadata")
    answer = metadata.get("answer") if isinstance(metadata, dict) else None
    answer = answer if isinstance(answer, str) else None
    if url == COMPLETIONS_URL:
        return ParsedBody(sampling, model, prompt=_prompt(given.get("prompt")), answer=answer)
    return ParsedBody(
        sampling,
        model,
        messages=_messages(given.get("messages")),
        tools=_tools(given["tools"]) if "tools" in given else None,
        template_kwargs=_template_kwargs(given.get("chat_template_kwargs", {})),
        answer=answer,
    )
