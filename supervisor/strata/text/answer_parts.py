"""What an answer is made of: reasoning, content, and calls of tools in pieces.

The parsers of `reasoning.py`, `tool_calls.py` and `answer.py` turn text into these, and the parts
of one answer, put together by kind, do not depend on how the text was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegan:
    """The call with this index (0-based, in order) is of the tool `name`."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments. The pieces of a finished call are one JSON object; those of a
    call that was never finished lack at least the last brace."""

    index: int
    text: str


Part = Content | Reasoning | CallBegan | CallArguments


def joined(parts: Sequence[Part]) -> list[Part]:
    """The same answer with neighbours of one kind put together and empty parts left out."""
    if not parts:
        return []
    if len(parts) == 1:
        part = parts[0]
        return [part] if isinstance(part, CallBegan) or part.text else []
    out: list[Part] = []
    texts: list[str] = []  # of the last part of `out`, as long as more may join it
    for part in parts:
        if isinstance(part, CallBegan):
            _close(out, texts)
            out.append(part)
            texts = []
            continue
        if not part.text:
            continue
        last = out[-1] if out else None
        if type(part) is type(last) and _index(part) == _index(last):
            texts.append(part.text)
            continue
        _close(out, texts)
        out.append(part)
        texts = [part.text]
    _close(out, texts)
    return out


def _index(part: Part | None) -> int:
    return part.index if isinstance(part, CallArguments) else -1


def _close(out: list[Part], texts: list[str]) -> None:
    """Puts all `texts` into the last part, whose text is the first of them."""
    if len(texts) < 2:
        return
    match out[-1]:
        case Content():
            out[-1] = Content("".join(texts))
        case Reasoning():
            out[-1] = Reasoning("".join(texts))
        case CallArguments(index, _):
            out[-1] = CallArguments(index, "".join(texts))
        case CallBegan():
            pass
