"""Messages → text, exactly as the pinned chat template says, and never more than it may. SPEC.md §6.

The Jinja environment is that of the transformers library (sandboxed, trim_blocks, lstrip_blocks, loop controls, its
generation block, tojson and raise_exception), so a template renders here as it does there. What would make a prompt
depend on the clock or on chance is left out on purpose: strftime_now, lipsum and the filter random.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

RESERVED_VARIABLES = frozenset(
    {
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template",
        "tokenize", "raise_exception", "strftime_now", "lipsum", "conversation", "bos_token", "eos_token",
        "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "additional_special_tokens",
        "extra_special_tokens",
    }
)  # fmt: skip
"""Variables that are ours to set, whatever a template reads."""

MAX_MESSAGE_CHARACTERS = 500

# A template is a stranger's program: in the sandbox it can raise about anything, while compiling (constants are folded
# then, and Python has limits of its own on what Jinja generates) as well as while rendering.
_FAULTS = (
    jinja2.TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NameError,
    RuntimeError, SyntaxError, TypeError, ValueError,
)  # fmt: skip


class TemplateFailed(Exception):
    """The template cannot be used, or refused the messages; the text is its own."""


def _failed(error: BaseException) -> TemplateFailed:
    """The error in UTF-8 and of bounded length: its text may be anything."""
    text = str(error)[:MAX_MESSAGE_CHARACTERS].encode(errors="replace").decode()
    return TemplateFailed(text or type(error).__name__)


class _Generation(Extension):
    """{% generation %} … {% endgeneration %} marks what an assistant wrote; rendering passes its text through."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.CallBlock:
        """A block with a scope of its own, as in the transformers library."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("_pass_through"), [], [], body)
        block.set_lineno(line)
        return block

    def _pass_through(self, caller: Macro) -> str:
        return caller()


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the library's signature, which templates call by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    del environment.globals["lipsum"]
    del environment.filters["random"]
    return environment


def _variables_read(template: str) -> set[str]:
    try:
        return meta.find_undeclared_variables(_environment().parse(template))
    except _FAULTS as error:
        raise _failed(error) from error


def template_variables(template: str) -> frozenset[str]:
    """The variables that a customer may set: those the template reads, less the reserved ones.

    Raises:
        TemplateFailed: the template does not parse.
    """
    return frozenset(_variables_read(template)) - RESERVED_VARIABLES


def reads_tools(template: str) -> bool:
    """Whether the template takes tool definitions.

    Raises:
        TemplateFailed: the template does not parse.
    """
    return "tools" in _variables_read(template)


class ChatTemplate:
    """A compiled chat template with the special tokens it may name."""

    def __init__(self, template: str, special_tokens: Mapping[str, str]) -> None:
        """Compile.

        Args:
            template: Jinja source.
            special_tokens: bos_token, eos_token and the like, as texts.

        Raises:
            TemplateFailed: the template does not compile.
        """
        try:
            self._template = _environment().from_string(template)
        except _FAULTS as error:
            raise _failed(error) from error
        self._special_tokens = dict(special_tokens)
        self._knows_developer = "developer" in template

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        max_characters: int,
    ) -> str:
        """The prompt of a conversation, ready for the assistant's turn.

        Args:
            messages: in normal form; developer becomes system where the template does not know that role.
            tools: definitions, or None.
            variables: chat_template_kwargs, already checked against template_variables.
            max_characters: longest text; the template is stopped there.

        Raises:
            TemplateFailed: with the template's own message, for too much output, or for text that UTF-8 cannot hold.
        """
        if not self._knows_developer:
            messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
        context = {
            **self._special_tokens,
            **variables,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": True,
        }
        try:
            text = self._bounded(context, max_characters)
            text.encode()
        except _FAULTS as error:
            raise _failed(error) from error
        return text

    def _bounded(self, context: Mapping[str, Any], max_characters: int) -> str:
        parts, size = [], 0
        for part in self._template.generate(context):
            size += len(part)
            if size > max_characters:
                raise TemplateFailed(f"the rendered prompt is longer than {max_characters} characters")
            parts.append(part)
        return "".join(parts)
