"""The rendering processes: the right ids, and harm kept to the line that does it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from customer import MODEL, MODELS, REVISION, FolderHub
from transformers import AutoTokenizer

from gateway.models import pin_model
from gateway.rendering import RenderedPrompt, RenderPool, RenderRefusal, RenderRequest, TokenizerFiles

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


def with_template(tokenizer: TokenizerFiles, template: str | None) -> TokenizerFiles:
    return replace(tokenizer, chat_template=template, sha256=str(hash(template)))


def code_of(outcome: RenderedPrompt | RenderRefusal) -> str | None:
    return outcome.code if isinstance(outcome, RenderRefusal) else None


async def test_a_chat_is_rendered_and_decoded_as_the_transformers_library_does_it(
    pool: RenderPool, tokenizer: TokenizerFiles
) -> None:
    reference = AutoTokenizer.from_pretrained(SNAPSHOT)
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    chats = [
        (HELLO, None, {}),
        (HELLO, None, {"enable_thinking": False}),
        ([{"role": "system", "content": "Be brief. é\u2028"}, *HELLO], tools, {"enable_thinking": True}),
    ]
    requests = [RenderRequest(messages=m, tools=t, template_kwargs=k) for m, t, k in chats]
    for outcome, (messages, given, kwargs) in zip(await pool.render(tokenizer, requests), chats, strict=True):
        wanted = reference.apply_chat_template(
            messages, tools=given, add_generation_prompt=True, tokenize=False, **kwargs
        )
        assert isinstance(outcome, RenderedPrompt)
        assert outcome.token_ids == reference(wanted, add_special_tokens=False)["input_ids"]
    ids = reference("Paris is nice.<|im_end|>", add_special_tokens=False)["input_ids"]
    assert await pool.decode(tokenizer, [ids, []]) == ["Paris is nice.", ""]


async def test_outcomes_come_in_the_order_of_the_requests(pool: RenderPool, tokenizer: TokenizerFiles) -> None:
    requests = [RenderRequest(prompt=[number]) for number in range(150)]
    outcomes = await pool.render(tokenizer, requests)
    assert outcomes == [RenderedPrompt([number]) for number in range(150)]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (RenderRequest(prompt=[5, 2000]), "invalid_prompt"),
        (RenderRequest(prompt=[1] * 131_073), "prompt_too_long"),
        (RenderRequest(messages=HELLO, template_kwargs={"banana": 1}), "unsupported_template_kwarg"),
        (RenderRequest(messages=HELLO, template_kwargs={"messages": []}), "unsupported_template_kwarg"),
        (RenderRequest(messages=HELLO, template_kwargs={"chat_template": "x"}), "unsupported_template_kwarg"),
        (RenderRequest(messages=HELLO, template_kwargs={"tokenize": True}), "unsupported_template_kwarg"),
    ],
)
async def test_a_line_that_the_model_cannot_take_is_refused(
    pool: RenderPool, tokenizer: TokenizerFiles, request_: RenderRequest, code: str
) -> None:
    assert code_of((await pool.render(tokenizer, [request_]))[0]) == code


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
    ],
)
async def test_a_hostile_template_harms_only_its_own_lines(
    pool: RenderPool, tokenizer: TokenizerFiles, template: str | None, code: str
) -> None:
    hostile = with_template(tokenizer, template)
    outcomes = await pool.render(hostile, [RenderRequest(messages=HELLO), RenderRequest(prompt=[1, 2])])
    assert [code_of(outcome) for outcome in outcomes] == [code, None]
    assert code_of((await pool.render(tokenizer, [RenderRequest(messages=HELLO)]))[0]) is None


async def test_code_that_no_alarm_interrupts_is_killed_and_the_other_lines_survive(
    pool: RenderPool, tokenizer: TokenizerFiles
) -> None:
    slow = "{% if messages[0].content == 'bad' %}{{ (10 ** (messages | length * 100000000)) % 7 }}{% endif %}fine"
    requests = [RenderRequest(messages=[{"role": "user", "content": text}]) for text in ("good", "bad", "good")]
    outcomes = await pool.render(with_template(tokenizer, slow), requests)
    assert [code_of(outcome) for outcome in outcomes] == [None, "template_error", None]


async def test_tools_need_a_template_that_takes_them(pool: RenderPool, tokenizer: TokenizerFiles) -> None:
    plain = with_template(tokenizer, "{{ messages[0].content }}")
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert code_of((await pool.render(plain, [RenderRequest(messages=HELLO, tools=tools)]))[0]) == "tools_unavailable"


async def test_a_worker_that_is_killed_while_rendering_is_replaced(pool: RenderPool, tokenizer: TokenizerFiles) -> None:
    await pool.render(tokenizer, [RenderRequest(prompt=[1])])
    slow = with_template(tokenizer, "{% for a in range(9999) %}{% for b in range(999) %}{% endfor %}{% endfor %}ok")
    rendering = asyncio.create_task(pool.render(slow, [RenderRequest(messages=HELLO)] * 3))
    await asyncio.sleep(0.05)
    for worker in children_of(os.getpid()):
        os.kill(worker, signal.SIGKILL)
    assert len(await rendering) == 3
    assert code_of((await pool.render(tokenizer, [RenderRequest(messages=HELLO)]))[0]) is None


def children_of(parent: int) -> list[int]:
    """The rendering processes of this one (Linux)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        if int(status[1]) == parent and "render_worker" in command:
            found.append(int(folder.name))
    return found
