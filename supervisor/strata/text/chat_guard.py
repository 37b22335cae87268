"""Breaks up control texts and the template's own tags in everything of a chat that a client wrote
(`control_guard.py`): messages, calls, definitions of tools, variables.

Tags such as `<think>` count only where the template writes them. Two kinds of reasoning in an
earlier answer are therefore told apart before: where the template knows `reasoning_content`, an
answer that still holds `<think>...</think>` is split here, as the template itself would; where it
does not, it must see the tags, and they are left alone in what an assistant said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from strata.text import reasoning
from strata.text.answer_format import AnswerFormat
from strata.text.chat_template import ChatMessage, PastCall, TemplateValue
from strata.text.control_guard import ControlGuard
from strata.text.tool_values import Json

# Tags of templates that files list as ordinary tokens.
TAGS = (
    (reasoning.OPEN, reasoning.CLOSE),
    ("<tool_call>", "</tool_call>"),
    ("<tool_response>", "</tool_response>"),
    ("<tools>", "</tools>"),
)


class ChatGuard:
    """The guard of one model's chats. Immutable."""

    def __init__(self, control_texts: Sequence[str], template: str, shape: AnswerFormat) -> None:
        # A template that writes or looks for one of a pair knows what the other means.
        self.markers = frozenset(
            tag for pair in TAGS if any(tag in template for tag in pair) for tag in pair
        )
        self._full = ControlGuard([*control_texts, *sorted(self.markers)])
        self._splits_reasoning = shape.thinks and shape.knows("reasoning_content")
        self._assistant = self._full
        if shape.thinks and not self._splits_reasoning:
            kept = {reasoning.OPEN, reasoning.CLOSE}
            texts = [text for text in control_texts if text not in kept]
            self._assistant = ControlGuard([*texts, *sorted(self.markers - kept)])

    def choose_mark(
        self,
        messages: Sequence[ChatMessage],
        variables: Mapping[str, TemplateValue],
        tools: Sequence[Json],
    ) -> str:
        """A mark that none of these holds. Raises ValueError when all are taken."""
        return self._full.choose_mark(_all_texts(messages, variables, tools))

    def guard_message(self, message: ChatMessage, mark: str) -> ChatMessage:
        """The message as the template may see it."""
        full = self._full
        is_assistant = message.role == "assistant"
        if is_assistant and self._splits_reasoning and message.reasoning is None:
            message = _split_reasoning(message)
        guard = self._assistant if is_assistant else full
        return replace(
            message,
            content=guard.break_up(message.content, mark),
            name=_optional(full, message.name, mark),
            reasoning=_optional(full, message.reasoning, mark),
            call_id=_optional(full, message.call_id, mark),
            calls=tuple(self._guard_call(call, mark) for call in message.calls),
        )

    def guard_text(self, text: str, mark: str) -> str:
        return self._full.break_up(text, mark)

    def guard_json(self, value: Json, mark: str) -> Json:
        """The same value with every text in it, keys too, broken up."""
        match value:
            case str():
                return self._full.break_up(value, mark)
            case Mapping():
                return {
                    self._full.break_up(key, mark): self.guard_json(item, mark)
                    for key, item in value.items()
                }
            case list() | tuple():
                return [self.guard_json(item, mark) for item in value]
            case _:
                return value

    def _guard_call(self, call: PastCall, mark: str) -> PastCall:
        arguments = self.guard_json(call.arguments, mark)
        if not isinstance(arguments, str | Mapping):
            raise TypeError("a guarded value changed its type")
        return PastCall(
            self._full.break_up(call.name, mark),
            arguments,
            _optional(self._full, call.call_id, mark),
        )


def _optional(guard: ControlGuard, text: str | None, mark: str) -> str | None:
    return None if text is None else guard.break_up(text, mark)


def _split_reasoning(message: ChatMessage) -> ChatMessage:
    before, tag, after = message.content.partition(reasoning.CLOSE)
    if not tag:
        return message
    words = before.rpartition(reasoning.OPEN)[2].strip("\n")
    return replace(message, reasoning=words, content=after.lstrip("\n"))


def _all_texts(
    messages: Sequence[ChatMessage],
    variables: Mapping[str, TemplateValue],
    tools: Sequence[Json],
) -> Iterator[str]:
    for message in messages:
        yield message.content
        for text in (message.name, message.reasoning, message.call_id):
            if text is not None:
                yield text
        for call in message.calls:
            yield call.name
            yield call.call_id or ""
            yield from _texts(call.arguments)
    yield from (value for value in variables.values() if isinstance(value, str))
    yield from _texts(tools)


def _texts(value: Json) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for key, item in value.items():
                yield key
                yield from _texts(item)
        case list() | tuple():
            for item in value:
                yield from _texts(item)
        case _:
            pass
