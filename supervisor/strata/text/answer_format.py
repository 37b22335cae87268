"""How a model writes its answers, read off its chat template: whether it thinks, in which form it
calls tools, and what of a request's wishes the template has a place for.

A template is the one thing in a model file that says how answers look, since it writes earlier
answers down for the model to read. Only words are looked for; nothing is known by a model's name.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from strata.text import reasoning, tool_calls
from strata.text.tool_call_xml import FUNCTION


class ToolForm(enum.Enum):
    """How calls look; the values are what people call them."""

    JSON = "JSON in <tool_call> tags"
    XML = "<function=name> and <parameter=key> tags"


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What one template says. `tool_form` is None where it has no tools or calls them in another
    way; `has_tools` tells the two apart."""

    thinks: bool = False
    has_tools: bool = False
    tool_form: ToolForm | None = None
    names: frozenset[str] = frozenset()  # all words of the template, variables among them

    def knows(self, name: str) -> bool:
        """The template mentions `name`."""
        return name in self.names


# The tags of these forms. In a file's vocabulary they are tokens of their own, and may be hidden.
MARKERS = (reasoning.OPEN, reasoning.CLOSE, tool_calls.OPEN, tool_calls.CLOSE)


# Other forms use the same tag: `<tool_call>name<arg_key>...`, or lists of calls.
_JSON_KEYS = (re.compile(r"""["']name\\?["']\s*:"""), re.compile(r"""["']arguments\\?["']\s*:"""))
_JSON_LIST = re.compile(r"<tool_calls?>(\\n|\s)*\[")


def read_format(template: str) -> AnswerFormat:
    """The format of the answers to prompts that `template` writes."""
    names = frozenset(re.findall(r"[A-Za-z_][A-Za-z_0-9]*", template))
    has_tools = "tools" in names
    form = None
    if has_tools and tool_calls.OPEN in template:
        if FUNCTION in template:
            form = ToolForm.XML
        elif all(key.search(template) for key in _JSON_KEYS) and not _JSON_LIST.search(template):
            form = ToolForm.JSON
    return AnswerFormat(reasoning.CLOSE in template, has_tools, form, names)
