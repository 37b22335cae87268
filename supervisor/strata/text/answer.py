"""Turns the text of a model's answer into its parts: reasoning, content, calls of tools.

All state comes from the text that was fed, so an answer that goes on after an engine's death goes
on where it was, and one that is cut into other pieces has the same parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata.text.answer_format import ToolForm
from strata.text.answer_parts import CallArguments, CallBegan, Content, Part, Reasoning, joined
from strata.text.reasoning import ReasoningSplitter, partial_suffix
from strata.text.tool_call_json import forced_json_opening, read_forced_json_call
from strata.text.tool_call_scan import CallScan
from strata.text.tool_call_xml import forced_xml_opening, read_forced_xml_call
from strata.text.tool_calls import OPEN, ToolCallParser
from strata.text.tool_values import Toolset


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """What the answers of one request may hold. `thinks`: reasoning is told apart. `forced_call`:
    the tool that the prompt's end (`forced_opening`) calls."""

    thinks: bool = False
    tools: Toolset | None = None
    form: ToolForm = ToolForm.JSON
    forced_call: str | None = None
    calls_max: int = 0  # calls after which the answer is over; 0 = no limit

    @property
    def is_plain(self) -> bool:
        """Answers are nothing but text."""
        return not self.thinks and self.tools is None


def forced_opening(form: ToolForm, name: str) -> str:
    """What the prompt ends with so that the answer is a call of the tool `name`."""
    match form:
        case ToolForm.JSON:
            return forced_json_opening(name)
        case ToolForm.XML:
            return forced_xml_opening(name)


class AnswerParser:
    """The state of one answer. `feed` pieces until `is_over`, then `finish` once."""

    def __init__(self, shape: AnswerShape, *, is_opened: bool = False) -> None:
        """`is_opened`: the prompt ends inside the reasoning."""
        self._shape = shape
        self._splitter: ReasoningSplitter | None = None
        if shape.thinks and shape.forced_call is None:
            self._splitter = ReasoningSplitter(is_opened=is_opened)
        self._calls: ToolCallParser | None = None
        self._suspects: _SuspectedCalls | None = None
        if shape.tools is not None:
            self._calls = _build_parser(shape, shape.tools)
            self._suspects = _SuspectedCalls(shape, shape.tools)

    @property
    def reasoning(self) -> ReasoningSplitter | None:
        """What tells the reasoning apart; None where there cannot be any."""
        return self._splitter

    @property
    def is_over(self) -> bool:
        """The answer has all the calls that it may have: what follows is of no use."""
        return self._calls is not None and self._calls.is_over

    @property
    def has_called(self) -> bool:
        """There are calls and all of them are finished."""
        return self._calls is not None and self._calls.is_complete

    def feed(self, text: str) -> list[Part]:
        """What `text` adds."""
        splitter = self._splitter
        if splitter is None or splitter.is_content:
            return self._feed_content(text)
        parts = splitter.feed(text)
        if self._suspects is None and self._calls is None:
            return parts
        out: list[Part] = []
        for part in parts:
            match part:
                case Reasoning(words):
                    out += [part] if self._suspects is None else self._suspects.feed(words)
                case Content(words):
                    if self._suspects is not None:
                        out += self._suspects.acquit()
                    out += self._feed_content(words)
        if self._suspects is not None and splitter.is_closed:
            out += self._suspects.acquit()
        return joined(out)

    def finish(self, *, is_whole: bool) -> list[Part]:
        """What was held back, when the answer has ended: by itself (`is_whole`), or cut off."""
        out: list[Part] = []
        if self._splitter is not None:
            for part in self._splitter.finish():
                match part:
                    case Reasoning(words) if self._suspects is not None:
                        out += self._suspects.feed(words)
                    case Content(words):
                        out += self._feed_content(words)
                    case _:
                        out.append(part)
        if self._suspects is not None:
            found = self._suspects.convict() if is_whole else None
            if found is not None:
                self._calls = found[1]
                return joined(out + found[0])
            out += self._suspects.acquit()
        if self._calls is not None:
            out += self._calls.finish()
        return joined(out)

    def _feed_content(self, text: str) -> list[Part]:
        if self._calls is None:
            return [Content(text)] if text else []
        return self._calls.feed(text)


def _build_parser(shape: AnswerShape, tools: Toolset) -> ToolCallParser:
    name = shape.forced_call
    forced = None
    if name is not None:
        read = read_forced_json_call if shape.form is ToolForm.JSON else read_forced_xml_call
        forced = CallScan(lambda call: read(call, tools, name))
    return ToolCallParser(
        tools,
        is_bare_allowed=shape.form is ToolForm.XML,
        calls_max=shape.calls_max,
        forced=forced,
    )


class _SuspectedCalls:
    """Calls that stand in the reasoning. Some models forget to close it before they call; others
    only think about a call. So what begins with `<tool_call>` on a line of its own is held back
    while it can be calls and nothing else: closed reasoning was reasoning, and an answer that ends
    by itself with the last of these calls is a call."""

    def __init__(self, shape: AnswerShape, tools: Toolset) -> None:
        self._shape = shape
        self._tools = tools
        self._held = ""
        self._before = "\n"  # the character before `_held`
        self._parts: list[Part] = []
        self._probe: ToolCallParser | None = None

    def feed(self, text: str) -> list[Part]:
        """What of the reasoning may be shown."""
        out: list[Part] = []
        while True:
            if self._probe is None:
                self._held += text
                probe = self._look_for_call(out)
                if probe is None:
                    return out
                text = self._held
            else:
                probe = self._probe
                self._held += text
            fresh = probe.feed(text)
            self._parts += fresh
            if not any(isinstance(p, Content) and p.text.strip() for p in fresh):
                return out
            # It was no call; there may be one after its opening.
            self._show(len(OPEN), out)
            self._probe = None
            text = ""

    def acquit(self) -> list[Part]:
        """All that is held is reasoning."""
        held, self._held, self._probe = self._held, "", None
        return [Reasoning(held)] if held else []

    def convict(self) -> tuple[list[Part], ToolCallParser] | None:
        """The calls that are held, if they are finished and the last that was said."""
        probe, self._probe = self._probe, None
        if probe is None or not probe.is_complete:
            return None
        parts = joined([*self._parts, *probe.finish()])
        if any(isinstance(p, Content) and p.text.strip() for p in parts):
            return None
        self._held = ""
        most = self._shape.calls_max
        calls = [p for p in parts if isinstance(p, CallBegan | CallArguments)]
        return [p for p in calls if not 0 < most <= p.index], probe

    def _look_for_call(self, out: list[Part]) -> ToolCallParser | None:
        begin = 0
        while (at := self._held.find(OPEN, begin)) >= 0:
            if (self._held[at - 1] if at else self._before) == "\n":
                self._show(at, out)
                self._parts = []
                self._probe = ToolCallParser(self._tools, is_bare_allowed=False)
                return self._probe
            begin = at + 1
        self._show(len(self._held) - partial_suffix(self._held, OPEN), out)
        return None

    def _show(self, length: int, out: list[Part]) -> None:
        if length:
            out.append(Reasoning(self._held[:length]))
            self._before = self._held[length - 1]
            self._held = self._held[length:]
