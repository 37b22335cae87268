"""Answers of models that think and call tools, as a whole: their parts, however they are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strata.text.answer import AnswerParser, AnswerShape, forced_opening
from strata.text.answer_format import AnswerFormat, ToolForm, read_format
from strata.text.answer_parts import CallArguments, CallBegan, Content, Part, Reasoning, joined

from tests.text.small_models import CHATML
from tests.text.test_tool_calls import TOOLS, call, in_json, in_xml
from tests.text.thinking_templates import ALWAYS_THINKS, EFFORT, QWEN3, QWEN35

BOTH = AnswerShape(thinks=True, tools=TOOLS)


def parse(
    pieces: list[str], shape: AnswerShape = BOTH, *, is_opened: bool = False, is_whole: bool = True
) -> tuple[list[Part], bool]:
    one = AnswerParser(shape, is_opened=is_opened)
    parts = []
    for piece in pieces:
        parts += one.feed(piece)
    parts += one.finish(is_whole=is_whole)
    return joined(parts), one.has_called


def test_reasoning_then_content_then_calls() -> None:
    text = f"<think>\nhm\n</think>\n\nI look.\n{in_json('f', {'i': 1})}"
    expected = [Reasoning("hm"), Content("I look."), *call("f", '{"i": 1}')]
    assert parse([text]) == (expected, True)
    assert parse(list(text)) == (expected, True)
    without = AnswerShape(thinks=True)
    assert parse([text], without)[0][1:] == [Content("I look.\n" + in_json("f", {"i": 1}))]
    only_calls = AnswerShape(tools=TOOLS)
    assert parse([text], only_calls)[0][0] == Content("<think>\nhm\n</think>\n\nI look.")


@pytest.mark.parametrize("is_opened", [False, True])
def test_a_call_alone_has_no_content(is_opened: bool) -> None:
    text = "hm\n</think>\n\n" + in_xml("f", {"i": "1"})
    text = text if is_opened else "<think>\n" + text
    shape = AnswerShape(thinks=True, tools=TOOLS, form=ToolForm.XML)
    expected = [Reasoning("hm"), *call("f", '{"i": 1}')]
    assert parse(list(text), shape, is_opened=is_opened) == (expected, True)


def test_calls_that_are_only_thought_of_are_reasoning() -> None:
    thought = f"I could say\n{in_json('f', {'i': 1})}\nbut I will not."
    expected: list[Part] = [Reasoning(thought), Content("Hi")]
    for pieces in ([f"{thought}</think>Hi"], list(f"{thought}</think>Hi")):
        assert parse(pieces, is_opened=True) == (expected, False)
    # Even if they are the last thing before the end of the reasoning.
    text = f"So:\n{in_json('f', {'i': 1})}</think>{in_json('f', {'i': 2})}"
    parts, has_called = parse([text], is_opened=True)
    assert parts == [Reasoning(f"So:\n{in_json('f', {'i': 1})}"), *call("f", '{"i": 2}')]
    assert has_called


def test_a_call_that_ends_reasoning_which_nobody_closed() -> None:
    text = f"So:\n{in_json('f', {'i': 1})}\n{in_json('f', {})}"
    expected = [Reasoning("So:\n"), *call("f", '{"i": 1}'), *call("f", "{}", 1)]
    assert parse([text], is_opened=True) == (expected, True)
    assert parse(list(text), is_opened=True) == (expected, True)
    # Cut off, it may have been a thought.
    assert parse([text], is_opened=True, is_whole=False) == ([Reasoning(text)], False)
    unfinished = text[: -len("</tool_call>") - 3]
    assert parse([unfinished], is_opened=True) == ([Reasoning(unfinished)], False)
    one_call = AnswerShape(thinks=True, tools=TOOLS, calls_max=1)
    assert parse([text], one_call, is_opened=True) == (expected[:3], True)


def test_reasoning_goes_on_after_a_tag_that_begins_no_call() -> None:
    one = AnswerParser(BOTH, is_opened=True)
    assert one.feed("a\n<tool_call>") == [Reasoning("a\n")]
    assert one.feed(" is the tag") == [Reasoning("<tool_call> is the tag")]


def test_the_answer_is_over_after_as_many_calls_as_may_be() -> None:
    one = AnswerParser(AnswerShape(tools=TOOLS, calls_max=1))
    one.feed(in_json("f", {})[:-14])
    assert not one.is_over
    one.feed("}}")
    assert one.is_over
    assert one.feed(" and more") == one.finish(is_whole=False) == []
    one_call = AnswerShape(tools=TOOLS, calls_max=1)
    two = in_json("f", {}) + in_json("f", {"i": 1})
    assert parse([two], one_call) == (call("f", "{}"), True)
    # One that was broken off was the one that may be: what follows is text.
    broken = '<tool_call>{"name": "f", "arguments": {?' + in_json("f", {})
    expected = [*call("f", "{"), Content("?" + in_json("f", {}))]
    assert parse([broken], one_call) == parse(list(broken), one_call) == (expected, False)


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (ToolForm.JSON, ' {"i": 1}}\n</tool_call>'),
        (ToolForm.XML, "<parameter=i>\n1\n</parameter>\n</function>\n</tool_call>"),
    ],
)
def test_forced_calls(form: ToolForm, answer: str) -> None:
    shape = AnswerShape(thinks=True, tools=TOOLS, form=form, forced_call="f", calls_max=1)
    for pieces in ([answer], list(answer)):
        assert parse(pieces, shape) == (call("f", '{"i": 1}'), True)
    # The prompt's words and the answer's are one call.
    free = AnswerShape(tools=TOOLS, form=form)
    assert parse([forced_opening(form, "f") + answer], free) == (call("f", '{"i": 1}'), True)
    parts, has_called = parse([answer[:4]], shape)
    assert not has_called
    assert not any(isinstance(p, CallArguments) and p.text.endswith("}") for p in parts)
    assert parse(["I would rather not."], shape) == ([Content("I would rather not.")], False)


def test_formats_are_read_off_templates() -> None:
    assert read_format(CHATML) == AnswerFormat(names=read_format(CHATML).names)
    for template, form in ((QWEN3, ToolForm.JSON), (QWEN35, ToolForm.XML)):
        found = read_format(template)
        assert (found.thinks, found.has_tools, found.tool_form) == (True, True, form)
        assert found.knows("enable_thinking")
        assert not found.knows("reasoning_effort")
    assert not read_format(ALWAYS_THINKS).knows("enable_thinking")
    found = read_format(EFFORT)
    assert (found.thinks, found.has_tools, found.tool_form) == (True, False, None)
    other = read_format("{% for tool in tools %}[TOOL_CALLS]{% endfor %}")
    assert (other.has_tools, other.tool_form) == (True, None)
    # Other forms have the same tag.
    for form in ("<tool_call>{{ name }}<arg_key>", '<tool_call>[{"name": "f", "arguments": {}}]'):
        other = read_format("{% for tool in tools %}" + form + "{% endfor %}")
        assert (other.has_tools, other.tool_form) == (True, None)
    written = '<tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <arguments>}'
    assert read_format('{{ "' + written + '" }}{{ tools }}').tool_form is ToolForm.JSON


PIECES = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "\n", " ", "a", "<", "{", "}}",
     '{"name": "f", "arguments": {', "<function=f>", "<parameter=i>1</parameter>", "</function>",
     in_json("f", {"i": 1}), in_xml("f", {"s": "a"}), "</", "think>"]
)  # fmt: skip


@settings(deadline=None, max_examples=400)
@given(
    pieces=st.lists(PIECES, max_size=12),
    shape=st.builds(
        AnswerShape,
        thinks=st.booleans(),
        tools=st.sampled_from([None, TOOLS]),
        form=st.sampled_from(ToolForm),
        calls_max=st.sampled_from([0, 1]),
    ),
    is_opened=st.booleans(),
    is_whole=st.booleans(),
    data=st.data(),
)
def test_cuts_do_not_matter(
    pieces: list[str], shape: AnswerShape, *, is_opened: bool, is_whole: bool, data: st.DataObject
) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    cut = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    whole = parse([text], shape, is_opened=is_opened, is_whole=is_whole)
    for other in (pieces, list(text), cut):
        assert parse(other, shape, is_opened=is_opened, is_whole=is_whole) == whole
    kinds = {type(part) for part in whole[0]}
    assert shape.thinks or Reasoning not in kinds
    assert shape.tools is not None or CallBegan not in kinds
    assert not whole[1] or CallBegan in kinds
    assert shape.calls_max == 0 or sum(isinstance(p, CallBegan) for p in whole[0]) <= 1
