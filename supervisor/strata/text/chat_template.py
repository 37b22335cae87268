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

from strata.text.errors import TemplateError
from strata.text.template_sandbox import TemplateSandbox

RENDER_S = 5.0
OUTPUT_CHARS_MAX = 32 * 1024 * 1024

ROLES = ("system", "user", "assistant", "tool")
TemplateValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn as templates see it; `role` is one of ROLES."""

    role: str
    content: str
    name: str | None = None


class ChatTemplate:
    """A compiled template. Immutable and thread-safe."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        """Raises TemplateError when the template is not valid Jinja."""
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = TemplateSandbox().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"the model's chat template is not valid: {error}") from error

    def render(
        self, messages: Sequence[ChatMessage], variables: Mapping[str, TemplateValue]
    ) -> str:
        """The prompt, with the opening of the assistant's turn at its end.

        `variables` are further names for the template (`enable_thinking`). Raises TemplateError
        with the template's own words when it refuses the messages.
        """
        listed = [
            {"role": m.role, "content": m.content}
            if m.name is None
            else {"role": m.role, "content": m.content, "name": m.name}
            for m in messages
        ]
        return _run_bounded(
            lambda: self._join(
                {**variables, **self._tokens, "messages": listed, "add_generation_prompt": True}
            ),
            RENDER_S,
        )

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
