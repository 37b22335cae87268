"""One call of a tool while it is read: what is known of it, and what of its arguments may be shown.

A reader (`tool_call_json.py`, `tool_call_xml.py`) is a generator that takes the call's characters
and tells this object what they mean. The last brace of the arguments waits for the end of the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

# What a reader gives back when it takes a character: None, or which run of characters it would take
# in one piece as well.
Run = re.Pattern[str] | None
Reader = Callable[["CallScan"], Generator[Run, str, None]]


class NoCallError(ValueError):
    """The text has not the form of a call from here on, or names no tool of the request."""


class CallScan:
    """`feed` characters until it says that the call is finished. Raises NoCallError or
    BadJsonError at the character that fits no call; what is of no use then is in `unsaid`."""

    __slots__ = (
        "_has_brace",
        "_has_said",
        "_pieces",
        "_reader",
        "_run",
        "has_begun",
        "name",
        "unsaid",
    )

    def __init__(self, reader: Reader) -> None:
        self.name = ""
        self.has_begun = False  # it is certain that this is a call of `name`
        self.unsaid = ""  # characters since the last piece of arguments
        self._pieces: list[str] = []
        self._has_brace = False  # the last piece is a brace that may be the last of all
        self._has_said = False  # by the last character
        self._reader = reader(self)
        self._run: Run = next(self._reader)

    def next_piece(self, text: str, at: int) -> str:
        """What of `text` to feed next, from index `at` on: a character, or a run of them where that
        makes no difference."""
        if self._run is not None:
            found = self._run.match(text, at)
            if found is not None:
                return found.group()
        return text[at]

    def feed(self, char: str) -> bool:
        """Whether this piece (`next_piece`) ended the call."""
        self._has_said = False
        self.unsaid += char
        try:
            self._run = self._reader.send(char)
        except StopIteration:
            self._release_brace()
            return True
        except ValueError:
            if self._has_said:  # what was accepted ended right before this character
                self.unsaid = char
            raise
        if self._has_said:
            self.unsaid = "}" if self._has_brace else ""
        return False

    def take(self) -> str:
        """The arguments that came since the last time."""
        text = "".join(self._pieces)
        self._pieces.clear()
        return text

    # --- for readers

    def begin(self, name: str) -> None:
        self.name = name
        self.has_begun = True

    def add(self, text: str) -> None:
        """A piece of the arguments' JSON; a closing brace is a piece of its own."""
        self._release_brace()
        if text == "}":
            self._has_brace = True
        else:
            self._pieces.append(text)
        self._has_said = True

    def _release_brace(self) -> None:
        if self._has_brace:
            self._pieces.append("}")
            self._has_brace = False
