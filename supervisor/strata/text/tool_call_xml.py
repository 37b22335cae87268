"""Reads a call written with tags, the form of Qwen3-Coder and Qwen3.5:
`<function=f>`, then `<parameter=key>`, a value, `</parameter>` for each, then `</function>`.

A value may hold anything, also the tags themselves: it ends where `</parameter>` is followed by the
next parameter or the function's end. One line break after its beginning and one before its end
belong to the form. Values become JSON by the tool's schema (`tool_values.py`); those that can only
be strings come out as they are written, others once they are complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator

from strata.text.json_scanner import next_visible
from strata.text.tool_call_scan import CallScan, NoCallError, Run
from strata.text.tool_values import STRING_ONLY, Toolset, convert

FUNCTION = "<function="
_PARAMETER = "<parameter="
_VALUE_END = "</parameter>"
_FUNCTION_END = "</function>"
_NEXT = (_PARAMETER, _FUNCTION_END)
_IN_VALUE = re.compile(r"[^<\n]+")  # cannot be the value's end
_NAME_CHARS_MAX = 256
_SPACE_CHARS_MAX = 64  # between a value's end and what follows it


def forced_xml_opening(name: str) -> str:
    """What a prompt ends with so that the answer is a call of `name`, from its parameters on."""
    return f"<tool_call>\n{FUNCTION}{name}>\n"


def read_xml_call(call: CallScan, tools: Toolset) -> Generator[Run, str, None]:
    """A call of which `<function=` has come."""
    name = yield from _read_name()
    if name not in tools:
        raise NoCallError
    yield from read_forced_xml_call(call, tools, name)


def read_forced_xml_call(call: CallScan, tools: Toolset, name: str) -> Generator[Run, str, None]:
    """A call of `name` from its parameters on."""
    tag = yield from _read_tag()
    call.begin(name)
    separator = "{"
    while tag == _PARAMETER:
        key = yield from _read_name()
        types = tools.parameter_types(name, key)
        opening = f"{separator}{json.dumps(key, ensure_ascii=False)}: "
        if types == STRING_ONLY:
            call.add(opening + '"')
            tag = yield from _read_value(lambda text: call.add(_escape(text)))
            call.add('"')
        else:
            pieces: list[str] = []
            tag = yield from _read_value(pieces.append)
            call.add(opening + convert("".join(pieces), types))
        separator = ", "
    if separator == "{":
        call.add(separator)
    call.add("}")


def _read_tag() -> Generator[Run, str, str]:
    """One of _NEXT, after white space."""
    text = yield from next_visible()
    while text not in _NEXT:
        if not any(tag.startswith(text) for tag in _NEXT):
            raise NoCallError
        text += yield None
    return text


def _read_name() -> Generator[Run, str, str]:
    name = ""
    while True:
        char = yield None
        if char == ">":
            return name.strip()
        name += char
        if char in "<\n" or len(name) > _NAME_CHARS_MAX:
            raise NoCallError


def _read_value(sink: Callable[[str], None]) -> Generator[Run, str, str]:
    """Gives the value's text to `sink`; returns the tag that follows it."""
    char = yield None
    held = "" if char == "\n" else char  # what may be the value's end
    while True:
        if held and held[0] not in "<\n":
            sink(held)
            held = ""
        while held:
            end = _match_end(held)
            if end is None:
                break
            if end:
                return end
            sink(held[0])
            held = held[1:]
        held += yield None if held else _IN_VALUE


def _match_end(text: str) -> str | None:
    """The tag that follows the value when `text` is its end; None when more could make it one;
    "" when it is none."""
    text = text.removeprefix("\n")
    if _VALUE_END.startswith(text):
        return None
    if not text.startswith(_VALUE_END):
        return ""
    rest = text[len(_VALUE_END) :]
    tag = rest.lstrip(" \t\r\n")
    if len(rest) - len(tag) > _SPACE_CHARS_MAX:
        return ""
    if tag in _NEXT:
        return tag
    return None if any(known.startswith(tag) for known in _NEXT) else ""


def _escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
