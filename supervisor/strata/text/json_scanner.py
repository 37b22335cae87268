"""Reads JSON one character at a time, as it comes from a model: what is accepted is final.

A value is a generator that takes characters (`yield` is "the next one, please", and says which run
of characters may come in one piece: only within strings, where most of a call is), hands what it
accepted to a sink and returns the first character beyond the value, where it had to look at it.
Accepted text is valid JSON: raw control characters in a string, which models write for line breaks,
come out as escapes; everything else that is no JSON raises BadJsonError. Numbers and words come out
whole, so that no beginning of a wrong one does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator

DEPTH_MAX = 128
_SPACE = " \t\r\n"
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SCALAR = frozenset("+-.0123456789eEtrufalsn")
_SCALAR_CHARS_MAX = 400
_IN_STRING = re.compile(r'[^"\\\x00-\x1f]+')
_HEX = frozenset("0123456789abcdefABCDEF")

Sink = Callable[[str], None]
Run = re.Pattern[str] | None
Scan = Generator[Run, str, str | None]


class BadJsonError(ValueError):
    """The text is no JSON from here on."""


def next_visible(sink: Sink | None = None) -> Generator[Run, str, str]:
    """The next character that is no white space, which goes to `sink`."""
    while True:
        char = yield None
        if char not in _SPACE:
            return char
        if sink is not None:
            sink(char)


def scan_value(char: str, sink: Sink) -> Scan:
    """One value whose first character is `char`. Returns the character after it, or None where the
    value's own end was enough."""
    closers: list[str] = []  # of the objects and arrays that are open, outermost first
    after: str | None = char
    while True:
        if after is None:
            after = yield from next_visible(sink)
        after = yield from _scan_one(after, sink, closers)
        # A value has ended: go on in the innermost container, or leave.
        while closers:
            if after is None or after in _SPACE:
                if after is not None:
                    sink(after)
                after = yield from next_visible(sink)
            if after == ",":
                sink(after)
                after = yield from next_visible(sink)
                if closers[-1] == "}":
                    yield from _scan_key(after, sink)
                    after = None
                break
            if after != closers[-1]:
                raise BadJsonError
            sink(after)
            closers.pop()
            after = None
        else:
            return after


def _scan_one(char: str, sink: Sink, closers: list[str]) -> Scan:
    """A scalar, an empty container, or the way into a container up to its first scalar or empty
    container. Returns the character after it, or None."""
    while True:
        if char == '"':
            yield from scan_string(sink)
            return None
        if char not in "{[":
            return (yield from _scan_scalar(char, sink))
        if len(closers) == DEPTH_MAX:
            raise BadJsonError
        closer = "}" if char == "{" else "]"
        sink(char)
        char = yield from next_visible(sink)
        if char == closer:
            sink(char)
            return None
        closers.append(closer)
        if closer == "}":
            yield from _scan_key(char, sink)
            char = yield from next_visible(sink)


def _scan_key(char: str, sink: Sink) -> Generator[Run, str, None]:
    """`"key":`, whose first character is `char`."""
    if char != '"':
        raise BadJsonError
    yield from scan_string(sink)
    char = yield from next_visible(sink)
    if char != ":":
        raise BadJsonError
    sink(char)


def scan_string(sink: Sink) -> Generator[Run, str, None]:
    """A string whose opening quote has come."""
    sink('"')
    while True:
        char = yield _IN_STRING
        if char == '"':
            sink(char)
            return
        if char == "\\":
            escaped = yield None
            if escaped == "u":
                digits = ""
                for _ in range(4):
                    digits += yield None
                if not _HEX.issuperset(digits):
                    raise BadJsonError
                sink("\\u" + digits)
            elif escaped in '"\\/bfnrt':
                sink(char + escaped)
            else:
                raise BadJsonError
        elif char < " ":
            sink(json.dumps(char)[1:-1])
        else:
            sink(char)


def _scan_scalar(char: str, sink: Sink) -> Scan:
    text = ""
    while char in _SCALAR:
        text += char
        if len(text) > _SCALAR_CHARS_MAX:
            raise BadJsonError
        char = yield None
    if text not in ("true", "false", "null") and not _NUMBER.fullmatch(text):
        raise BadJsonError
    sink(text)
    return char
