"""What must hold for any input: never a 500, never a hang, every line in one place, every refusal with a code."""

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from customer import chat_line, jsonl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invariants import violations
from ordering import deliver
from served import Served, served

ANSWER_SECONDS = 30
FILES, BATCHES = "/api/openai/v1/files", "/api/openai/v1/batches"
few = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=12,
)
NAMES = ["messages", "prompt", "n", "seed", "temperature", "top_k", "stop", "tools", "chat_template_kwargs", "model"]
BODIES = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=10), JSON, max_size=4)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One with miners that work by themselves, and no quotas."""
    limits = {"max_quotes_per_day": 10**6, "request_burst": 10**6, "max_open_orders": 10**6}
    with served(tmp_path_factory.mktemp("gateway"), **limits) as running:
        running.run(running.world.credit(10**12))
        yield running
        assert running.run(violations(running.world.services.database)) == []


def ask(gateway: Served, method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> Any:
    """Status and parsed answer; a hang is an error."""
    host = gateway.world.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=ANSWER_SECONDS)
    try:
        headers = {"Authorization": f"Bearer {gateway.world.api_key}", "Content-Type": content_type}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def assert_answered(status: int, answer: Any) -> None:
    """A success, or a refusal in OpenAI's shape with a code."""
    assert status < 500, answer
    if status != 200:
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert answer["error"]["code"]
        assert answer["error"]["message"]


def lines() -> st.SearchStrategy[bytes]:
    """Lines of all kinds: good, with a changed body, of odd JSON, of odd bytes."""
    good = st.builds(lambda name: jsonl(chat_line(name))[:-1], st.text(min_size=1, max_size=5))
    changed = st.builds(lambda body: jsonl(chat_line("changed", **body))[:-1], BODIES)
    odd = JSON.map(lambda value: json.dumps(value).encode())
    return good | changed | odd | st.binary(max_size=40).map(lambda data: data.replace(b"\n", b" "))


@few
@given(st.lists(lines(), min_size=1, max_size=12), st.sampled_from([b"\n", b"\r\n"]))
def test_every_line_of_any_file_ends_in_exactly_one_place(gateway: Served, drawn: list[bytes], ending: bytes) -> None:
    first = jsonl(chat_line("the first"))[:-1]
    delivery = deliver(gateway, ending.join([first, *drawn]))
    counts = delivery.batch.request_counts
    assert counts is not None
    wanted = 1 + sum(bool(line.removesuffix(b"\r").strip()) for line in drawn)
    assert counts.total == wanted == len(delivery.output) + len(delivery.errors)
    assert (counts.completed, counts.failed) == (len(delivery.output), len(delivery.errors))
    assert len({line["custom_id"] for line in delivery.output}) == len(delivery.output)
    assert all(line["error"]["code"] and line["error"]["message"] for line in delivery.errors)
    numbers = [line["line"] for line in delivery.errors]
    assert numbers == sorted(set(numbers))


@few
@given(st.binary(max_size=400))
def test_any_bytes_are_a_batch_or_a_refusal_with_a_code(gateway: Served, data: bytes) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
    form += b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + data + b"\r\n--x--\r\n"
    status, file = ask(gateway, "POST", FILES, form, "multipart/form-data; boundary=x")
    if b"\r\n--x" in data:
        return
    assert (status, file["bytes"]) == (200, len(data))
    order = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert_answered(*ask(gateway, "POST", BATCHES, json.dumps(order).encode()))


@few
@given(JSON | st.dictionaries(st.text(max_size=70), st.text(max_size=520), max_size=18))
def test_any_metadata_is_echoed_exactly_or_refused(gateway: Served, metadata: Any) -> None:
    order = {
        "input_file_id": a_file(gateway),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": metadata,
    }
    status, answer = ask(gateway, "POST", BATCHES, json.dumps(order).encode())
    assert_answered(status, answer)
    if status == 200:
        assert answer["metadata"] == metadata
    elif answer["error"]["code"] != "invalid_json":  # NaN and half surrogates are no JSON
        assert answer["error"]["code"] in ("invalid_metadata", "invalid_revision", "model_not_found")


def a_file(gateway: Served) -> str:
    """The id of a file with one good line, on which nobody works before its beacon round: it makes no files."""
    form = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
    form += b'Content-Disposition: form-data; name="file"\r\n\r\n' + jsonl(chat_line("q", seed=None)) + b"\r\n--x--\r\n"
    return str(ask(gateway, "POST", FILES, form, "multipart/form-data; boundary=x")[1]["id"])


@few
@given(JSON)
def test_any_body_of_an_order_is_answered(gateway: Served, value: Any) -> None:
    for body in (value, {"input_file_id": value, "endpoint": value, "completion_window": value}):
        assert_answered(*ask(gateway, "POST", BATCHES, json.dumps(body).encode()))


PIECES = st.sampled_from(
    [
        b"--x\r\n",
        b"--x--\r\n",
        b"\r\n",
        b'Content-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n',
        b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\n{}\r\n',
        b'Content-Disposition: form-data; name="expires_after[seconds]"\r\n\r\n3600\r\n',
        b'Content-Disposition: form-data; filename="\xff"\r\n\r\n',
        b"Content-Disposition: attachment\r\n\r\n",
        b"Content-Type: text/plain\r\n",
    ]
)


@few
@given(st.lists(PIECES | st.binary(max_size=20), max_size=10).map(b"".join))
def test_any_form_is_a_file_or_a_refusal_with_a_code(gateway: Served, body: bytes) -> None:
    status, answer = ask(gateway, "POST", FILES, body, "multipart/form-data; boundary=x")
    assert_answered(status, answer)
    if status == 200:
        assert ask(gateway, "GET", f"{FILES}/{answer['id']}")[1] == answer


@few
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=6),
    st.sampled_from(["asc", "desc"]),
    st.sampled_from([None, "batch", "batch_output"]),
)
def test_pages_of_any_sizes_show_everything_once(
    gateway: Served, limits: list[int], direction: str, purpose: str | None
) -> None:
    fixed = {"order": direction} | ({} if purpose is None else {"purpose": purpose})
    whole = [each["id"] for each in ask(gateway, "GET", f"{FILES}?{urlencode({**fixed, 'limit': 100})}")[1]["data"]]
    seen: list[str] = []
    for limit in limits:
        query = {**fixed, "limit": limit} | ({"after": seen[-1]} if seen else {})
        _, page = ask(gateway, "GET", f"{FILES}?{urlencode(query)}")
        seen += [each["id"] for each in page["data"]]
        assert page["has_more"] == (len(whole) == 100 or len(seen) < len(whole))
        ends = (seen[-len(page["data"])], seen[-1]) if page["data"] else (None, None)
        assert (page["first_id"], page["last_id"]) == ends
        if not page["has_more"]:
            break
    assert seen == whole[: len(seen)]


@few
@given(st.dictionaries(st.sampled_from(["limit", "after", "order", "purpose", "x"]), st.text(max_size=12), max_size=3))
def test_any_query_of_a_list_is_answered(gateway: Served, query: dict[str, str]) -> None:
    for path in (FILES, BATCHES):
        assert_answered(*ask(gateway, "GET", f"{path}?{urlencode(query, errors='surrogatepass')}"))
