"""Writes the prompts of chats with one template, so that what clients wrote in them stays words.

A file may have a second template for chats with tools (`tokenizer.chat_template.tool_use`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from strata.text.answer_format import AnswerFormat
from strata.text.chat_guard import ChatGuard
from strata.text.chat_template import ChatMessage, ChatTemplate, TemplateValue
from strata.text.errors import TemplateError
from strata.text.tokenizer import Tokenizer
from strata.text.tool_values import Json


class ChatWriter:
    """A template and the guard that goes with it. Immutable."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Raises TemplateError when the template is not valid Jinja."""
        vocabulary = tokenizer.vocabulary
        self._tokenizer = tokenizer
        self._template = ChatTemplate(
            source,
            bos_token=vocabulary.token_text(vocabulary.bos_id),
            eos_token=vocabulary.token_text(vocabulary.eos_id),
        )
        self.format: AnswerFormat = self._template.format
        self._guard = ChatGuard(tokenizer.control_texts, source, self.format)

    def write(
        self,
        messages: Sequence[ChatMessage],
        variables: Mapping[str, TemplateValue],
        tools: Sequence[Json] = (),
    ) -> tuple[str, str]:
        """The prompt, and the mark that breaks up in it what is no control token. Raises
        TemplateError."""
        guard = self._guard
        try:
            mark = guard.choose_mark(messages, variables, tools)
        except ValueError as error:
            raise TemplateError(str(error)) from None
        safe = {
            name: guard.guard_text(value, mark) if isinstance(value, str) else value
            for name, value in variables.items()
        }
        rendered = self._template.render(
            [guard.guard_message(message, mark) for message in messages],
            safe,
            [guard.guard_json(tool, mark) for tool in tools],
        )
        return rendered, mark

    def encode(self, rendered: str, mark: str) -> list[int]:
        """The ids of what `write` returned. Raises TextError (lone surrogate)."""
        return self._tokenizer.encode_marked(rendered, mark, self._guard.markers)


def joined_format(plain: AnswerFormat, with_tools: AnswerFormat) -> AnswerFormat:
    """What a model says of its answers whose chats with tools have a template of their own."""
    return replace(
        with_tools,
        thinks=plain.thinks or with_tools.thinks,
        names=plain.names | with_tools.names,
    )
