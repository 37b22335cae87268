"""Reads a call written as JSON: `{"name": "f", "arguments": {...}}`, the form of Qwen and Hermes.

Keys may come in any order, further keys are skipped, `parameters` is another word for `arguments`,
and arguments that were written as a string of JSON are what that string says.
"""

from __future__ import annotations

import json
from collections.abc import Generator

import msgspec

from strata.text.json_scanner import BadJsonError, Scan, next_visible, scan_string, scan_value
from strata.text.tool_call_scan import CallScan, NoCallError, Run
from strata.text.tool_values import Toolset

_ARGUMENTS = ("arguments", "parameters")
_SPACE = " \t\r\n"


def forced_json_opening(name: str) -> str:
    """What a prompt ends with so that the answer is a call of `name`, from its arguments on."""
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments":'


def read_json_call(call: CallScan, tools: Toolset) -> Generator[Run, str, None]:
    """A call whose first brace has come."""
    char = yield from next_visible()
    yield from _read_members(char, call, tools, has_arguments=False)


def read_forced_json_call(call: CallScan, tools: Toolset, name: str) -> Generator[Run, str, None]:
    """The call that `forced_json_opening` began."""
    call.name = name
    char = yield from next_visible()
    after = yield from _read_arguments(char, call)
    char = yield from _next_after(after)
    if char == ",":
        char = yield from next_visible()
        yield from _read_members(char, call, tools, has_arguments=True)
    elif char != "}":
        raise BadJsonError


def _read_members(
    char: str, call: CallScan, tools: Toolset, *, has_arguments: bool
) -> Generator[Run, str, None]:
    """The keys and values from `char` on, and the closing brace."""
    while True:
        key = yield from _read_string(char)
        char = yield from next_visible()
        if char != ":":
            raise BadJsonError
        char = yield from next_visible()
        after: str | None = None
        if key == "name" and not call.name:
            name = yield from _read_string(char)
            if name not in tools:
                raise NoCallError
            call.name = name
            if has_arguments:
                call.begin(name)
        elif key in _ARGUMENTS and not has_arguments:
            after = yield from _read_arguments(char, call)
            has_arguments = True
        else:
            after = yield from scan_value(char, _skip)
        char = yield from _next_after(after)
        if char == "}":
            break
        if char != ",":
            raise BadJsonError
        char = yield from next_visible()
    if not call.name:
        raise NoCallError
    if not has_arguments:
        call.begin(call.name)
        call.add("{")
        call.add("}")


def _read_arguments(char: str, call: CallScan) -> Scan:
    match char:
        case "{":
            if call.name:
                call.begin(call.name)
            return (yield from scan_value(char, call.add))
        case '"':
            text = (yield from _read_string(char)).strip()
            try:
                value = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
                raise BadJsonError from None
            if not isinstance(value, dict):
                raise BadJsonError
            after = None
        case "n":
            after = yield from scan_value(char, _skip)  # null: there are none
            text = "{}"
        case _:
            raise BadJsonError
    if call.name:
        call.begin(call.name)
    call.add(text[:-1])
    call.add("}")
    return after


def _read_string(char: str) -> Generator[Run, str, str]:
    if char != '"':
        raise BadJsonError
    pieces: list[str] = []
    yield from scan_string(pieces.append)
    return str(json.loads("".join(pieces)))


def _next_after(after: str | None) -> Generator[Run, str, str]:
    """The next character that is no white space, beginning with `after` where there is one."""
    if after is not None and after not in _SPACE:
        return after
    return (yield from next_visible())


def _skip(_: str) -> None:
    pass
