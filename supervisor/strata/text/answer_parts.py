"""What an answer is made of: reasoning, content, and calls of tools in pieces.

The parsers of `reasoning.py`, `tool_calls.py` and `answer.py` turn text into these, and the parts
of one answer, put together by kind, do not depend on how the text was cut.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def joined(parts: Iterable[Part]) -> list[Part]:
    """The same answer with neighbours of one kind put together and empty parts left out."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        match part, last:
            case (Content(""), _) | (Reasoning(""), _) | (CallArguments(_, ""), _):
                pass
            case Content(text), Content(before):
                out[-1] = Content(before + text)
            case Reasoning(text), Reasoning(before):
                out[-1] = Reasoning(before + text)
            case CallArguments(index, text), CallArguments(at, before) if index == at:
                out[-1] = CallArguments(index, before + text)
            case _:
                out.append(part)
    return out
