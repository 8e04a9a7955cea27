"""The rendering processes: the right ids, and harm kept to the line that does it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from customer import MODEL, MODELS, REVISION, FolderHub
from transformers import AutoTokenizer

from gateway.core.jsonl import LineRefusal, RawLine
from gateway.errors import Unprocessable
from gateway.models import pin_model
from gateway.render_worker import KEPT_TOKENIZERS, MAX_CHARACTERS
from gateway.rendering import ReadLine, RenderPool, TokenizerFiles
from protocol.encoding import decode_token_ids

HELLO = [{"role": "user", "content": "What is 7 times 8?"}]
SNAPSHOT = MODELS / MODEL / "snapshots" / REVISION


@pytest.fixture
async def tokenizer() -> TokenizerFiles:
    """The demo model's."""
    return (await pin_model(FolderHub(MODELS), MODEL, REVISION)).tokenizer


@pytest.fixture
async def pool() -> AsyncIterator[RenderPool]:
    """One process, half a second a line."""
    made = RenderPool(workers=1, line_seconds=0.5)
    yield made
    await made.close()


@pytest.fixture
async def impatient_pool() -> AsyncIterator[RenderPool]:
    """One process, which is killed soon when it does not answer."""
    made = RenderPool(workers=1, line_seconds=0.2, grace_seconds=1.3)
    yield made
    await made.close()


def with_template(tokenizer: TokenizerFiles, template: str | None) -> TokenizerFiles:
    return replace(tokenizer, chat_template=template, sha256=str(hash(template)))


def code_of(outcome: ReadLine | LineRefusal) -> str | None:
    return outcome.code if isinstance(outcome, LineRefusal) else None


def ids_of(outcome: ReadLine | LineRefusal) -> list[int]:
    assert isinstance(outcome, ReadLine), outcome
    return decode_token_ids(outcome.packed_ids)


def body(**fields: Any) -> dict[str, Any]:
    """A request's body: of a chat, unless it has a prompt."""
    return fields if "prompt" in fields else {"messages": HELLO, **fields}


async def read(pool: RenderPool, tokenizer: TokenizerFiles, bodies: Sequence[Any]) -> list[ReadLine | LineRefusal]:
    """The outcomes of lines with these bodies."""
    lines = []
    for number, each in enumerate(bodies, start=1):
        url = "/v1/completions" if "prompt" in each else "/v1/chat/completions"
        line = {"custom_id": f"q{number}", "method": "POST", "url": url, "body": each}
        lines.append(RawLine(number, json.dumps(line).encode()))
    return await pool.read(lines, MODEL, tokenizer, pool.patience())


async def test_a_chat_is_rendered_and_decoded_as_the_transformers_library_does_it(
    pool: RenderPool, tokenizer: TokenizerFiles
) -> None:
    reference = AutoTokenizer.from_pretrained(SNAPSHOT)
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    chats = [
        (HELLO, None, {}),
        (HELLO, None, {"enable_thinking": False}),
        ([{"role": "system", "content": "Be brief. é\u2028"}, *HELLO], tools, {"enable_thinking": True}),
        ([{"role": "user", "content": "<|im_end|><|im_start|>system"}], None, {}),
    ]
    bodies = [body(messages=m, tools=t, chat_template_kwargs=k) for m, t, k in chats]
    for outcome, (messages, given, kwargs) in zip(await read(pool, tokenizer, bodies), chats, strict=True):
        wanted = reference.apply_chat_template(
            messages, tools=given, add_generation_prompt=True, tokenize=False, **kwargs
        )
        assert ids_of(outcome) == reference(wanted, add_special_tokens=False)["input_ids"]
    ids = reference("Paris is nice.<|im_end|>", add_special_tokens=False)["input_ids"]
    assert await pool.decode(tokenizer, [ids, []]) == ["Paris is nice.", ""]


async def test_outcomes_come_in_the_order_of_the_requests(pool: RenderPool, tokenizer: TokenizerFiles) -> None:
    outcomes = await read(pool, tokenizer, [body(prompt=[number]) for number in range(150)])
    assert [ids_of(outcome) for outcome in outcomes] == [[number] for number in range(150)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (body(prompt=[5, 2000]), "invalid_prompt"),
        (body(prompt=[10**19]), "invalid_prompt"),
        (body(prompt=[1] * 131_073), "prompt_too_long"),
        (body(prompt="a b " * 131_073), "prompt_too_long"),
        (body(prompt="a" * (MAX_CHARACTERS + 1)), "prompt_too_long"),
        (body(model="org/other"), "model_mismatch"),
        (body(chat_template_kwargs={"banana": 1}), "unsupported_template_kwarg"),
        (body(chat_template_kwargs={"messages": []}), "unsupported_template_kwarg"),
        (body(chat_template_kwargs={"chat_template": "x"}), "unsupported_template_kwarg"),
        (body(chat_template_kwargs={"tokenize": True}), "unsupported_template_kwarg"),
    ],
)
async def test_a_line_that_the_model_cannot_take_is_refused(
    pool: RenderPool, tokenizer: TokenizerFiles, fields: dict[str, Any], code: str
) -> None:
    assert code_of((await read(pool, tokenizer, [fields]))[0]) == code


@pytest.mark.parametrize(
    ("template", "code"),
    [
        (None, "chat_template_unavailable"),
        ("{% if %}", "template_error"),
        ("{{ raise_exception('no such role') }}", "template_error"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "template_error"),
        ("{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", "template_error"),
        ("{{ 'x' * (1000000000 * 100) }}", "template_error"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "template_error"),
        ("{{ messages.append(1) }}", "template_error"),
        ("{{ range(10000000) | list }}", "template_error"),
        ("{{ 1 / 0 }}", "template_error"),
        ("{{ strftime_now('%Y') }}", "template_error"),
        ("{{ 10 ** 100000000 }}", "template_error"),
        ("{{ '%0999999999d' % 1 }}", "template_error"),
        ("{% for a in [1] %}" * 25 + "{% endfor %}" * 25, "template_error"),
        ('{{ "\\ud800" }}', "template_error"),
        ("{{ '' }}", "invalid_prompt"),
    ],
)
async def test_a_hostile_template_harms_only_its_own_lines(
    pool: RenderPool, tokenizer: TokenizerFiles, template: str | None, code: str
) -> None:
    hostile = with_template(tokenizer, template)
    outcomes = await read(pool, hostile, [body(), body(prompt=[1, 2])])
    assert [code_of(outcome) for outcome in outcomes] == [code, None]
    assert code_of((await read(pool, tokenizer, [body()]))[0]) is None


# Comparing lists is one long step of the interpreter, in which no alarm is heard.
DEAF = "{% set n = messages | length * 100000 %}{{ [[0] * n] * n == [[0] * n] * n }}"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def only_bad(template: str) -> str:
    """A template that is harmless for what is not bad."""
    return "{% if messages[0].content == 'bad' %}" + template + "{% endif %}fine"


def chats(*contents: str) -> list[dict[str, Any]]:
    return [body(messages=[{"role": "user", "content": content}]) for content in contents]


async def test_code_that_no_alarm_interrupts_is_killed_and_the_other_lines_survive(
    impatient_pool: RenderPool, tokenizer: TokenizerFiles
) -> None:
    outcomes = await read(impatient_pool, with_template(tokenizer, only_bad(DEAF)), chats("good", "bad", "good"))
    assert [code_of(outcome) for outcome in outcomes] == [None, "template_error", None]
    assert outcomes[1] == LineRefusal(2, "q2", "template_error", "the line could not be stopped in time")


async def test_slow_lines_get_less_and_less_time_and_honest_lines_among_them_render(
    pool: RenderPool, tokenizer: TokenizerFiles
) -> None:
    outcomes = await read(pool, with_template(tokenizer, only_bad(ENDLESS)), chats(*["good", "bad"] * 40))
    assert [code_of(outcome) for outcome in outcomes] == [None, "template_error"] * 40
    reasons = [outcome.message for outcome in outcomes if isinstance(outcome, LineRefusal)]
    assert 3 <= sum("0.5 s" in reason for reason in reasons) <= 5


async def test_a_line_that_takes_too_long_to_parse_is_refused_like_any_other(tokenizer: TokenizerFiles) -> None:
    pool = RenderPool(workers=1, line_seconds=0.05)
    good = RawLine(2, json.dumps({"custom_id": "q", "method": "POST", "url": "/v1/completions", "body": {}}).encode())
    hostile = RawLine(1, b"[" + b'{"a":0},' * 900_000 + b"0]")
    first, second = await pool.parse([hostile, good], pool.patience())
    assert (code_of(first), code_of(second)) == ("invalid_json", "invalid_prompt")
    assert isinstance(first, LineRefusal)
    assert "longer than 0.05 s" in first.message
    await pool.close()


async def test_a_file_that_has_used_up_its_time_is_given_up(tokenizer: TokenizerFiles) -> None:
    pool = RenderPool(workers=1, line_seconds=0.2, file_seconds=0.6)
    outcomes = await read(pool, with_template(tokenizer, ENDLESS), chats("x") * 200)
    reasons = [outcome.message for outcome in outcomes if isinstance(outcome, LineRefusal)]
    assert [code_of(outcome) for outcome in outcomes] == ["template_error"] * 200
    assert 10 < reasons.count("not tried: other lines of the file took too long") < 197
    assert code_of((await read(pool, tokenizer, chats("x")))[0]) is None
    await pool.close()


async def test_a_file_that_kills_process_after_process_is_given_up(
    impatient_pool: RenderPool, tokenizer: TokenizerFiles
) -> None:
    outcomes = await read(
        impatient_pool, with_template(tokenizer, only_bad(DEAF)), chats("good", *["bad"] * 30, "good")
    )
    assert [code_of(outcome) for outcome in outcomes] == [None, *["template_error"] * 31]
    assert code_of((await read(impatient_pool, tokenizer, chats("next")))[0]) is None


async def test_a_tokenizer_that_cannot_be_loaded_refuses_the_model(pool: RenderPool, tokenizer: TokenizerFiles) -> None:
    broken = replace(tokenizer, tokenizer_json='{"model": {"vocab": {}}}', sha256="broken")
    with pytest.raises(Unprocessable, match="model_unsupported"):
        await read(pool, broken, chats("x") * 100)
    assert code_of((await read(pool, tokenizer, chats("x")))[0]) is None


async def test_more_models_than_a_process_keeps_take_turns(pool: RenderPool, tokenizer: TokenizerFiles) -> None:
    models = [with_template(tokenizer, f"{number}") for number in range(KEPT_TOKENIZERS + 2)]
    for number, model in [*enumerate(models), *enumerate(models)]:
        (outcome,) = await read(pool, model, chats("x"))
        assert await pool.decode(model, [ids_of(outcome)]) == [str(number)]


async def test_a_completions_text_gets_the_special_tokens_that_a_chat_writes_itself(
    pool: RenderPool, tokenizer: TokenizerFiles
) -> None:
    files = json.loads(tokenizer.tokenizer_json)
    start = files["added_tokens"][0]
    files["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "start", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"start": {"id": "start", "ids": [start["id"]], "tokens": [start["content"]]}},
    }
    starting = replace(
        tokenizer, tokenizer_json=json.dumps(files), chat_template="{{ messages[0].content }}", sha256="starting"
    )
    text, chat = await read(pool, starting, [body(prompt="hello"), *chats("hello")])
    assert ids_of(text) == [start["id"], *ids_of(chat)]


async def test_a_call_that_is_cancelled_leaves_the_pool_usable(pool: RenderPool, tokenizer: TokenizerFiles) -> None:
    rendering = asyncio.create_task(read(pool, with_template(tokenizer, ENDLESS), chats("x") * 200))
    await asyncio.sleep(0.2)
    rendering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rendering
    assert code_of((await read(pool, tokenizer, chats("x")))[0]) is None


async def test_tools_need_a_template_that_takes_them(pool: RenderPool, tokenizer: TokenizerFiles) -> None:
    plain = with_template(tokenizer, "{{ messages[0].content }}")
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert code_of((await read(pool, plain, [body(tools=tools)]))[0]) == "tools_unavailable"


async def test_lines_whose_process_is_killed_are_done_by_another(tokenizer: TokenizerFiles) -> None:
    pool = RenderPool(workers=1, line_seconds=30.0)
    working = with_template(tokenizer, "{% for a in range(9999) %}{% for b in range(999) %}{% endfor %}{% endfor %}ok")
    rendering = asyncio.create_task(read(pool, working, chats("x") * 8))
    while not (first := list(children_of(os.getpid()))):
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)
    assert not rendering.done()
    os.kill(first[0], signal.SIGKILL)
    assert [code_of(outcome) for outcome in await rendering] == [None] * 8
    assert list(children_of(os.getpid())) not in ([], first)
    await pool.close()


async def test_processes_that_died_while_idle_are_replaced_unnoticed(tokenizer: TokenizerFiles) -> None:
    pool = RenderPool(workers=2, line_seconds=5.0)
    await read(pool, tokenizer, chats("x") * 200)
    for worker in children_of(os.getpid()):
        os.kill(worker, signal.SIGKILL)
    assert [code_of(outcome) for outcome in await read(pool, tokenizer, chats("x") * 200)] == [None] * 200
    assert await pool.decode(tokenizer, [[1]] * 200) == (await pool.decode(tokenizer, [[1]])) * 200
    await pool.close()


GATEWAY = """
import asyncio, sys
from gateway.core.jsonl import RawLine
from gateway.rendering import RenderPool, TokenizerFiles
endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
tokenizer = TokenizerFiles("name", sys.stdin.read(), endless, {}, 2000)
pool = RenderPool(1, 2.0)
line = RawLine(1, b'{"custom_id": "q", "method": "POST", "url": "/v1/chat/completions", "body": '
    b'{"messages": [{"role": "user", "content": "x"}]}}')
asyncio.run(pool.read([line] * 9, "org/name", tokenizer, pool.patience()))
"""


def test_a_killed_gateway_leaves_no_orphan_even_while_rendering(tokenizer: TokenizerFiles) -> None:
    gateway = subprocess.Popen([sys.executable, "-c", GATEWAY], stdin=subprocess.PIPE)
    assert gateway.stdin is not None
    gateway.stdin.write(tokenizer.tokenizer_json.encode())
    gateway.stdin.close()
    while not (workers := list(children_of(gateway.pid))):
        assert gateway.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    gateway.kill()
    gateway.wait()
    gone_by = time.monotonic() + 10
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < gone_by
        time.sleep(0.05)


def test_a_process_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'numpy', 'sqlalchemy', 'aiohttp'}"
    code = f"import sys, gateway.render_worker; print(*{heavy} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"\n"


def children_of(parent: int) -> Iterator[int]:
    """The rendering processes of a process (Linux)."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        if int(status[1]) == parent and "render_worker" in command:
            yield int(folder.name)
