"""From the body of a chat to what its prompt is made of: messages, and variables of the template.

Histories come from many clients and models. What a model once wrote is shown to it again, also
where it was wrong: a call whose arguments are no JSON is no reason to refuse all later turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from strata.api.errors import invalid, unsupported
from strata.api.schemas import ChatRequest, Message, MessageCall
from strata.text.answer_format import AnswerFormat, ToolForm
from strata.text.chat_template import ROLES, ChatMessage, PastCall, TemplateValue

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_DEPTH_MAX = 64  # of the arguments of an earlier call, before they are shown as a text
_ROLE_SPELLINGS = {"developer": "system"}  # what templates know it as
_OWN_NAMES = ("messages", "add_generation_prompt", "bos_token", "eos_token", "tools")


def read_messages(messages: Sequence[Message], answers: AnswerFormat) -> list[ChatMessage]:
    """The conversation. Raises ApiError (400) naming the message and field that is wrong."""
    if not messages:
        raise invalid("messages is empty; at least one is needed", "messages")
    return [_message(f"messages[{i}]", message, answers) for i, message in enumerate(messages)]


def template_variables(
    body: ChatRequest, answers: AnswerFormat, *, is_call_forced: bool
) -> dict[str, TemplateValue]:
    """What the template gets besides messages and tools: `chat_template_kwargs`, and thinking as
    `enable_thinking` and `reasoning_effort` ask for it.

    Raises ApiError (400) for names that are the server's, for values that contradict each other,
    and for a wish that the model's template cannot fulfil.
    """
    variables: dict[str, TemplateValue] = dict(body.chat_template_kwargs or {})
    for name in _OWN_NAMES:
        if name in variables:
            raise invalid(
                f"chat_template_kwargs.{name} is set by the server",
                f"chat_template_kwargs.{name}",
            )
    if body.enable_thinking is not None:
        if variables.setdefault("enable_thinking", body.enable_thinking) != body.enable_thinking:
            raise invalid(
                "enable_thinking and chat_template_kwargs.enable_thinking contradict each other",
                "enable_thinking",
            )
        if not body.enable_thinking:
            _check_can_stop_thinking(answers, "enable_thinking", "false")
    asked = variables.get("enable_thinking")
    effort = body.reasoning_effort
    if effort is not None:
        if effort not in EFFORTS:
            raise invalid(
                f"reasoning_effort is {effort[:40]!r}; allowed: {', '.join(EFFORTS)}",
                "reasoning_effort",
            )
        variables.setdefault("reasoning_effort", effort)
        if asked is None and answers.knows("enable_thinking"):
            variables["enable_thinking"] = effort != "none"
        elif effort == "none" and not answers.knows("reasoning_effort"):
            _check_can_stop_thinking(answers, "reasoning_effort", "none")
    if is_call_forced and answers.thinks:
        if asked or (asked is None and effort not in (None, "none")):
            param = "reasoning_effort" if asked is None else "enable_thinking"
            raise invalid(
                f"tool_choice begins the call in the prompt, before which the model cannot think;"
                f" leave {param} out, or let tool_choice be 'auto'",
                param,
            )
        if answers.knows("enable_thinking"):
            variables["enable_thinking"] = False
    return variables


def _check_can_stop_thinking(answers: AnswerFormat, param: str, value: str) -> None:
    if answers.thinks and not answers.knows("enable_thinking"):
        raise unsupported(
            param, f"{param} {value}: the model's chat template always lets it think, so this"
        )


def _message(path: str, message: Message, answers: AnswerFormat) -> ChatMessage:
    role = _ROLE_SPELLINGS.get(message.role, message.role)
    if role not in ROLES:
        raise invalid(
            f"{path}.role is {message.role[:40]!r}; allowed: {', '.join((*ROLES, 'developer'))}",
            f"{path}.role",
        )
    if message.function_call:
        raise unsupported(f"{path}.function_call", f"{path}.function_call")
    if message.tool_calls and role != "assistant":
        raise invalid(f"{path}.tool_calls is for messages of the assistant", f"{path}.tool_calls")
    _check_has_place(path, role, message, answers)
    reasoning = message.reasoning_content
    if reasoning is None:
        reasoning = message.reasoning
    return ChatMessage(
        role,
        _content(path, role, message),
        message.name,
        reasoning if role == "assistant" else None,
        tuple(_call(call, answers) for call in message.tool_calls or ()),
        message.tool_call_id if role == "tool" else None,
    )


def _check_has_place(path: str, role: str, message: Message, answers: AnswerFormat) -> None:
    """Calls and their results, which the template would leave out, or write as anyone's words."""
    if message.tool_calls and not (answers.has_tools and answers.knows("tool_calls")):
        where, what = f"{path}.tool_calls", "calls of tools"
    elif role == "tool" and not answers.has_tools:
        where, what = f"{path}.role", "results of tools"
    else:
        return
    raise unsupported(where, f"{where}: {what}, for which the model's chat template has no place,")


def _content(path: str, role: str, message: Message) -> str:
    match message.content:
        case None:
            if role != "assistant":
                raise invalid(f"{path}.content is missing", f"{path}.content")
            return ""
        case str():
            return message.content
        case parts:
            texts: list[str] = []
            for j, part in enumerate(parts):
                if part.type != "text":
                    where = f"{path}.content[{j}].type"
                    raise unsupported(where, f"{where} {part.type[:40]!r} (only 'text' is)")
                if part.text is None:
                    where = f"{path}.content[{j}].text"
                    raise invalid(f"{where} is missing", where)
                texts.append(part.text)
            return "\n".join(texts)


def _call(call: MessageCall, answers: AnswerFormat) -> PastCall:
    written = call.function.arguments
    arguments: Mapping[str, Any] | str
    match written:
        case None:
            arguments = {}
        case str():
            arguments = _read_arguments(written)
        case _:
            arguments = written
    if not isinstance(arguments, str) and not _is_shallow(arguments, _DEPTH_MAX):
        arguments = msgspec.json.encode(arguments).decode()
    if isinstance(arguments, str) and answers.tool_form is ToolForm.XML:
        arguments = {"arguments": arguments}  # this form has no place but parameters
    return PastCall(call.function.name, arguments, call.id)


def _read_arguments(text: str) -> Mapping[str, Any] | str:
    """The object that `text` says, or `text` itself where it says none."""
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _is_shallow(value: Any, levels: int) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return levels > 0 and all(_is_shallow(item, levels - 1) for item in value)
