"""Keeps a client's text from becoming control tokens inside a rendered chat.

A chat template's output is one string: the template's own `<|im_start|>` must become a control
token, the same characters in a message must not. Before rendering, every place of a client's text
that looks like a control token, or like a large part of one, is broken up by a mark: one code point
that occurs in no message. The tokenizer looks for control tokens while the marks are in place and
then drops them, so whatever the template did to the text (trimmed it, cut it, made JSON of it), the
words stay what the client wrote and stay plain.

Parts are broken up as well, because a template may join what a client kept apart: of two parts
of a control token one has at least half of its characters.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

# Noncharacters: valid in UTF-8, never assigned, no whitespace, not touched by case or JSON filters.
_MARKS = tuple(
    chr(c) for c in (*range(0xFDD0, 0xFDF0), *(p * 0x10000 + 0xFFFE for p in range(1, 17)))
)
_WHOLE_ONLY_BELOW = 6  # halves of shorter ones ("</s>") are ordinary text


class ControlGuard:
    """Knows the texts that only a template may write: the control texts of one vocabulary, and tags
    (chat_guard.py). Immutable."""

    def __init__(self, control_texts: Sequence[str]) -> None:
        dangerous: set[str] = set()
        self._tails: set[str] = set()
        for text in control_texts:
            if len(text) < 2:
                continue  # cannot be broken up; the tokenizer never looks for it in marked text
            if len(text) < _WHOLE_ONLY_BELOW:
                dangerous.add(text)
            else:
                half = (len(text) + 1) // 2
                dangerous |= {text[:half], text[-half:]}
            self._tails |= {text[at:] for at in range(1, len(text))}
        # Shortest first: a cut inside the shortest cuts every longer one that begins there.
        self._dangerous = sorted(dangerous, key=lambda text: (len(text), text))
        self._pattern = re.compile(f"(?=({'|'.join(map(re.escape, self._dangerous))}))")
        self._tail_length_max = max(map(len, self._tails), default=0)

    def choose_mark(self, texts: Iterable[str]) -> str:
        """A mark that occurs in none of `texts`. Raises ValueError when all of them are taken."""
        left = list(_MARKS)
        for text in texts:
            if not text.isascii():
                left = [mark for mark in left if mark not in text]
        if not left:
            raise ValueError("the messages use every noncharacter of Unicode; remove one")
        return left[0]

    def break_up(self, text: str, mark: str) -> str:
        """`text` with marks such that no control token can be found in it, nor be made of its
        end or beginning and what stands beside it."""
        if self._dangerous and any(part in text for part in self._dangerous):
            cuts = sorted(
                {m.start() + max(1, len(m.group(1)) // 2) for m in self._pattern.finditer(text)}
            )
            edges = [0, *cuts, len(text)]
            text = mark.join(text[a:b] for a, b in itertools.pairwise(edges))
        core = text.lstrip()
        head = core[: self._tail_length_max]
        if any(head[:n] in self._tails for n in range(1, len(head) + 1)):
            at = len(text) - len(core)
            text = text[:at] + mark + core
        return text
