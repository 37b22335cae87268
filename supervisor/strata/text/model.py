"""`TextModel`: all that turns text into token ids and back for one GGUF file.

It is built once, from the file's metadata, and never changes. What it does not do: it knows no
weights, no requests and no HTTP. Its methods are synchronous; long texts belong in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from strata.text import reasoning
from strata.text.answer import AnswerShape
from strata.text.answer_format import AnswerFormat
from strata.text.chat_template import ChatMessage, TemplateValue
from strata.text.chat_writer import ChatWriter, joined_format
from strata.text.errors import TemplateError
from strata.text.gguf_metadata import FileMetadata, MetadataValue
from strata.text.tokenizer import LONG_KEYS, Tokenizer, build_tokenizer
from strata.text.tool_calls import CLOSE, OPEN
from strata.text.tool_values import Json
from strata.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

NO_TEMPLATE = "model has no chat template; use /v1/completions with a prompt of your own"


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation. `is_reasoning`: it ends where the model's reasoning begins."""

    ids: list[int]
    is_reasoning: bool


class TextModel:
    """Tokenizer, chat template and stop ids of one model file. Immutable and thread-safe."""

    def __init__(self, metadata: Mapping[str, MetadataValue]) -> None:
        """Raises TokenizerError for a vocabulary that cannot be served."""
        self.tokenizer: Tokenizer = build_tokenizer(metadata)
        self.vocabulary: Vocabulary = self.tokenizer.vocabulary
        self.context_length = _context_length(metadata)
        self._chat: ChatWriter | None = None
        self._tool_chat: ChatWriter | None = None  # for chats with tools, where it is another
        self.template_problem = NO_TEMPLATE  # why there are no chats, where there are none
        self.answer_format = AnswerFormat()  # what the templates say of answers
        source = metadata.get("tokenizer.chat_template")
        tool_source = metadata.get("tokenizer.chat_template.tool_use")
        if isinstance(source, str):
            try:
                self._chat = ChatWriter(source, self.tokenizer)
                self.answer_format = self._chat.format
            except TemplateError as error:
                self.template_problem = str(error)
        if self._chat is not None and isinstance(tool_source, str):
            try:
                self._tool_chat = ChatWriter(tool_source, self.tokenizer)
                self.answer_format = joined_format(self._chat.format, self._tool_chat.format)
            except TemplateError as error:
                log.warning("the file's own template for tools is left out: %s", error)

    @classmethod
    def from_gguf(cls, path: Path) -> TextModel:
        """Reads the metadata of `path`.

        Raises MetadataError for a file that is no GGUF or is damaged, TokenizerError for a
        vocabulary that cannot be served (the text lists what can). A missing chat template is no
        error here: chats are refused with 400, completions work.
        """
        metadata = FileMetadata(
            path,
            lambda key: (
                key.startswith("tokenizer.")
                or key == "general.architecture"
                or key.endswith(".context_length")
            ),
            LONG_KEYS,
        )
        return cls(metadata)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a text."""
        return self.vocabulary.stop_ids

    @property
    def has_chat(self) -> bool:
        return self._chat is not None

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        variables: Mapping[str, TemplateValue] | None = None,
    ) -> list[int]:
        """Prompt ids of a conversation, up to the opening of the assistant's turn.

        Only control tokens that the template itself writes become control tokens. Raises
        TemplateError (no template, or it refuses the messages), TextError (lone surrogate).
        """
        return self.prepare_chat(messages, variables).ids

    def prepare_chat(
        self,
        messages: Sequence[ChatMessage],
        variables: Mapping[str, TemplateValue] | None = None,
        *,
        tools: Sequence[Json] = (),
        opening: str = "",
    ) -> ChatPrompt:
        """The prompt of a conversation in which `tools` are offered. `opening` is what the
        assistant's turn begins with, in words that count as the template's own. Raises like
        `encode_chat`.
        """
        writer = self._writer(has_tools=bool(tools))
        rendered, mark = writer.write(messages, variables or {}, tools)
        ids = writer.encode(rendered + opening, mark)
        # The same words of a client would have a mark in them.
        return ChatPrompt(self._with_bos(ids), rendered.rstrip().endswith(reasoning.OPEN))

    def revealed_ids(self, shape: AnswerShape) -> frozenset[int]:
        """Tokens that a person does not see and that tell the parts of an answer of this shape
        apart."""
        tags = {reasoning.OPEN, reasoning.CLOSE} if shape.thinks else set()
        if shape.tools is not None:
            tags |= {OPEN, CLOSE}
        vocabulary = self.vocabulary
        return frozenset(i for i in vocabulary.hidden if vocabulary.tokens[i] in tags)

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        variables: Mapping[str, TemplateValue] | None = None,
    ) -> str:
        """The prompt of a conversation as text. Raises like `encode_chat`."""
        rendered, mark = self._writer(has_tools=False).write(messages, variables or {})
        return rendered.replace(mark, "")

    def encode_prompt(self, text: str, *, parse_special: bool = True) -> list[int]:
        """Prompt ids of a raw prompt, with the begin token where the model wants one.

        The author of a raw prompt writes control tokens on purpose, so they are parsed unless
        `parse_special` is False. Raises TextError (lone surrogate).
        """
        return self._with_bos(self.tokenizer.encode(text, parse_special=parse_special))

    def _writer(self, *, has_tools: bool) -> ChatWriter:
        if self._chat is None:
            raise TemplateError(self.template_problem)
        return self._tool_chat if has_tools and self._tool_chat is not None else self._chat

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self.vocabulary.bos_id
        if self.vocabulary.adds_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids


def _context_length(metadata: Mapping[str, MetadataValue]) -> int:
    """Tokens the model was made for; 0 when the file does not say."""
    value = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
