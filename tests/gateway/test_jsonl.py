"""The rules of a line, row by row."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.jsonl import (
    MAX_LINE_BYTES,
    DuplicateCheck,
    LineRefusal,
    LineSplitter,
    ParsedLine,
    RawLine,
    parse_line,
    read_lines,
)
from protocol.sampling import Sampling

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def parse(value: Any) -> ParsedLine | LineRefusal:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return parse_line(RawLine(1, data))


def chat(**body: Any) -> ParsedLine | LineRefusal:
    return parse({"custom_id": "q", "method": "POST", "url": CHAT, "body": {"messages": HELLO, **body}})


def text(**body: Any) -> ParsedLine | LineRefusal:
    return parse({"custom_id": "q", "method": "POST", "url": TEXT, "body": {"prompt": "x", **body}})


def code_of(outcome: ParsedLine | LineRefusal) -> str | None:
    return outcome.code if isinstance(outcome, LineRefusal) else None


def usable(outcome: ParsedLine | LineRefusal) -> ParsedLine:
    assert isinstance(outcome, ParsedLine), outcome
    return outcome


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", [(1, b"a"), (2, b"b")]),
        (b"a\nb", [(1, b"a"), (2, b"b")]),
        (b"a\r\nb\r\n", [(1, b"a"), (2, b"b")]),
        (b"\xef\xbb\xbfa\n", [(1, b"a")]),
        (b"\n\na\n \n\t\n", [(3, b"a")]),
        ("a\u2028b\u0085\n".encode(), [(1, "a\u2028b\u0085".encode())]),
        (b"", []),
        (b"\n", []),
    ],
    ids=["two", "no final newline", "CRLF", "BOM", "blank lines keep numbers", "only LF ends a line", "empty", "blank"],
)
def test_a_line_is_bytes_up_to_lf(data: bytes, lines: list[tuple[int, bytes]]) -> None:
    assert [(line.number, line.data) for line in read_lines([data])] == lines
    byte_by_byte = [data[at : at + 1] for at in range(len(data))]
    assert [(line.number, line.data) for line in read_lines(byte_by_byte)] == lines


def test_a_line_over_the_limit_is_refused_without_being_kept() -> None:
    splitter = LineSplitter()
    found = [line for _ in range(9) for line in splitter.feed(b"x" * (MAX_LINE_BYTES // 8))]
    found += list(splitter.feed(b"\nshort\n"))
    assert [line.data for line in found] == [None, b"short"]
    assert code_of(parse_line(found[0])) == "invalid_line"


@pytest.mark.parametrize(
    "data",
    [
        b'{"custom_id": "q", "met',
        b"[1]",
        b'"text"',
        b"null",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 1}}',
        b'{"a": ' + b"[" * 65 + b"]" * 65 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": "\xff"}',
        '{"a": 1}'.encode("utf-16"),
        "{“custom_id”: 1}".encode(),
        b"{",
    ],
)
def test_what_is_not_strict_json_is_refused(data: bytes) -> None:
    assert code_of(parse(data)) == "invalid_json"


@pytest.mark.parametrize("data", [b"{" * 900_000, b'{"a":' * 900_000, b'{"a": [' + b"{}," * 900_000 + b"1]}"])
def test_a_hostile_line_is_refused_in_bounded_time(data: bytes) -> None:
    assert code_of(parse(data)) in ("invalid_json", "invalid_line")


def test_nesting_is_allowed_to_its_limit() -> None:
    within, beyond = (b'{"a": ' + b"[" * depth + b"]" * depth + b"}" for depth in (63, 64))
    assert code_of(parse(within)) == "invalid_line"
    assert code_of(parse(beyond)) == "invalid_json"


def test_a_line_refused_for_a_text_keeps_its_custom_id_if_that_can_be_echoed() -> None:
    line = b'{"custom_id": "%s", "method": "POST", "url": "/v1/completions", "body": {"prompt": "\\udc00"}}'
    assert [(parse(line % name).custom_id, code_of(parse(line % name))) for name in (b"keep", b"\\ud800")] == [
        ("keep", "invalid_text"),
        (None, "invalid_text"),
    ]


def test_a_lone_surrogate_is_refused_and_a_pair_is_not() -> None:
    assert code_of(parse(b'{"custom_id": "\\ud800"}')) == "invalid_text"
    line = {"custom_id": "q", "method": "POST", "url": CHAT, "body": {"messages": [{"role": "user", "content": "😀"}]}}
    assert usable(parse(json.dumps(line).encode())).body.messages == ({"role": "user", "content": "😀"},)


ENVELOPE = {"custom_id": "q", "method": "POST", "url": CHAT, "body": {"messages": HELLO}}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"custom_id": None}, "invalid_line"),
        ({"custom_id": 12}, "invalid_line"),
        ({"custom_id": ""}, "invalid_custom_id"),
        ({"custom_id": "x" * 65}, "invalid_custom_id"),
        ({"custom_id": "😀" * 64}, None),
        ({"custom_id": "a\r\nb"}, None),
        ({"custom_id": "../../k"}, None),
        ({"method": "GET"}, "invalid_method"),
        ({"method": "post"}, "invalid_method"),
        ({"url": "/chat/completions"}, "invalid_url"),
        ({"url": "/v1/embeddings"}, "invalid_url"),
        ({"body": []}, "invalid_line"),
        ({"extra": 1}, "invalid_line"),
    ],
)
def test_the_envelope_is_checked(change: dict[str, Any], code: str | None) -> None:
    outcome = parse({**ENVELOPE, **change})
    assert code_of(outcome) == code
    if code is None:
        assert outcome.custom_id == change["custom_id"]


def test_an_object_spread_over_lines_is_refused_line_by_line() -> None:
    spread = json.dumps(ENVELOPE, indent=1).encode()
    assert [code_of(parse_line(raw)) for raw in read_lines([spread])] == ["invalid_json"] * (spread.count(b"\n") + 1)


def test_a_missing_key_is_named() -> None:
    outcome = parse({"custom_id": "k", "params": {}})
    assert isinstance(outcome, LineRefusal)
    assert (outcome.code, outcome.custom_id) == ("invalid_line", "k")
    assert "method" in outcome.message


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"stream": True}, "stream_unavailable"),
        ({"logprobs": True}, "logprobs_unavailable"),
        ({"logprobs": 1}, "logprobs_unavailable"),
        ({"top_logprobs": 2}, "top_logprobs_unavailable"),
        ({"frequency_penalty": 0.5}, "frequency_penalty_unavailable"),
        ({"presence_penalty": -1}, "presence_penalty_unavailable"),
        ({"repetition_penalty": 1.1}, "repetition_penalty_unavailable"),
        ({"repetition_penalty": True}, "repetition_penalty_unavailable"),
        ({"logit_bias": {"1": 2}}, "logit_bias_unavailable"),
        ({"stop": ["x"]}, "stop_unavailable"),
        ({"stop": "x"}, "stop_unavailable"),
        ({"response_format": {"type": "json_object"}}, "response_format_unavailable"),
        ({"tool_choice": "required"}, "tool_choice_unavailable"),
        ({"echo": True}, "echo_unavailable"),
        ({"suffix": "x"}, "suffix_unavailable"),
        ({"best_of": 2}, "best_of_unavailable"),
        ({"enable_thinking": False}, "unsupported_parameter"),
        ({"prompt": "x"}, "unsupported_parameter"),
        ({"temperature": 0}, "greedy_unavailable"),
        ({"temperature": 0.0}, "greedy_unavailable"),
        ({"temperature": 1e-300}, "greedy_unavailable"),
        ({"temperature": -0.0}, "greedy_unavailable"),
        ({"temperature": -1e-300}, "invalid_temperature"),
        ({"temperature": -1}, "invalid_temperature"),
        ({"temperature": 4.1}, "invalid_temperature"),
        ({"temperature": "1"}, "invalid_temperature"),
        ({"temperature": True}, "invalid_temperature"),
        ({"top_p": 0}, "invalid_top_p"),
        ({"top_p": 1.1}, "invalid_top_p"),
        ({"top_k": -2}, "invalid_top_k"),
        ({"top_k": 2.5}, "invalid_top_k"),
        ({"min_p": 1}, "invalid_min_p"),
        ({"min_p": -0.1}, "invalid_min_p"),
        ({"max_tokens": 15}, "invalid_max_tokens"),
        ({"max_tokens": 131_073}, "invalid_max_tokens"),
        ({"max_tokens": 64.5}, "invalid_max_tokens"),
        ({"max_completion_tokens": 1}, "invalid_max_completion_tokens"),
        ({"max_tokens": 16, "max_completion_tokens": 17}, "max_tokens_conflict"),
        ({"seed": 2**53}, "invalid_seed"),
        ({"seed": -1}, "invalid_seed"),
        ({"seed": 2**64 - 1}, "invalid_seed"),
        ({"seed": "7"}, "invalid_seed"),
        ({"n": 0}, "invalid_n"),
        ({"n": 65}, "invalid_n"),
        ({"n": True}, "invalid_n"),
        ({"model": 3}, "invalid_model"),
        ({"tools": {}}, "invalid_tools"),
        ({"tools": [{"type": "function"}]}, "invalid_tools"),
        ({"chat_template_kwargs": []}, "invalid_chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": "false"}}, "invalid_chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": 0}}, "invalid_chat_template_kwargs"),
        ({"messages": []}, "invalid_messages"),
        ({"messages": [{}]}, "invalid_messages"),
        ({"messages": "hello"}, "invalid_messages"),
        ({"messages": [{"role": "banana", "content": "x"}]}, "invalid_messages"),
        ({"messages": [{"role": "user"}]}, "invalid_messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_messages"),
        ({"messages": [{"role": "user", "content": []}]}, "invalid_messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "multimodal_unavailable"),
        ({"messages": [{"role": "user", "content": "x", "audio": {}}]}, "unsupported_parameter"),
        ({"messages": None}, "invalid_messages"),
    ],
)
def test_a_chat_field_out_of_its_rule_is_refused_with_its_code(body: dict[str, Any], code: str) -> None:
    assert code_of(chat(**body)) == code


@pytest.mark.parametrize(
    "body",
    [
        {"stream": False, "logprobs": False, "top_logprobs": 0, "frequency_penalty": 0.0, "presence_penalty": 0},
        {"repetition_penalty": 1.0, "logit_bias": {}, "stop": [], "response_format": {"type": "text"}},
        {"tool_choice": "auto", "echo": False, "suffix": "", "best_of": 1},
        {"user": "u", "metadata": {"a": 1}, "store": True, "parallel_tool_calls": True, "service_tier": "auto"},
        {"stop": None, "tools": None, "seed": None, "temperature": None, "max_tokens": None, "n": None},
        {"tools": []},
    ],
)
def test_neutral_ignored_and_null_fields_are_as_omitted(body: dict[str, Any]) -> None:
    assert usable(chat(**body)).body == usable(chat()).body


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"temperature": 1}, {}),
        ({"temperature": 1.0, "top_p": 1}, {}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"max_tokens": 64.0}, {"max_completion_tokens": 64}),
        ({"max_tokens": 64, "max_completion_tokens": 64}, {"max_tokens": 64}),
        ({"n": 1.0, "seed": 7.0}, {"seed": 7}),
        ({"min_p": -0.0}, {}),
    ],
)
def test_equal_sampling_is_the_same_object(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert usable(chat(**left)).body.sampling == usable(chat(**right)).body.sampling


def test_defaults_are_the_specifications_and_the_largest_seed_is_exact() -> None:
    assert usable(chat()).body.sampling == Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, max_tokens=4096)
    assert usable(chat(seed=2**53 - 1)).body.sampling.seed == 9_007_199_254_740_991
    assert usable(chat(seed=0)).body.sampling != usable(chat()).body.sampling


@pytest.mark.parametrize("prompt", [[9707, -1], [True], [], ["a", "b"], [[1]], "", 5, None, [1.5]])
def test_a_prompt_that_is_no_text_or_list_of_ids_is_refused(prompt: Any) -> None:
    assert code_of(text(prompt=prompt)) == "invalid_prompt"


def test_a_prompt_may_be_text_or_ids_and_takes_no_chat_fields() -> None:
    assert usable(text(prompt="hi")).body.prompt == "hi"
    assert usable(text(prompt=[1, 2.0])).body.prompt == (1, 2)
    assert code_of(text(messages=HELLO)) == "unsupported_parameter"


def test_tool_turns_are_kept_with_arguments_as_objects_and_parts_as_text() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    parts = [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]
    made = usable(
        chat(
            messages=[
                *HELLO,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": parts},
            ]
        )
    ).body.messages
    assert made is not None
    assert made[1]["content"] is None
    assert made[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert made[2]["content"] == "42"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("not json", "invalid_messages"),
        ("", "invalid_messages"),
        ("[1]", "invalid_messages"),
        (5, "invalid_messages"),
        ('"text"', "invalid_messages"),
        ('{"a": NaN}', "invalid_messages"),
        ('{"a": 1e999}', "invalid_messages"),
        ('{"a": 1, "a": 2}', "invalid_messages"),
        ('{"a":' * 900 + "1" + "}" * 900, "invalid_messages"),
        ('{"a": "\\ud800"}', "invalid_text"),
    ],
)
def test_arguments_that_are_no_object_in_strict_json_are_refused(arguments: Any, code: str) -> None:
    call = {"function": {"name": "add", "arguments": arguments}}
    assert code_of(chat(messages=[{"role": "assistant", "tool_calls": [call]}])) == code


@pytest.mark.parametrize(
    "call",
    [
        5,
        {},
        {"function": "add"},
        {"function": {}},
        {"function": {"name": 1}},
        {"type": "custom", "custom": {"name": "a", "input": "x"}},
    ],
)
def test_a_tool_call_that_names_no_function_is_refused(call: Any) -> None:
    assert code_of(chat(messages=[{"role": "assistant", "tool_calls": [call]}])) == "invalid_messages"


def test_only_an_assistant_calls_tools() -> None:
    call = {"function": {"name": "add", "arguments": "{}"}}
    assert code_of(chat(messages=[{"role": "user", "content": "x", "tool_calls": [call]}])) == "invalid_messages"
    assert code_of(chat(messages=[{"role": "assistant", "tool_calls": "x"}])) == "invalid_messages"
    assert code_of(chat(messages=[{"role": "assistant", "content": None, "tool_calls": []}])) == "invalid_messages"


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_every_role_of_the_specification_may_speak(role: str) -> None:
    message = {"role": role, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "n"}
    assert usable(chat(messages=[message])).body.messages == ({"role": role, "name": "n", "content": "ab"},)


@pytest.mark.parametrize(
    "part", [5, {}, {"type": 1}, {"type": "text"}, {"type": "text", "text": None}, {"type": "text", "text": 1}]
)
def test_a_text_part_without_a_text_is_refused(part: Any) -> None:
    assert code_of(chat(messages=[{"role": "user", "content": [part]}])) == "invalid_messages"


@pytest.mark.parametrize("message", [5, "x", None, {"role": None, "content": "x"}, {"role": ["user"], "content": "x"}])
def test_what_is_no_message_is_refused(message: Any) -> None:
    assert code_of(chat(messages=[message])) == "invalid_messages"


def test_the_reference_answer_of_an_evaluation_is_read_and_never_part_of_the_prompt() -> None:
    body = usable(chat(metadata={"answer": "56", "other": 1})).body
    assert (body.answer, body.messages) == ("56", tuple(HELLO))
    assert [usable(chat(metadata=value)).body.answer for value in ({"answer": 56}, "x", [1], {})] == [None] * 4


def test_the_first_line_with_a_custom_id_is_kept() -> None:
    check = DuplicateCheck()
    lines = [json.dumps({**ENVELOPE, "custom_id": name}).encode() for name in ("a", "b", "a")]
    outcomes = [check.check(parse_line(raw)) for raw in read_lines([b"\n".join(lines)])]
    assert [code_of(outcome) for outcome in outcomes] == [None, None, "duplicate_custom_id"]
    assert outcomes[2].line_number == 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    ["messages", "prompt", "tools", "temperature", "top_k", "seed", "n", "max_tokens", "stop", "chat_template_kwargs"]
)


@given(st.binary(max_size=200))
def test_any_bytes_have_one_outcome(data: bytes) -> None:
    assert isinstance(parse_line(RawLine(1, data)), ParsedLine | LineRefusal)


@given(st.dictionaries(FIELDS, JSON, max_size=5), st.sampled_from([CHAT, TEXT]))
def test_any_body_has_one_outcome_with_a_code_when_refused(body: dict[str, Any], url: str) -> None:
    data = json.dumps({"custom_id": "q", "method": "POST", "url": url, "body": body}).encode()
    outcome = parse_line(RawLine(1, data))
    assert isinstance(outcome, ParsedLine) or (outcome.code and outcome.message)
