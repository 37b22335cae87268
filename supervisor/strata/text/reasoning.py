"""Splits an answer that arrives in pieces into the model's reasoning and what follows it.

Reasoning stands between `<think>` and `</think>` at the beginning of an answer and nowhere else:
the same words later are text. Where the prompt ends with `<think>` the answer begins inside it, and
one that is never closed is reasoning to its end. The newlines around both parts belong to the
template's layout and are left out. The result does not depend on where the pieces were cut.
"""

from __future__ import annotations

import enum
import re

from strata.text.answer_parts import Content, Part, Reasoning

OPEN = "<think>"
CLOSE = "</think>"
_NEWLINES = "\r\n"
_MAY_WAIT = re.compile(r"[<\r\n]")  # what reasoning without any of these holds can be shown at once


class _Phase(enum.Enum):
    BEGIN = "begin"  # whether there is reasoning is not known yet
    REASONING_BEGIN = "reasoning_begin"  # only newlines so far
    REASONING = "reasoning"
    CONTENT_BEGIN = "content_begin"  # after the reasoning, only newlines so far
    CONTENT = "content"


class ReasoningSplitter:
    """The state of one answer. `feed` pieces, then `finish` once at the end."""

    __slots__ = ("_held", "_is_opened", "_phase", "has_reasoning")

    def __init__(self, *, is_opened: bool) -> None:
        """`is_opened`: the prompt ends inside the reasoning."""
        self._is_opened = is_opened
        self._phase = _Phase.BEGIN
        self._held = ""  # not given out yet
        self.has_reasoning = is_opened  # there is reasoning, however short

    @property
    def is_reasoning(self) -> bool:
        """The answer so far ends inside the reasoning, whose end has not come."""
        match self._phase:
            case _Phase.BEGIN:
                return self._is_opened
            case _Phase.REASONING_BEGIN | _Phase.REASONING:
                return True
            case _Phase.CONTENT_BEGIN | _Phase.CONTENT:
                return False

    @property
    def is_content(self) -> bool:
        """All that comes now is content as it stands; nothing is held back."""
        return self._phase is _Phase.CONTENT

    @property
    def is_closed(self) -> bool:
        """The reasoning is over, or there is none: all that comes now is content."""
        return self._phase in (_Phase.CONTENT_BEGIN, _Phase.CONTENT)

    def feed(self, text: str) -> list[Part]:
        """What `text` adds."""
        phase = self._phase
        if phase is _Phase.CONTENT:
            return [Content(text)] if text else []
        if phase is _Phase.REASONING and not self._held and not _MAY_WAIT.search(text):
            return [Reasoning(text)] if text else []
        self._held += text
        out: list[Part] = []
        while self._advance(out):
            pass
        return out

    def finish(self) -> list[Part]:
        """What was held back, when the answer has ended."""
        held, self._held = self._held, ""
        match self._phase:
            case _Phase.BEGIN if not self._is_opened:
                return [Content(held)] if held else []
            case _Phase.BEGIN | _Phase.REASONING_BEGIN | _Phase.REASONING:
                rest = held.rstrip(_NEWLINES)
                return [Reasoning(rest)] if rest else []
            case _:
                return []

    def _advance(self, out: list[Part]) -> bool:
        """One step through `_held`; whether there may be another."""
        held = self._held
        match self._phase:
            case _Phase.BEGIN:
                word = held.lstrip()
                if OPEN.startswith(word) and word != OPEN:
                    return False
                if word.startswith(OPEN):
                    self._held, self._phase = word[len(OPEN) :], _Phase.REASONING_BEGIN
                    self.has_reasoning = True
                elif self._is_opened:
                    self._phase = _Phase.REASONING_BEGIN
                else:
                    self._phase = _Phase.CONTENT
                    self._release_content(out)
                    return False
            case _Phase.REASONING_BEGIN:
                self._held = held.lstrip(_NEWLINES)
                if not self._held:
                    return False
                self._phase = _Phase.REASONING
            case _Phase.REASONING:
                return self._advance_reasoning(out)
            case _Phase.CONTENT_BEGIN:
                self._held = held.lstrip(_NEWLINES)
                if not self._held:
                    return False
                self._phase = _Phase.CONTENT
                self._release_content(out)
                return False
            case _Phase.CONTENT:
                return False
        return True

    def _advance_reasoning(self, out: list[Part]) -> bool:
        held = self._held
        at = held.find(CLOSE)
        if at >= 0:
            self._emit_reasoning(held[:at].rstrip(_NEWLINES), out)
            self._held, self._phase = held[at + len(CLOSE) :], _Phase.CONTENT_BEGIN
            return True
        # What may be the end, and the newlines before it, wait.
        keep = len(held[: len(held) - partial_suffix(held, CLOSE)].rstrip(_NEWLINES))
        self._emit_reasoning(held[:keep], out)
        self._held = held[keep:]
        return False

    def _emit_reasoning(self, text: str, out: list[Part]) -> None:
        if text:
            out.append(Reasoning(text))

    def _release_content(self, out: list[Part]) -> None:
        if self._held:
            out.append(Content(self._held))
        self._held = ""


def partial_suffix(text: str, word: str) -> int:
    """The length of the longest end of `text` that is a beginning of `word`, but not all of it."""
    begin = max(0, len(text) - len(word) + 1)
    while (at := text.find(word[0], begin)) >= 0:
        if word.startswith(text[at:]):
            return len(text) - at
        begin = at + 1
    return 0
