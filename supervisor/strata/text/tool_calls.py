"""Finds calls of tools in an answer that arrives in pieces, and gives them out as they come.

Two forms, told apart by what follows `<tool_call>` (Qwen and Hermes; Qwen3-Coder and Qwen3.5):

    <tool_call>                                  <tool_call>
    {"name": "f", "arguments": {"a": 1}}         <function=f>
    </tool_call>                                 <parameter=a>
                                                 1
                                                 </parameter>
                                                 </function>
                                                 </tool_call>

A call begins only where one of the offered tools is named in this form; until then it is text, and
if it turns out to be none it stays text, character by character. What has begun is never ended on
the model's behalf: the last brace of the arguments comes with the end of the call, so those of an
unfinished one are no JSON. The result does not depend on where the pieces were cut.
"""

from __future__ import annotations

from collections.abc import Generator

from strata.text.answer_parts import CallArguments, CallBegan, Content, Part, joined
from strata.text.json_scanner import BadJsonError, next_visible
from strata.text.reasoning import partial_suffix
from strata.text.tool_call_json import read_json_call
from strata.text.tool_call_scan import CallScan, NoCallError, Run
from strata.text.tool_call_xml import FUNCTION, read_xml_call
from strata.text.tool_values import Toolset

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
HEAD_CHARS_MAX = 4096  # of a call that has not begun, before it is text after all
_SPACE = " \t\r\n"


class ToolCallParser:
    """The state of one answer. `feed` pieces, then `finish` once at the end."""

    def __init__(
        self,
        tools: Toolset,
        *,
        is_bare_allowed: bool,
        calls_max: int = 0,
        forced: CallScan | None = None,
    ) -> None:
        """`is_bare_allowed`: a line that begins with `<function=` is a call without `<tool_call>`
        before it, which models of the XML form tend to leave out. `calls_max`: no more calls than
        that begin (0: no limit), and when they are finished, nothing after them is of any use.
        `forced`: the call whose beginning stands in the prompt."""
        self._tools = tools
        self._is_bare_allowed = is_bare_allowed
        self._calls_max = calls_max
        self._held = ""  # text that has not been decided
        self._before = "\n"  # the character before `_held`
        self._awaits_close = False  # a call has just ended: its closing tag may follow
        self._is_after_call = False  # nothing but white space has come since a call
        self._scan = forced
        self._head = ""  # all of what `_scan` has read: text, should it turn out to be no call
        self._opening = ""  # the part of `_head` that made it look like a call
        self.begun = 0  # calls
        self.finished = 0  # of them; those that were broken off never are

    @property
    def is_complete(self) -> bool:
        """There are calls, and all that were begun are finished."""
        return 0 < self.begun == self.finished

    @property
    def is_over(self) -> bool:
        """There are as many finished calls as there may be."""
        return 0 < self._calls_max <= self.finished

    def feed(self, text: str) -> list[Part]:
        """What `text` adds."""
        out: list[Part] = []
        while True:
            if self.is_over:
                return joined(out)
            if self._scan is None:
                if self._is_plain(text):
                    self._show(text, out)
                    return joined(out)
                self._held += text
                text = self._look_for_call(out)
            if self._scan is None or not text:
                return joined(out)
            text = self._read_call(self._scan, text, out)

    def finish(self) -> list[Part]:
        """What was held back, when the answer has ended."""
        held, self._held = self._held, ""
        if self._scan is not None:
            held = "" if self._scan.has_begun else self._head
            self._scan = None
        elif self._is_after_call and not held.strip(_SPACE):
            held = ""
        return [Content(held)] if held else []

    def _is_plain(self, text: str) -> bool:
        """Nothing waits, and nothing in `text` has to."""
        if self._held or self._awaits_close:
            return False
        if 0 < self._calls_max <= self.begun:  # the last that may be was broken off
            return True
        if "<" in text:
            return False
        return text != "" and text[-1] not in _SPACE

    def _look_for_call(self, out: list[Part]) -> str:
        """Gives out the text of `_held` that is no call. Where one may begin, starts to read it and
        returns what follows its opening."""
        if self._awaits_close:
            rest = self._held.lstrip(_SPACE)
            if CLOSE.startswith(rest) and rest != CLOSE:
                return ""
            self._awaits_close = False
            if rest.startswith(CLOSE):
                self._held, self._before = rest[len(CLOSE) :], ">"
        held = self._held
        at, opening = self._find_opening(held)
        if at < 0:
            undecided = partial_suffix(held, OPEN)
            if self._is_bare_allowed:
                undecided = max(undecided, partial_suffix(held, FUNCTION))
            keep = len(held[: len(held) - undecided].rstrip(_SPACE))
            self._show(held[:keep], out)
            self._held = held[keep:]
            return ""
        keep = len(held[:at].rstrip(_SPACE))
        self._show(held[:keep], out)
        self._held = ""
        self._head = self._opening = held[keep : at + len(opening)]
        self._scan = CallScan(self._read_function if opening == FUNCTION else self._read_tagged)
        return held[at + len(opening) :]

    def _find_opening(self, held: str) -> tuple[int, str]:
        """Where the first opening in `held` stands, and which it is; -1 when there is none."""
        at = held.find(OPEN)
        bare = held.find(FUNCTION) if self._is_bare_allowed else -1
        while bare >= 0 and (at < 0 or bare < at):
            if (held[bare - 1] if bare else self._before) == "\n":
                return bare, FUNCTION
            bare = held.find(FUNCTION, bare + 1)
        return at, OPEN

    def _show(self, text: str, out: list[Part]) -> None:
        if text:
            out.append(Content(text))
            self._before = text[-1]
            self._is_after_call = False

    def _read_call(self, scan: CallScan, text: str, out: list[Part]) -> str:
        """Feeds `text` to the call; what it did not take is returned."""
        at = 0
        while at < len(text):
            char = scan.next_piece(text, at)
            at += len(char)
            if not scan.has_begun:
                self._head += char
            try:
                is_ended = scan.feed(char)
            except (BadJsonError, NoCallError):
                return self._give_up(scan, out) + text[at:]
            if scan.has_begun:
                if self._head:
                    self._head = self._opening = ""
                    out.append(CallBegan(self.begun, scan.name))
                    self.begun += 1
                out.append(CallArguments(self.begun - 1, scan.take()))
            elif len(self._head) > HEAD_CHARS_MAX:
                return self._give_up(scan, out) + text[at:]
            if is_ended:
                self._scan = None
                self.finished += 1
                self._awaits_close = self._is_after_call = True
                return text[at:]
        return ""

    def _give_up(self, scan: CallScan, out: list[Part]) -> str:
        """It is no call, or one that will never be finished. Returns what is to be read again, as
        text."""
        self._scan = None
        if scan.has_begun:
            out.append(CallArguments(self.begun - 1, scan.take()))
            self._is_after_call = False
            return scan.unsaid
        rest = self._head[len(self._opening) :]
        self._show(self._opening, out)
        self._head = self._opening = ""
        return rest

    def _read_tagged(self, call: CallScan) -> Generator[Run, str, None]:
        char = yield from next_visible()
        if char == "{":
            yield from read_json_call(call, self._tools)
            return
        text = char
        while text != FUNCTION:
            if not FUNCTION.startswith(text):
                raise NoCallError
            text += yield None
        yield from read_xml_call(call, self._tools)

    def _read_function(self, call: CallScan) -> Generator[Run, str, None]:
        yield from read_xml_call(call, self._tools)
