"""Lines of a batch file: one test for each row about them."""

import json
from typing import Any

import openai
import pytest
from customer import MODEL, chat_line, jsonl
from ordering import (
    COMPLETIONS,
    GOOD,
    chat,
    client_of,
    code_of_chat,
    codes_of,
    completion,
    deliver,
    envelope,
    order,
)
from served import Served
from specification import row

from gateway.core.line_fields import IGNORED, NEUTRAL

HELLO = {"role": "user", "content": "hi"}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


@row("Line: envelope", "custom_id")
@row("Decided: lines", "duplicate_custom_id")
def test_a_custom_id_has_1_to_64_characters_and_is_unique_in_the_file(gateway: Served) -> None:
    lines = [envelope(custom_id=text) for text in ("a", "😀" * 64, "x" * 65, "", 12, None, "a")]
    assert codes_of(gateway, lines) == [
        None, None, "invalid_custom_id", "invalid_custom_id", "invalid_line", "invalid_line", "duplicate_custom_id",
    ]  # fmt: skip


@row("Line: envelope", "method")
@row("Decided: lines", "invalid_method and invalid_url")
def test_the_method_is_post(gateway: Served) -> None:
    lines = [envelope(custom_id=str(n), method=method) for n, method in enumerate(["POST", "GET", "post", 1])]
    assert codes_of(gateway, lines) == [None, "invalid_method", "invalid_method", "invalid_line"]


@row("Line: envelope", "url")
@row("Decided: lines", "invalid_method and invalid_url")
@row("Cases: lines", "url /chat/completions")
def test_the_url_is_one_of_two(gateway: Served) -> None:
    urls = ["/v1/chat/completions", "/chat/completions", "/v1/embeddings", "https://x/v1/chat/completions"]
    lines = [envelope(custom_id=str(n), url=url) for n, url in enumerate(urls)]
    assert codes_of(gateway, lines) == [None, "invalid_url", "invalid_url", "invalid_url"]


@row("Line: envelope", "body")
@row("Decided: lines", "invalid_line")
@row("Cases: lines", "params instead of body")
def test_a_missing_or_mistyped_key_of_the_envelope_is_named(gateway: Served) -> None:
    lines = [{"custom_id": "k", "params": {}}, envelope(body=[]), envelope(body=...), envelope(extra=1)]
    delivery = deliver(gateway, jsonl(GOOD, *lines))
    assert [line["error"]["code"] for line in delivery.errors] == ["invalid_line"] * 4
    named = ["method", "body", "body", "extra"]
    assert all(key in line["error"]["message"] for key, line in zip(named, delivery.errors, strict=True))


@row("Line: envelope", "a line that cannot be used")
@row("Cases: lines", "line 3 is a truncated object")
def test_a_line_that_cannot_be_used_goes_to_the_error_file_and_the_rest_runs(gateway: Served) -> None:
    content = jsonl(chat_line("q1"), chat_line("q2")) + jsonl(chat_line("q3"))[:50] + b"\n" + jsonl(chat_line("q4"))
    delivery = deliver(gateway, content)
    assert [line["custom_id"] for line in delivery.output] == ["q1", "q2", "q4"]
    assert [(line["line"], line["error"]["code"]) for line in delivery.errors] == [(3, "invalid_json")]


@row("Line: envelope", "rendering")
@row("Decided: lines", "thinking text")
def test_enable_thinking_false_closes_the_block_in_the_prompt(gateway: Served) -> None:
    lines = [chat_line(str(flag), chat_template_kwargs={"enable_thinking": flag}) for flag in (True, False)]
    delivery = deliver(gateway, jsonl(*lines))
    thinking, plain = (line["response"]["body"]["usage"]["prompt_tokens"] for line in delivery.output)
    assert plain > thinking  # the empty block of thinking is part of the prompt
    assert set(delivery.output[0]["response"]["body"]["choices"][0]["message"]) == {"role", "content"}


@row("Line: fields of body", "model")
def test_a_line_that_names_another_model_is_a_mismatch(gateway: Served) -> None:
    lines = [envelope(custom_id=str(n), body={**GOOD["body"], "model": name}) for n, name in enumerate([MODEL, None])]
    assert codes_of(gateway, [*lines, chat(model="tiny/qwen3-other"), chat(model=5)]) == [
        None, None, "model_mismatch", "invalid_model",
    ]  # fmt: skip


@row("Line: fields of body", "messages")
@row("Cases: lines", "messages [], [{}], a role banana")
def test_messages_have_five_roles_and_contents_of_text(gateway: Served) -> None:
    roles = [{"role": role, "content": "x"} for role in ("system", "developer", "user", "assistant", "tool")]
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    messages = [[*roles, HELLO], [parts], [image], [], [{}], [{"role": "banana", "content": "x"}], "hi", [HELLO, 5]]
    lines = [chat_line(str(n), messages=each) for n, each in enumerate(messages)]
    assert codes_of(gateway, lines) == [None, None, "multimodal_unavailable", *["invalid_messages"] * 5]


@row("Line: fields of body", "tools")
def test_tools_are_rendered_by_a_template_that_takes_them(gateway: Served) -> None:
    bare, tooled = chat_line("bare"), chat_line("tooled", tools=[ADD])
    delivery = deliver(gateway, jsonl(bare, tooled, chat_line("bad", tools=[{"type": "function"}])))
    without, with_tools = (line["response"]["body"]["usage"]["prompt_tokens"] for line in delivery.output)
    assert with_tools > without + 10
    assert delivery.fates["bad"] == "invalid_tools"


@row("Line: fields of body", "chat_template_kwargs")
@row("Decided: lines", "chat_template_kwargs")
@row("Cases: lines", 'enable_thinking "false" or 0; at the top of body')
@row("Cases: lines", "chat_template_kwargs with chat_template, tokenize, messages")
def test_only_variables_that_the_template_reads_may_be_set(gateway: Served) -> None:
    kwargs: list[Any] = [{"enable_thinking": True}, {}, {"banana": 1}]
    kwargs += [{"chat_template": "x"}, {"tokenize": True}, {"messages": []}, {"bos_token": "x"}]
    kwargs += [{"enable_thinking": "false"}, {"enable_thinking": 0}, [1]]
    lines = [chat_line(str(n), chat_template_kwargs=each) for n, each in enumerate(kwargs)]
    assert codes_of(gateway, lines) == [
        None, None, *["unsupported_template_kwarg"] * 5, *["invalid_chat_template_kwargs"] * 3,
    ]  # fmt: skip
    assert code_of_chat(gateway, enable_thinking=False) == "unsupported_parameter"


@row("Line: fields of body", "prompt")
@row("Decided: lines", "prompt")
@row("Cases: lines", 'prompt [9707, -1], [true], [], ["a","b"]')
def test_a_prompt_is_text_or_ids_of_the_true_vocabulary(gateway: Served) -> None:
    prompts: list[Any] = ["The capital", [5, 6], [5.0], [1999], [2000], [9707, -1], [True], [], ["a", "b"], [[1]], ""]
    lines = [completion(str(n), prompt) for n, prompt in enumerate(prompts)]
    delivery = deliver(gateway, jsonl(*lines), COMPLETIONS)
    assert [delivery.fates[str(n)] for n in range(len(prompts))] == [None] * 4 + ["invalid_prompt"] * 7
    assert codes_of(gateway, [chat(prompt="x")]) == ["unsupported_parameter"]


@row("Line: fields of body", "temperature")
def test_a_temperature_is_above_0_and_up_to_4(gateway: Served) -> None:
    values = [0, 0.0, -0.0, 1e-30, -1, 4.001, "1", True, None]
    codes = [code_of_chat(gateway, temperature=value) for value in (0, -1, 4.001, "1")]
    assert codes == ["greedy_unavailable", *["invalid_temperature"] * 3]
    lines = [chat_line(str(n), temperature=value) for n, value in enumerate(values[:4])]
    assert codes_of(gateway, lines) == ["greedy_unavailable"] * 4
    for value in (4, 0.01, None):
        assert deliver(gateway, jsonl(chat_line("q", temperature=value))).fates == {"q": None}


@row("Line: fields of body", "top_p")
def test_top_p_is_above_0_and_up_to_1(gateway: Served) -> None:
    lines = [chat_line(str(n), top_p=value) for n, value in enumerate([0, 1.01, -1, True, "1"])]
    assert codes_of(gateway, lines) == ["invalid_top_p"] * 5
    for value in (1, 0.001, None):
        assert deliver(gateway, jsonl(chat_line("q", top_p=value))).fates == {"q": None}


@row("Line: fields of body", "top_k")
def test_top_k_is_0_or_minus_1_or_positive(gateway: Served) -> None:
    lines = [chat_line(str(n), top_k=value) for n, value in enumerate([-2, 1.5, True, "5", 2**31])]
    assert codes_of(gateway, lines) == ["invalid_top_k"] * 5
    delivery = deliver(gateway, jsonl(*(chat_line(str(value), top_k=value) for value in (0, -1, None, 0.0))))
    assert set(delivery.fates.values()) == {None}
    assert deliver(gateway, jsonl(chat_line("q", top_k=1))).fates == {"q": None}


@row("Line: fields of body", "min_p")
def test_min_p_is_from_0_up_to_but_not_1(gateway: Served) -> None:
    lines = [chat_line(str(n), min_p=value) for n, value in enumerate([1, -0.1, True, "0"])]
    assert codes_of(gateway, lines) == ["invalid_min_p"] * 4
    for value in (0, 0.999, None):
        assert deliver(gateway, jsonl(chat_line("q", min_p=value))).fates == {"q": None}


@row("Line: fields of body", "max_tokens or max_completion_tokens")
@row("Limits", "max_tokens")
@row("Error codes", "422 invalid_max_tokens")
@row("Error codes", "422 max_tokens_conflict")
def test_max_tokens_is_16_to_131072_and_the_same_under_both_names(gateway: Served) -> None:
    values: list[dict[str, Any]] = [{"max_tokens": 15}, {"max_tokens": 131_073}, {"max_tokens": 64.5}]
    values += [{"max_tokens": None, "max_completion_tokens": 15}, {"max_completion_tokens": 65}]
    assert codes_of(gateway, [chat_line(str(n), **value) for n, value in enumerate(values)]) == [
        *["invalid_max_tokens"] * 3, "invalid_max_completion_tokens", "max_tokens_conflict",
    ]  # fmt: skip
    same = [chat_line("a"), chat_line("b", max_completion_tokens=64), chat_line("c", max_tokens=64.0)]
    other = chat_line("d", max_tokens=None, max_completion_tokens=64)
    assert set(deliver(gateway, jsonl(*same, other)).fates.values()) == {None}
    with client_of(gateway) as client:
        default = order(client, jsonl(chat_line("q", max_tokens=None)))
        price = client.get(f"{gateway.world.url}/api/v1/dataset-orders/{default.id[6:]}", cast_to=dict)["pricing"]
    assert price["max_completion_tokens"] == 4096


@row("Line: fields of body", "seed")
@row("Cases: lines", "seed 2^53, -1, 2^64; 2^53-1")
def test_a_seed_is_an_integer_below_2_to_the_53(gateway: Served) -> None:
    lines = [chat_line(str(n), seed=value) for n, value in enumerate([2**53, -1, 2**64, "7", True, 0.5])]
    assert codes_of(gateway, lines) == ["invalid_seed"] * 6
    assert deliver(gateway, jsonl(chat_line("q", seed=0))).fates == {"q": None}
    largest = deliver(gateway, jsonl(chat_line("q", seed=2**53 - 1)))
    assert largest.fates == {"q": None}


@row("Line: fields of body", "n")
@row("Cases: lines", "n 4 with a seed")
def test_n_samples_are_the_choices_of_one_line_and_the_same_again(gateway: Served) -> None:
    lines = [chat_line(str(n), n=value) for n, value in enumerate([0, 65, True, "2", 1.5])]
    assert codes_of(gateway, lines) == ["invalid_n"] * 5
    first, again = (deliver(gateway, jsonl(chat_line("q", n=4))).output[0]["response"]["body"] for _ in range(2))
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert len(set(texts)) == 4
    assert texts == [choice["message"]["content"] for choice in again["choices"]]
    most = deliver(gateway, jsonl(chat_line("q", n=64))).output[0]["response"]["body"]["choices"]
    assert [choice["index"] for choice in most] == list(range(64))


IGNORED_VALUES: dict[str, Any] = {
    "user": "me",
    "metadata": {"a": "b"},
    "store": True,
    "parallel_tool_calls": False,
    "service_tier": "flex",
}


@row("Line: fields of body", "user")
@row("Line: fields of body", "metadata")
@row("Line: fields of body", "store")
@row("Line: fields of body", "parallel_tool_calls")
@row("Line: fields of body", "service_tier")
def test_five_fields_are_accepted_and_ignored(gateway: Served) -> None:
    assert set(IGNORED_VALUES) == IGNORED
    lines = [chat_line(name, **{name: value}) for name, value in IGNORED_VALUES.items()]
    lines += [chat_line(f"{name} null", **{name: None}) for name in IGNORED_VALUES]
    delivery = deliver(gateway, jsonl(*lines))
    assert set(delivery.fates.values()) == {None}
    usages = {line["response"]["body"]["usage"]["prompt_tokens"] for line in delivery.output}
    assert len(usages) == 1


OTHER_VALUES: dict[str, list[Any]] = {
    "stream": [True, 0, "false"],
    "logprobs": [True, 1],
    "top_logprobs": [1, False],
    "frequency_penalty": [0.1, False],
    "presence_penalty": [-0.1],
    "repetition_penalty": [1.1, 0, True],
    "logit_bias": [{"5": 1}, []],
    "stop": ["x", ["x"], [""]],
    "response_format": [{"type": "json_object"}, {}, {"type": "text", "x": 1}],
    "tool_choice": ["none", "required", {"type": "function"}],
    "echo": [True, 0],
    "suffix": ["x"],
    "best_of": [2, 0, True],
}


@row("Line: fields of body", "stream")
@row("Line: fields of body", "logprobs")
@row("Line: fields of body", "top_logprobs")
@row("Line: fields of body", "frequency_penalty")
@row("Line: fields of body", "presence_penalty")
@row("Line: fields of body", "repetition_penalty")
@row("Line: fields of body", "logit_bias")
@row("Line: fields of body", "stop")
@row("Line: fields of body", "response_format")
@row("Line: fields of body", "tool_choice")
@row("Line: fields of body", "echo")
@row("Line: fields of body", "suffix")
@row("Line: fields of body", "best_of")
@row("Cases: lines", "stream, stop, logprobs")
@row("Cases: lines", "stop null, tools null, seed null")
@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_a_field_is_accepted_at_its_neutral_value_and_refused_with_its_own_code(gateway: Served, name: str) -> None:
    assert set(OTHER_VALUES) == set(NEUTRAL)
    neutral = [*NEUTRAL[name], None]
    lines = [chat_line(f"neutral {n}", **{name: value}) for n, value in enumerate(neutral)]
    lines += [chat_line(f"other {n}", **{name: value}) for n, value in enumerate(OTHER_VALUES[name])]
    refused = [f"{name}_unavailable"] * len(OTHER_VALUES[name])
    assert codes_of(gateway, lines) == [*[None] * len(neutral), *refused]
    nulls = dict.fromkeys((*NEUTRAL, *IGNORED, "tools", "min_p", "n", "chat_template_kwargs"))
    assert code_of_chat(gateway, **nulls) is None


@row("Line: fields of body", "any other field")
def test_any_other_field_is_refused_by_name(gateway: Served) -> None:
    delivery = deliver(gateway, jsonl(GOOD, chat(functions=[]), chat_line("b", reasoning_effort="low")))
    assert [line["error"]["code"] for line in delivery.errors] == ["unsupported_parameter"] * 2
    assert "functions" in delivery.errors[0]["error"]["message"]


@row("One sampling per file", "same endpoint and sampling")
@row("One sampling per file", "omitted fields take the defaults")
@row("Error codes", "422 mixed_sampling")
@pytest.mark.parametrize(
    "change",
    [{"temperature": None}, {"top_p": 1}, {"top_k": 0}, {"min_p": 0.1}, {"max_tokens": 65}, {"seed": None}, {"n": 2}],
    ids=str,
)
def test_a_file_that_mixes_samplings_is_refused_whole(gateway: Served, change: dict[str, Any]) -> None:
    with client_of(gateway) as client, pytest.raises(openai.UnprocessableEntityError) as refused:
        order(client, jsonl(GOOD, chat(**change)))
    assert refused.value.code == "mixed_sampling"
    # A line that cannot be used does not count.
    assert codes_of(gateway, [chat(**change, stop=["x"])]) == ["stop_unavailable"]


@row("One sampling per file", "same endpoint and sampling")
def test_a_file_that_mixes_urls_is_refused_whole(gateway: Served) -> None:
    other = {"custom_id": "c", "method": "POST", "url": COMPLETIONS, "body": {**GOOD["body"], "prompt": "x"}}
    del other["body"]["messages"]
    with client_of(gateway) as client, pytest.raises(openai.UnprocessableEntityError) as refused:
        order(client, jsonl(GOOD, other))
    assert refused.value.code == "mixed_sampling"


@row("Decided: lines", "sampling identity")
def test_samplings_are_compared_by_their_values(gateway: Served) -> None:
    bare = {"temperature": None, "top_p": None, "top_k": None, "seed": 7}
    same: list[dict[str, Any]] = [bare, {**bare, "temperature": 1.0, "top_p": 1, "top_k": 0, "min_p": 0, "n": 1.0}]
    same += [{**bare, "top_k": -1, "seed": 7.0, "max_tokens": None, "max_completion_tokens": 64}]
    delivery = deliver(gateway, jsonl(*(chat_line(str(n), **body) for n, body in enumerate(same))))
    assert set(delivery.fates.values()) == {None}


@row("Decided: lines", "null equals omitted")
@row("Cases: lines", 'temperature NaN, top_p 1e999, n true, seed "7", max_tokens 64.5')
def test_numbers_are_numbers(gateway: Served) -> None:
    text = json.dumps(chat_line("line"))
    raw = [text.replace('"temperature": 0.6', '"temperature": NaN'), text.replace('"top_p": 0.95', '"top_p": 1e999')]
    lines: list[Any] = [each.encode() for each in raw]
    lines += [chat(n=True), chat_line("b", seed="7"), chat_line("c", max_tokens=64.5), chat_line("d", max_tokens=64.0)]
    assert codes_of(gateway, lines) == [
        "invalid_json", "invalid_json", "invalid_n", "invalid_seed", "invalid_max_tokens", None,
    ]  # fmt: skip
