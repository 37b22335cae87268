"""Renders the Jinja chat template that a model file carries.

The template comes from a file of unknown origin, so it runs in a sandbox that bounds what it can
ask for in one operation (`template_sandbox.py`), with bounds on its time and its output. `render`
is meant for a worker thread: however the template behaves, the event loop goes on, and the thread
comes back after `RENDER_S`. What is not bounded is memory that a template piles up piece by piece
meanwhile.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jinja2

from strata.text.answer_format import AnswerFormat, read_format
from strata.text.errors import TemplateError
from strata.text.template_sandbox import TemplateSandbox
from strata.text.tool_values import Json

RENDER_S = 5.0
OUTPUT_CHARS_MAX = 32 * 1024 * 1024

ROLES = ("system", "user", "assistant", "tool")
TemplateValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of a tool in an earlier turn. `arguments` is the object that was meant, or the text
    that was written where that is no object."""

    name: str
    arguments: Mapping[str, Json] | str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn as templates see it; `role` is one of ROLES. `reasoning` and `calls` are an
    assistant's, `call_id` says which call a tool's message answers."""

    role: str
    content: str
    name: str | None = None
    reasoning: str | None = None
    calls: tuple[PastCall, ...] = ()
    call_id: str | None = None

    def as_template(self) -> dict[str, object]:
        """The names that templates know; what is not there is undefined to them."""
        out: dict[str, object] = {"role": self.role, "content": self.content}
        if self.name is not None:
            out["name"] = self.name
        if self.reasoning is not None:
            out["reasoning_content"] = self.reasoning
        if self.calls:
            out["tool_calls"] = [_call_as_template(call) for call in self.calls]
        if self.call_id is not None:
            out["tool_call_id"] = self.call_id
        return out


def _call_as_template(call: PastCall) -> dict[str, object]:
    out: dict[str, object] = {} if call.call_id is None else {"id": call.call_id}
    out["type"] = "function"
    out["function"] = {"name": call.name, "arguments": call.arguments}
    return out


class ChatTemplate:
    """A compiled template. Immutable and thread-safe."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        """Raises TemplateError when the template is not valid Jinja."""
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self.format: AnswerFormat = read_format(source)
        try:
            self._template = TemplateSandbox().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"the model's chat template is not valid: {error}") from error

    def render(
        self,
        messages: Sequence[ChatMessage],
        variables: Mapping[str, TemplateValue],
        tools: Sequence[Json] = (),
    ) -> str:
        """The prompt, with the opening of the assistant's turn at its end.

        `variables` are further names for the template (`enable_thinking`), `tools` the definitions
        as the client wrote them. Raises TemplateError with the template's own words when it
        refuses the messages.
        """
        names: dict[str, object] = {
            **variables,
            **self._tokens,
            "messages": [message.as_template() for message in messages],
            "tools": list(tools) or None,
            "add_generation_prompt": True,
        }
        return _run_bounded(lambda: self._join(names), RENDER_S)

    def _join(self, names: Mapping[str, object]) -> str:
        out: list[str] = []
        length = 0
        try:
            for chunk in self._template.generate(names):
                length += len(chunk)
                if length > OUTPUT_CHARS_MAX:
                    raise TemplateError(
                        f"the chat template's output exceeds {OUTPUT_CHARS_MAX} characters"
                    )
                out.append(chunk)
        except (TemplateError, MemoryError):
            raise
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template failed: {error}") from error
        except Exception as error:  # whatever the template provoked is its failure
            raise TemplateError(
                f"the chat template failed: {type(error).__name__}: {error}"
            ) from error
        return "".join(out)


class _RenderTimeout(BaseException):
    """Raised inside the rendering thread; a BaseException so that no handler on the way eats it."""


def _run_bounded(work: Callable[[], str], limit_s: float) -> str:
    """Runs `work` in this thread and raises TemplateError when it takes longer than `limit_s`.

    A timer raises the exception in this thread at its next bytecode. `active` and the pending
    exception change only under the lock, so it can strike nothing but `work`.
    """
    lock = threading.Lock()
    active = True
    thread_id = threading.get_ident()

    def strike() -> None:
        with lock:
            if active:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread_id), ctypes.py_object(_RenderTimeout)
                )

    timer = threading.Timer(limit_s, strike)
    timer.daemon = True
    timer.start()
    try:
        try:
            return work()
        finally:
            with lock:
                active = False
            timer.cancel()
            _deliver_pending()
    except _RenderTimeout:
        raise TemplateError(f"the chat template did not finish within {limit_s:g} s") from None


def _deliver_pending() -> None:
    """A call is where the interpreter raises an exception that another thread has set."""
