"""Calls of tools found in answers, however they are cut; what is no call stays text."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strata.text.answer_parts import CallArguments, CallBegan, Content, Part, joined
from strata.text.tool_calls import HEAD_CHARS_MAX, ToolCallParser
from strata.text.tool_values import Toolset, build_tool, convert

TOOLS = Toolset(
    {
        "f": build_tool(
            "f",
            {
                "type": "object",
                "properties": {
                    "s": {"type": "string"},
                    "i": {"type": "integer"},
                    "o": {"type": "object"},
                    "b": {"type": "boolean"},
                },
            },
        ),
        "get_weather": build_tool("get_weather", {}),
    }
)


def parse(pieces: list[str], *, is_bare_allowed: bool = True) -> tuple[list[Part], int, int]:
    """The parts, and how many calls began and were finished."""
    one = ToolCallParser(TOOLS, is_bare_allowed=is_bare_allowed)
    parts = [part for piece in pieces for part in one.feed(piece)]
    return joined([*parts, *one.finish()]), one.begun, one.finished


def call(name: str, arguments: str, index: int = 0) -> list[Part]:
    return [CallBegan(index, name), CallArguments(index, arguments)]


def in_json(name: str, arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def in_xml(name: str, values: dict[str, str]) -> str:
    text = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{text}</function>\n</tool_call>"


FINISHED = [
    (in_json("f", {"s": "x", "i": [1, -2.5e3, {"k": None}]}),
     '{"s": "x", "i": [1, -2500.0, {"k": null}]}'),
    ('<tool_call>{"name":"f","arguments":{}}</tool_call>', "{}"),
    ('<tool_call>{"arguments": {"i": 1 } , "name": "f"}</tool_call>', '{"i": 1 }'),
    ('<tool_call>\n{"id": 7, "name": "f", "parameters": {"i": 1}, "x": [{}]}\n</tool_call>',
     '{"i": 1}'),
    ('<tool_call>{"name": "f"}</tool_call>', "{}"),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "{}"),
    ('<tool_call>{"name": "f", "arguments": "{\\"i\\": 1}"}</tool_call>', '{"i": 1}'),
    ('<tool_call>{"name": "f", "arguments": {"s": "a\nb\tc"}}</tool_call>', '{"s": "a\\nb\\tc"}'),
    ('<tool_call>{"name": "f", "arguments": {"s": "\\u00e9\\"</tool_call>"}}</tool_call>',
     '{"s": "\\u00e9\\"</tool_call>"}'),
    ('<tool_call>{"name": "f", "arguments": {}}', "{}"),  # the object is whole
    (in_xml("f", {"s": "a b", "i": "3"}), '{"s": "a b", "i": 3}'),
    (in_xml("f", {}), "{}"),
    (in_xml("f", {"s": '"q"\n</parameter> \\ é\n'}), '{"s": "\\"q\\"\\n</parameter> \\\\ é\\n"}'),
    (in_xml("f", {"o": '{"a": [1, 2]}', "b": "True"}), '{"o": {"a": [1, 2]}, "b": true}'),
    (in_xml("f", {"i": "three", "unknown": "5"}), '{"i": "three", "unknown": "5"}'),
    ("<tool_call><function=f><parameter=s>x</parameter></function></tool_call>", '{"s": "x"}'),
    ("<function=f>\n<parameter=s>\n\n</parameter>\n</function>\n</tool_call>", '{"s": ""}'),
    ("<function=f>\n</function>", "{}"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "arguments"), FINISHED)
def test_finished_calls(text: str, arguments: str) -> None:
    for pieces in ([text], list(text)):
        assert parse(pieces) == (call("f", arguments), 1, 1)
    json.loads(arguments)
    around, _, _ = parse([f"Sure.\n\n{text}\n"])
    assert around == [Content("Sure."), *call("f", arguments)]


@pytest.mark.parametrize("first", [in_json("f", {"i": 1}), in_xml("f", {"i": "1"})])
@pytest.mark.parametrize("second", [in_json("get_weather", {}), in_xml("get_weather", {})])
def test_several_calls(first: str, second: str) -> None:
    expected = [*call("f", '{"i": 1}'), *call("get_weather", "{}", 1)]
    assert parse([f"{first}\n{second}"]) == (expected, 2, 2)
    parts, begun, finished = parse([f"{first} and\n{second}\ndone"])
    assert parts == [*expected[:2], Content(" and"), *expected[2:], Content("\ndone")]
    assert (begun, finished) == (2, 2)


@pytest.mark.parametrize(
    "text",
    [
        "plain <b>text</b>  ",
        "write <tool_call> to call a tool",
        "`<tool_call>`\n",
        "<tool_call>",
        "<tool_call>\n{",
        "<tool_call>\n{\"name\": \"f\"",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"i": 1}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": 5}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "no json"}</tool_call>',
        '<tool_call>{"name": f}</tool_call>',
        "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\nwords",
        "<tool_call>\n<function=f",
        "x <function=f>\n</function>",  # not at a line's beginning
        "<function=f> is how it is written",
        "</tool_call>",
        '{"name": "f", "arguments": {}}',
    ],
)  # fmt: skip
def test_what_only_looks_like_a_call_stays_text(text: str) -> None:
    for pieces in ([text], list(text)):
        assert parse(pieces) == ([Content(text)], 0, 0)


def test_a_literal_tag_does_not_hide_a_call_after_it() -> None:
    text = "The tag <tool_call> begins it: <tool_call>" + in_json("f", {})
    parts, begun, finished = parse([text])
    assert parts == [Content("The tag <tool_call> begins it: <tool_call>"), *call("f", "{}")]
    assert (begun, finished) == (1, 1)


def test_without_tags_only_where_the_form_is_xml() -> None:
    text = "<function=f>\n</function>"
    assert parse([text], is_bare_allowed=False) == ([Content(text)], 0, 0)


@pytest.mark.parametrize(("text", "arguments"), FINISHED)
def test_unfinished_calls_are_never_completed(text: str, arguments: str) -> None:
    ends = ("}}", "}", "</function>")
    end = max(text.rfind(e) + len(e) for e in ends)  # where the call is whole
    for length in range(end):
        parts, begun, finished = parse([text[:length]])
        assert finished == 0
        if begun == 0:
            assert not parts or parts == [Content(text[:length])]
            continue
        written = "".join(p.text for p in parts if isinstance(p, CallArguments))
        assert arguments.startswith(written)
        assert not any(isinstance(p, Content) for p in parts)
        with pytest.raises(json.JSONDecodeError):
            json.loads(written)


@pytest.mark.parametrize(
    ("text", "arguments", "rest"),
    [
        ('<tool_call>{"name": "f", "arguments": {"i": tru}}', '{"i": ', "tru}}"),
        ('<tool_call>{"name": "f", "arguments": {"i": 1x}}', '{"i": 1', "x}}"),
        ('<tool_call>{"name": "f", "arguments": {"i": 01}} x', '{"i": ', "01}} x"),
        ('<tool_call>{"name": "f", "arguments": {"i": 1} oops', '{"i": 1', "} oops"),
        ('<tool_call>{"name": "f", "arguments": {"s": "\\d"}}', '{"s": "', '\\d"}}'),
        ("<function=f>\n<parameter=i>\n1\n</parameter>\nx", "", None),
    ],
)  # fmt: skip
def test_broken_calls_stay_open(text: str, arguments: str, rest: str | None) -> None:
    parts, begun, finished = parse([text])
    assert (begun, finished) == (1, 0)
    if rest is None:  # a parameter's value goes on until its end is certain
        assert parts == [CallBegan(0, "f")]
    else:
        assert parts == [*call("f", arguments), Content(rest)]
    assert parse(list(text))[0] == parts


def test_the_name_comes_first_and_arguments_as_they_come() -> None:
    one = ToolCallParser(TOOLS, is_bare_allowed=False)
    assert one.feed('hi <tool_call>\n{"name": "f", "argu') == [Content("hi")]
    assert one.feed('ments": {"s"') == call("f", '{"s"')
    assert one.feed(': "ab') == [CallArguments(0, ': "ab')]
    assert one.feed('c"}') == [CallArguments(0, 'c"')]
    assert not one.is_complete
    assert one.feed("}") == [CallArguments(0, "}")]
    assert one.is_complete
    xml = ToolCallParser(TOOLS, is_bare_allowed=True)
    assert xml.feed("<tool_call>\n<function=f>\n<param") == []
    assert xml.feed("eter=s>\nab") == call("f", '{"s": "ab')
    assert xml.feed("c\n") == [CallArguments(0, "c")]
    assert xml.feed("d\n</parameter>\n") == [CallArguments(0, "\\nd")]
    assert xml.feed("</function>") == [CallArguments(0, '"}')]


def test_a_head_is_bounded() -> None:
    text = '<tool_call>{"arguments": {"s": "' + "x" * (2 * HEAD_CHARS_MAX)
    one = ToolCallParser(TOOLS, is_bare_allowed=False)
    assert joined(one.feed(text) + one.finish()) == [Content(text)]


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<function=f>", "<function=", "<parameter=s>", "<parameter=i>",
     "</parameter>", "</function>", '{"name": "f", "arguments": ', '{"s": "', '"}', "}", "{", "\n",
     " ", "1", '"', ",", ":", "[", "]", "\\", "true", "f", "<", ">", "é", in_json("f", {"i": 1}),
     in_xml("f", {"s": "a"})]
)  # fmt: skip


@settings(deadline=None, max_examples=400)
@given(pieces=st.lists(PIECES, max_size=14), is_bare_allowed=st.booleans(), data=st.data())
@example(["<tool_call>", "<tool_call>", "\n", '{"name": "f", "arguments": ', "{", "}"], False, None)
def test_cuts_do_not_matter(
    pieces: list[str], is_bare_allowed: bool, data: st.DataObject | None
) -> None:
    text = "".join(pieces)
    whole = parse([text], is_bare_allowed=is_bare_allowed)
    assert parse(pieces, is_bare_allowed=is_bare_allowed) == whole
    assert parse(list(text), is_bare_allowed=is_bare_allowed) == whole
    if data is not None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
        edges = [0, *cuts, len(text)]
        cut = [text[a:b] for a, b in itertools.pairwise(edges)]
        assert parse(cut, is_bare_allowed=is_bare_allowed) == whole
    check_calls(*whole)


def check_calls(parts: list[Part], begun: int, finished: int) -> None:
    """Calls are numbered in order, and as many of them are whole objects as were finished."""
    names = [p for p in parts if isinstance(p, CallBegan)]
    assert [p.index for p in names] == list(range(begun))
    written = dict.fromkeys(range(begun), "")
    for part in parts:
        if isinstance(part, CallArguments):
            written[part.index] += part.text
    whole = 0
    for text in written.values():
        try:
            assert isinstance(json.loads(text), dict)
            whole += 1
        except ValueError:
            pass
    assert whole == finished


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(
        st.characters(exclude_categories=["Cs"])), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(deadline=None)
@given(
    arguments=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), VALUES, max_size=4
    ),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
)  # fmt: skip
def test_any_json_comes_through(arguments: Any, ascii_only: bool, indent: int | None) -> None:
    body = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=ascii_only, indent=indent)
    parts, begun, finished = parse([f"<tool_call>\n{body}\n</tool_call>"])
    assert (begun, finished) == (1, 1)
    (began, written) = parts
    assert began == CallBegan(0, "f")
    assert isinstance(written, CallArguments)
    assert json.loads(written.text) == arguments


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_through_as_a_parameter(text: str) -> None:
    parts, _, finished = parse([in_xml("f", {"s": text})])
    assert finished == 1
    assert isinstance(parts[1], CallArguments)
    assert json.loads(parts[1].text) == {"s": text}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": "integer"}, 5),
        (" 5\n", {"type": "integer"}, 5),
        ("5.5", {"type": "integer"}, "5.5"),  # not for us to round
        ("5", {"type": "number"}, 5),
        ("5.5", {"type": "number"}, 5.5),
        ("true", {"type": "boolean"}, True),
        ("False", {"type": "boolean"}, False),
        ("yes", {"type": "boolean"}, "yes"),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string"}, "null"),
        ("None", {"type": ["integer", "null"]}, None),
        ('["a"]', {"type": "array"}, ["a"]),
        ('{"a": 1}', {"type": "object"}, {"a": 1}),
        ("{'a': 1}", {"type": "object"}, "{'a': 1}"),
        ('{"a": 1}', {"anyOf": [{"type": "string"}, {"type": "object"}]}, {"a": 1}),
        ("5", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5"),
        ("5", {"oneOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("5", {"$ref": "#/$defs/n"}, 5),
        ("b", {"enum": ["a", "b"]}, "b"),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"const": 2}, 2),
        ('{"x": 1}', {"properties": {"x": {}}}, {"x": 1}),
        ("[1]", {"items": {"type": "integer"}}, [1]),
        ("5", {}, "5"),
        ("5", {"$ref": "elsewhere.json"}, "5"),
        ('"quoted"', {"type": "integer"}, "quoted"),
    ],
)
def test_values_by_schema(text: str, schema: dict[str, Any], value: Any) -> None:
    root = {"properties": {"p": schema}, "$defs": {"n": {"type": "integer"}}}
    types = Toolset({"t": build_tool("t", root)}).parameter_types("t", "p")
    assert json.loads(convert(text, types)) == value


def test_references_that_go_in_circles() -> None:
    circle = {"properties": {"p": {"$ref": "#/properties/p"}}}
    assert build_tool("t", circle).types["p"] == {"string"}
