"""Messages → text, exactly as the pinned chat template says, and never more than it may. SPEC.md §6.

The Jinja environment is that of the transformers library (sandboxed, trim_blocks, lstrip_blocks, loop controls, its
tojson and raise_exception), so a template renders here as it does there. One thing is left out on purpose:
strftime_now, because a prompt must not depend on the clock.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

RESERVED_VARIABLES = frozenset(
    {
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token",
        "pad_token", "unk_token", "chat_template", "tokenize", "raise_exception", "strftime_now", "conversation",
    }
)  # fmt: skip
"""Variables that are ours to set, whatever a template reads."""


class TemplateFailed(Exception):
    """The template cannot be used, or refused the messages; the text is its own."""


class _Generation(Extension):
    """{% generation %} … {% endgeneration %} marks what an assistant wrote; rendering passes its body through."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:  # noqa: FBT001, FBT002
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def template_variables(template: str) -> frozenset[str]:
    """The variables that a customer may set: those the template reads, less the reserved ones.

    Raises:
        TemplateFailed: the template does not parse.
    """
    try:
        tree = _environment().parse(template)
    except jinja2.TemplateError as error:
        raise TemplateFailed(str(error)) from error
    return frozenset(meta.find_undeclared_variables(tree)) - RESERVED_VARIABLES


def reads_tools(template: str) -> bool:
    """Whether the template takes tool definitions.

    Raises:
        TemplateFailed: the template does not parse.
    """
    try:
        return "tools" in meta.find_undeclared_variables(_environment().parse(template))
    except jinja2.TemplateError as error:
        raise TemplateFailed(str(error)) from error


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
        except jinja2.TemplateError as error:
            raise TemplateFailed(str(error)) from error
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
            TemplateFailed: with the template's own message, or for too much output.
        """
        if not self._knows_developer:
            messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
        context = {
            **self._special_tokens,
            **variables,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": True,
        }
        parts, size = [], 0
        try:
            for part in self._template.generate(context):
                size += len(part)
                if size > max_characters:
                    raise TemplateFailed(f"the rendered prompt is longer than {max_characters} characters")
                parts.append(part)
        except TemplateFailed:
            raise
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise TemplateFailed(f"{error}"[:500] or type(error).__name__) from error
        except (RecursionError, MemoryError) as error:
            raise TemplateFailed(type(error).__name__) from error
        return "".join(parts)
