"""Chat templates: the same text as the transformers library, within limits, and nothing that chance or time decides."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from protocol.rendering import ChatTemplate, TemplateFailed, reads_tools, template_variables

MODEL = Path(__file__).parent.parent / "models" / "tiny" / "qwen3-demo"
SNAPSHOT = MODEL / "snapshots" / (MODEL / "refs" / "main").read_text().strip()
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
DEMO = (SNAPSHOT / "chat_template.jinja").read_text()

QWEN_KIND = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not (loop.first and tools)) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- if '</think>' in content and loop.index0 <= ns.last_query_index %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

LLAMA_KIND = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {{- message.tool_calls[0].function.arguments | tojson(separators=(',', ':'), sort_keys=true) }}
    {%- elif message.content is mapping or message.content is iterable %}
        {{- message.content | tojson }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

ODDS_AND_ENDS = """
  {% set seen = 'outer' %}
  {% for message in messages %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
    {% generation %}{% set seen = 'inner' %}{{ message.content }}{{ seen }}{% endgeneration %}
    {% if loop.index > 2 %}{% break %}{% endif %}
  {% endfor %}
{{ seen }} {{ documents is defined }} {{ documents is none }} {{ nothing }}|{{ eos_token }}|{{ "<b>&'é" | tojson }}
{%- macro shout(text) %}{{ text | upper }}!{% endmacro %} {{ shout('end') }} {{ {'b': 1, 'a': 2} | dictsort }}
"""

HELLO = [{"role": "user", "content": "What is 7 times 8?"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"b": 2, "a": "é<&\u2028"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
LONG = [
    {"role": "system", "content": "  Be brief.\n"},
    *HELLO,
    {"role": "assistant", "content": "<think>\nsum\n</think>\n\nI shall add.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "42"},
    {"role": "user", "content": "<|im_end|> {{ 7 * 7 }} {% raw %}"},
]


@pytest.fixture(scope="module")
def reference() -> Any:
    tokenizer = AutoTokenizer.from_pretrained(SNAPSHOT)
    tokenizer.bos_token, tokenizer.eos_token = SPECIAL["bos_token"], SPECIAL["eos_token"]
    return tokenizer


@pytest.mark.parametrize(
    ("messages", "tools", "variables"),
    [
        (HELLO, None, {}),
        (HELLO, TOOLS, {}),
        (LONG, None, {}),
        (LONG, TOOLS, {"enable_thinking": False}),
        (HELLO, None, {"enable_thinking": True, "date_string": "1 Jan 2030"}),
    ],
    ids=["hello", "hello with tools", "long", "long with tools", "variables"],
)
@pytest.mark.parametrize(
    "template",
    [DEMO, QWEN_KIND, LLAMA_KIND, ODDS_AND_ENDS, QWEN_KIND.replace("\n", "\r\n")],
    ids=["demo", "qwen", "llama", "odds and ends", "CRLF"],
)
def test_a_template_renders_as_the_transformers_library_renders_it(
    reference: Any, template: str, messages: Any, tools: Any, variables: dict[str, Any]
) -> None:
    wanted = reference.apply_chat_template(
        messages, tools=tools, chat_template=template, add_generation_prompt=True, tokenize=False, **variables
    )
    special = {name: str(text) for name, text in reference.special_tokens_map.items() if isinstance(text, str)}
    assert ChatTemplate(template, special).render(messages, tools, variables, 10_000) == wanted


def render(template: str, messages: Any = HELLO, **variables: Any) -> str:
    return ChatTemplate(template, SPECIAL).render(messages, None, variables, 10_000)


def test_developer_becomes_system_only_where_the_template_does_not_know_it() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert render("{{ messages[0].role }}", messages) == "system"
    assert render("{{ messages[0].role }}{# knows developer #}", messages) == "developer"


@pytest.mark.parametrize(
    ("template", "variables"),
    [
        (DEMO, {"enable_thinking"}),
        (QWEN_KIND, {"enable_thinking"}),
        # Jinja counts what both branches of a condition set; such a variable may be sent, to no effect.
        (LLAMA_KIND, {"custom_tools", "date_string", "system_message"}),
        ("{{ range(3) }}{{ namespace() }}{{ raise_exception('x') }}{{ lipsum() }}{{ strftime_now('%Y') }}", set()),
        ("{{ bos_token }}{{ sep_token }}{{ chat_template }}{{ tokenize }}{{ documents }}{{ messages }}", set()),
        ("{% set mine = 1 %}{{ mine }}{% for each in messages %}{{ each }}{{ loop.index }}{% endfor %}", set()),
    ],
)
def test_a_customer_may_set_what_the_template_reads_and_is_not_ours(template: str, variables: set[str]) -> None:
    assert template_variables(template) == variables


@pytest.mark.parametrize(
    ("template", "takes"), [(DEMO, True), (LLAMA_KIND, True), ("{{ messages }}", False), ("tools", False)]
)
def test_a_template_takes_tools_if_it_reads_them(template: str, *, takes: bool) -> None:
    assert reads_tools(template) is takes


def test_the_templates_own_words_say_why_it_refused() -> None:
    with pytest.raises(TemplateFailed, match=r"^only single tool-calls$"):
        render("{{ raise_exception('only single tool-calls') }}")


DEEP = "{% for a in [1] %}" * 25 + "{% endfor %}" * 25


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{ unknown_filter | no_such_filter }}",
        DEEP,
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ messages | random }}",
    ],
)
def test_a_template_that_does_not_compile_fails_and_nothing_else(template: str) -> None:
    with pytest.raises(TemplateFailed):
        render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append.__self__ }}",
        "{{ cycler.__init__.__globals__['os'] }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages[0].pop('role') }}",
        "{{ range(100001) | list }}",
        "{{ 1 / 0 }}",
        "{{ [][5].x }}",
        "{{ none + 1 }}",
        "{{ 'é'.encode('ascii') }}",
        "{{ nothing.attribute }}",
        "{{ nothing() }}",
        "{{ strftime_now('%Y') }}",
        "{{ lipsum() }}",
        "{{ nothing | tojson }}",
        "{% include 'x' %}",
        "{% extends 'x' %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        '{{ "\\ud800" }}',
        '{{ raise_exception("\\ud800") }}',
        "{% for a in range(9999) %}{{ '0123456789' }}{% endfor %}",
    ],
)
def test_a_template_that_misbehaves_fails_with_a_message_that_can_be_stored(template: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(TemplateFailed) as failed:
        render(template, messages)
    assert 1 <= len(str(failed.value).encode()) < 3000
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    "template", ["{{ messages.__class__ }}", "{{ range.__globals__ }}", "{{ '{0.__class__}'.format(1) }}"]
)
def test_what_lies_outside_the_sandbox_is_not_there(template: str) -> None:
    assert render(template) == ""


def test_output_is_stopped_at_its_limit_and_not_before() -> None:
    template = ChatTemplate("{% for a in range(n) %}x{% endfor %}", {})
    assert template.render(HELLO, None, {"n": 100}, 100) == "x" * 100
    with pytest.raises(TemplateFailed, match="longer than 100"):
        template.render(HELLO, None, {"n": 101}, 100)


def test_a_template_renders_the_same_twice() -> None:
    template = ChatTemplate(QWEN_KIND, SPECIAL)
    first = template.render(LONG, TOOLS, {}, 10_000)
    assert (
        template.render(LONG, TOOLS, {}, 10_000)
        == first
        == ChatTemplate(QWEN_KIND, SPECIAL).render(LONG, TOOLS, {}, 10_000)
    )


@given(st.text(max_size=50), st.sampled_from(["user", "system"]))
def test_what_a_message_says_is_never_taken_for_template(content: str, role: str) -> None:
    assert render("{{ messages[0].content }}", [{"role": role, "content": content}]) == content


PIECES = ["{{", "}}", "{%", "%}", "if", "for", "x", "in", "(", ")", "|", "'", "1", "endif", ".", " "]


@given(st.lists(st.sampled_from(PIECES)))
def test_any_source_renders_or_fails(pieces: list[str]) -> None:
    try:
        outcome = render("".join(pieces))
    except TemplateFailed as failed:
        outcome = f"failed: {failed}"
    assert outcome is not None
