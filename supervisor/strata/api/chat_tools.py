"""The fields of a chat about tools: which are offered, which must be called, how many may be.

What no grammar can hold the model to is done in the only way that is exact without one, or refused:
a call of one certain function is begun in the prompt; a choice among several that must be a call,
and `strict`, would be promises that nobody keeps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata.api.errors import invalid, unsupported
from strata.api.schemas import ChatRequest
from strata.serving.needs import MODE_UNSUPPORTED
from strata.text.answer import AnswerShape, forced_opening
from strata.text.answer_format import AnswerFormat, ToolForm
from strata.text.tool_schema import DEPTH_MAX, SchemaError, check_parameters
from strata.text.tool_values import Json, Tool, Toolset, build_tool

TOOLS_MAX = 128
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CHOICES = '\'none\', \'auto\', \'required\' or {"type": "function", "function": {"name": ...}}'


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`definitions` are for the template; `forced` is the tool that must be called."""

    definitions: Sequence[Json] = ()
    tools: Toolset | None = None
    form: ToolForm = ToolForm.JSON
    forced: str | None = None
    calls_max: int = 0  # 0 = no limit

    @property
    def opening(self) -> str:
        """What the prompt ends with, in addition to the template."""
        return "" if self.forced is None else forced_opening(self.form, self.forced)

    def shape(self, *, thinks: bool) -> AnswerShape:
        return AnswerShape(thinks, self.tools, self.form, self.forced, self.calls_max)


def read_tools(body: ChatRequest, answers: AnswerFormat) -> ToolUse:
    """Raises ApiError (400) for what is malformed, what the model's template has no place for, and
    what would need a grammar."""
    definitions, tools = _definitions(body.tools)
    mode, name = _choice(body.tool_choice)
    if not tools:
        if mode in ("required", "function") or (body.tools is None and body.tool_choice):
            raise invalid("tool_choice is only allowed beside tools", "tool_choice")
        return ToolUse()
    if mode == "none":
        return ToolUse()  # the model is not told of tools, so it cannot call one
    if answers.tool_form is None:
        raise unsupported("tools", _why_no_form(answers))
    _refuse_strict(body.tools)
    if mode == "required":
        if len(tools) > 1:
            raise invalid(
                f"tool_choice 'required' with {len(tools)} tools needs a grammar that holds the"
                " model to their names, which no mode has so far; a single tool, or a function"
                " named in tool_choice, is called for certain",
                "tool_choice",
                MODE_UNSUPPORTED,
            )
        name = next(iter(tools))
    elif name is not None and name not in tools:
        raise invalid(f"tool_choice names {name!r}, which is not among tools", "tool_choice")
    # After a call of the named function the model might go on with others.
    one = body.parallel_tool_calls is False or mode == "function"
    return ToolUse(definitions, Toolset(tools), answers.tool_form, name, int(one))


def _why_no_form(answers: AnswerFormat) -> str:
    if not answers.has_tools:
        return "tools, for which the model's chat template has no place,"
    known = " and ".join(form.value for form in ToolForm)
    return f"tools: the form of calls in the model's chat template (known: {known})"


def _definitions(value: Any) -> tuple[list[Json], dict[str, Tool]]:
    if value is None:
        return [], {}
    if not isinstance(value, list):
        raise invalid("tools is not a list", "tools", "invalid_type")
    if len(value) > TOOLS_MAX:
        raise invalid(f"tools has {len(value)} entries; at most {TOOLS_MAX} are allowed", "tools")
    tools: dict[str, Tool] = {}
    shown: list[Json] = []
    for i, entry in enumerate(value):
        tool = _tool(entry, f"tools[{i}]")
        if tool.name in tools:
            raise invalid(f"tools names {tool.name!r} twice", f"tools[{i}].function.name")
        tools[tool.name] = tool
        shown.append(_shown(entry["function"]))
    return shown, tools


def _shown(function: dict[str, Any]) -> Json:
    """A definition as templates expect it: whole, and with nothing in it that is not for the
    model."""
    parameters = function.get("parameters")
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": function.get("description") or "",
            "parameters": {"type": "object", "properties": {}}
            if parameters is None
            else parameters,
        },
    }


def _tool(entry: Any, path: str) -> Tool:
    if not isinstance(entry, dict):
        raise invalid(f"{path} is not an object", path, "invalid_type")
    kind = entry.get("type")
    if kind != "function":
        if not isinstance(kind, str):
            raise invalid(f"{path}.type is missing or no text; allowed: 'function'", f"{path}.type")
        raise unsupported(f"{path}.type", f"{path}.type {kind[:40]!r} (only 'function' is)")
    path += ".function"
    function = entry.get("function")
    if not isinstance(function, dict):
        raise invalid(f"{path} is missing or not an object", path, "invalid_type")
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise invalid(
            f"{path}.name is {str(name)[:80]!r}; allowed: 1 to 64 of A-Z a-z 0-9 _ . -",
            f"{path}.name",
        )
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise invalid(f"{path}.description is not a text", f"{path}.description", "invalid_type")
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise invalid(f"{path}.strict is not a boolean", f"{path}.strict", "invalid_type")
    path += ".parameters"
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise invalid(f"{path} is not an object (a JSON schema)", path, "invalid_type")
    try:
        check_parameters(parameters)
    except SchemaError as error:
        where = path + error.path
        raise invalid(f"{where} {error}", where, "invalid_function_parameters") from None
    _check_depth(entry, path)
    return build_tool(name, parameters)


def _check_depth(entry: Json, path: str, depth: int = 0) -> None:
    """Also of what is no schema: examples, defaults."""
    if depth > 4 * DEPTH_MAX:
        raise invalid(f"{path} is nested too deeply", path, "invalid_function_parameters")
    if isinstance(entry, Mapping):
        entry = list(entry.values())
    if isinstance(entry, list):
        for item in entry:
            _check_depth(item, path, depth + 1)


def _refuse_strict(definitions: Sequence[Any]) -> None:
    for i, entry in enumerate(definitions):
        if entry["function"].get("strict"):
            path = f"tools[{i}].function.strict"
            raise invalid(
                f"{path} needs a grammar made of the tool's schema, which no mode has so far;"
                " without it calls are parsed and their arguments are what the model wrote",
                path,
                MODE_UNSUPPORTED,
            )


def _choice(value: Any) -> tuple[str, str | None]:
    """The mode ("function" for a named one), and the name."""
    match value:
        case None:
            return "auto", None
        case "none" | "auto" | "required":
            return value, None
        case {"type": "function", "function": {"name": str(name)}}:
            return "function", name
        case {"type": "allowed_tools" | "custom" as kind}:
            raise unsupported("tool_choice", f"tool_choice of type {kind!r}")
        case _:
            raise invalid(f"tool_choice is {str(value)[:80]!r}; allowed: {_CHOICES}", "tool_choice")
