"""Renders the Jinja chat template that a model file carries.

The template comes from a file of unknown origin, so it runs in Jinja's immutable sandbox, with
bounds on its time, its output and the sizes it can ask for in one operation. `render` is meant for
a worker thread: however the template behaves, the event loop goes on, and the thread comes back
after `RENDER_S`. What is not bounded is memory that a template piles up piece by piece meanwhile.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strata.text.errors import TemplateError

RENDER_S = 5.0
OUTPUT_CHARS_MAX = 32 * 1024 * 1024
REPEAT_MAX = 1_000_000  # length of a repeated string or list
POWER_MAX = 64  # exponent of **

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
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        try:
            self._template = environment.from_string(source)
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


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment that chat templates are written for."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: object, right: object
    ) -> object:
        if operator == "**":
            if not isinstance(right, int | float) or abs(right) > POWER_MAX:
                raise SecurityError(f"the exponent {right!r} exceeds {POWER_MAX}")
            if isinstance(left, int) and left.bit_length() > POWER_MAX:
                raise SecurityError(f"the base of ** exceeds {POWER_MAX} bits")
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if (
                    isinstance(many, str | list | tuple)
                    and isinstance(times, int)
                    and len(many) * times > REPEAT_MAX
                ):
                    raise SecurityError(f"a repetition exceeds {REPEAT_MAX} elements")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own convention

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # the signature templates call
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message)[:1000])


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)


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
