"""Lines of the output and error files."""

import json
from dataclasses import replace

from gateway.core.results import (
    DeliveredLine,
    DeliveredSample,
    OrderFacts,
    output_line,
    refused_line,
    short_line,
)

FACTS = OrderFacts("abc", "/v1/chat/completions", "tiny/model", frozenset({9}), 1_762_685_000)
LINE = DeliveredLine(
    2, "q2", 24, [DeliveredSample(0, [5, 6, 9], "56"), DeliveredSample(3, [5, 6], "no\u2028\u2029\u0085é")]
)


def test_a_chat_line_has_openais_shape() -> None:
    line = json.loads(output_line(FACTS, LINE))
    body = line["response"]["body"]
    assert line["id"].startswith("batch_req_")
    assert (line["custom_id"], line["error"], line["response"]["status_code"]) == ("q2", None, 200)
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"], body["created"]) == ("chat.completion", "tiny/model", 1_762_685_000)
    assert body["choices"] == [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "56"}, "logprobs": None},
        {
            "index": 3,
            "finish_reason": "length",
            "message": {"role": "assistant", "content": "no\u2028\u2029\u0085é"},
            "logprobs": None,
        },
    ]
    assert body["usage"] == {"prompt_tokens": 24, "completion_tokens": 5, "total_tokens": 29}


def test_a_completions_line_has_text() -> None:
    body = json.loads(output_line(replace(FACTS, endpoint="/v1/completions"), LINE))["response"]["body"]
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"][0] == {"index": 0, "finish_reason": "stop", "text": "56", "logprobs": None}


def test_line_separators_are_escaped_and_other_text_is_utf_8() -> None:
    data = output_line(FACTS, LINE)
    assert b"\\u2028\\u2029\\u0085\xc3\xa9" in data
    assert data.decode().splitlines() == [data.decode().removesuffix("\n")]


def test_the_same_line_gives_the_same_bytes_and_another_line_other_ids() -> None:
    first, again = output_line(FACTS, LINE), output_line(FACTS, LINE)
    other = output_line(FACTS, replace(LINE, line_number=3))
    assert first == again
    assert json.loads(first)["id"] != json.loads(other)["id"]


def test_error_lines_are_those_of_the_specification() -> None:
    message = "stop is not offered (only its neutral value is accepted)"
    assert refused_line(3, "q3", "stop_unavailable", message).decode() == (
        '{"custom_id":"q3","error":{"code":"stop_unavailable",'
        '"message":"stop is not offered (only its neutral value is accepted)"},"line":3}\n'
    )
    assert short_line("q2", 1, 0, 1).decode() == (
        '{"custom_id":"q2","prompt_index":1,"error":{"code":"missing_samples","message":"0 of 1 samples delivered"}}\n'
    )
