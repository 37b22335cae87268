"""The environment in which chat templates run: Jinja's immutable sandbox, with bounded operations.

A template can be interrupted between its steps, but not within one: an operation that Python does
in C holds the thread until it is done. So whatever lets a few characters of a template ask for a
huge result in one operation is measured before it runs and refused with SecurityError. What
`chat_template.py` adds is the time of the whole.
"""

from __future__ import annotations

import datetime
import json
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

from strata.text.errors import TemplateError

REPEAT_MAX = 1_000_000  # length of a repeated string or list
TEXT_CHARS_MAX = 32 * 1024 * 1024  # of any text that one operation makes
WIDTH_MAX = 9_999  # of a field, an indentation, a tab, a precision
POWER_MAX = 64  # exponent of **, and bits of its base
INT_BITS_MAX = 65_536  # of a product

_LONG_NUMBER = re.compile(r"[0-9]{5,}")  # above WIDTH_MAX
# A width or precision taken from the arguments, or too large. Keys may contain anything, so every
# long number after a % counts.
_BAD_PERCENT = re.compile(r"%[-#0 +]*[0-9]*\.?\*|%.*?[0-9]{5,}", re.DOTALL)
_SIZED = (str, bytes, list, tuple)
# Methods whose first argument is a width; the others that can make much of little are in _check.
_WIDTH_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes"})
_REFUSED_METHODS = frozenset({"translate"})


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The names and tags that chat templates are written for, and nothing without a bound."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        for name, place in {"center": 1, "indent": 1, "batch": 1, "round": 1}.items():
            self.filters[name] = _with_width(self.filters[name], place)
        self.filters["format"] = _percent
        self.filters["join"] = _join
        self.filters["replace"] = _replace
        del self.filters["wordwrap"]
        del self.globals["lipsum"]
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: object, right: object
    ) -> object:
        match operator:
            case "**":
                _check_power(left, right)
            case "*":
                _check_product(left, right)
            case "%":
                if isinstance(left, str | bytes):
                    _check_percent(left, right)
            case "+":
                if isinstance(left, _SIZED) and isinstance(right, _SIZED):
                    _check_chars(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def call(  # the names are Jinja's, for its own reasons
        __self,  # noqa: N805
        __context: jinja2.runtime.Context,  # noqa: PYI063
        __obj: object,
        *args: object,
        **kwargs: object,
    ) -> object:
        if isinstance(__obj, types.BuiltinMethodType):
            args = _check_method(__obj, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None or not isinstance(
            value, types.MethodType | types.BuiltinMethodType
        ):
            return None
        text, is_map = str(value.__self__), value.__name__ == "format_map"

        def bounded(*args: object, **kwargs: object) -> str:
            if not is_map:
                return str(_Formatter(self).vformat(text, args, kwargs))
            (names,) = args
            if not isinstance(names, Mapping):
                raise TypeError("format_map() wants a mapping")
            return str(_Formatter(self).vformat(text, (), names))

        return bounded

    def join_texts(self, parts: tuple[object, ...]) -> str:
        """What `~` does."""
        texts = [str(part) for part in parts]
        _check_chars(sum(map(len, texts)))
        return "".join(texts)


class _Generator(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802  # Jinja's name
        self.write("environment.join_texts((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


TemplateSandbox.code_generator_class = _Generator


class _Formatter(SandboxedFormatter):
    """One `str.format`: fields have bounded widths, and so has their sum."""

    _chars = 0

    def format_field(self, value: object, format_spec: str) -> str:
        if _LONG_NUMBER.search(format_spec):
            _refuse(f"a width exceeds {WIDTH_MAX}")
        text = str(super().format_field(value, format_spec))
        self._chars += len(text)
        _check_chars(self._chars)
        return text


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own convention

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


# --- checks: each raises SecurityError before the work


def _refuse(text: str) -> NoReturn:
    raise SecurityError(text)


def _check_chars(count: int) -> None:
    if count > TEXT_CHARS_MAX:
        _refuse(f"a text exceeds {TEXT_CHARS_MAX} characters")


def _check_width(width: object) -> None:
    if (isinstance(width, int) and width > WIDTH_MAX) or (
        isinstance(width, str) and len(width) > WIDTH_MAX
    ):
        _refuse(f"a width exceeds {WIDTH_MAX}")


def _check_power(left: object, right: object) -> None:
    if not isinstance(right, int | float) or abs(right) > POWER_MAX:
        _refuse(f"the exponent of ** exceeds {POWER_MAX}")
    if isinstance(left, int) and left.bit_length() > POWER_MAX:
        _refuse(f"the base of ** exceeds {POWER_MAX} bits")


def _check_product(left: object, right: object) -> None:
    for many, times in ((left, right), (right, left)):
        if isinstance(many, _SIZED) and isinstance(times, int) and len(many) * times > REPEAT_MAX:
            _refuse(f"a repetition exceeds {REPEAT_MAX} elements")
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() + right.bit_length()
        if bits > INT_BITS_MAX:
            _refuse(f"a product exceeds {INT_BITS_MAX} bits")


def _check_percent(form: str | bytes, values: object) -> None:
    text = form if isinstance(form, str) else form.decode("latin-1")
    if _BAD_PERCENT.search(text):
        _refuse(f"a width is not a number up to {WIDTH_MAX}")
    shown: tuple[object, ...]
    if isinstance(values, Mapping):
        shown = (*values.values(), values)
    else:
        shown = values if isinstance(values, tuple) else (values,)
    longest = max((len(v if isinstance(v, str) else str(v)) for v in shown), default=0)
    _check_chars(len(text) + text.count("%") * (longest + WIDTH_MAX if longest > 1000 else 1000))


def _check_replace(text: str | bytes, old: object, new: object) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):  # noqa: SIM114
        count = text.count(old)
    elif isinstance(text, bytes) and isinstance(old, bytes) and isinstance(new, bytes):
        count = text.count(old)
    else:
        return  # Python refuses it
    _check_chars(len(text) + count * len(new))


def _check_method(
    method: types.BuiltinMethodType, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[object, ...]:
    """The arguments to call it with: iterators are read once."""
    owner, name = method.__self__, method.__name__
    if name in _REFUSED_METHODS:
        _refuse(f"the method {name} is not available")
    if name in _WIDTH_METHODS:
        for width in (*args[:1], *kwargs.values()):
            _check_width(width)
    elif isinstance(owner, str | bytes) and name == "replace" and len(args) > 1:
        _check_replace(owner, args[0], args[1])
    elif isinstance(owner, str | bytes) and name == "join" and args:
        items = list(args[0])  # type: ignore[call-overload]
        _check_chars(sum(len(item) + len(owner) for item in items))
        return (items, *args[1:])
    return args


# --- filters and functions


def _with_width(work: Callable[..., object], place: int) -> Callable[..., object]:
    """The filter `work` with a bound on its width, its argument number `place`."""

    def bounded(*args: object, **kwargs: object) -> object:
        for width in (*args[place : place + 1], *kwargs.values()):
            _check_width(width)
        value = args[0]
        if isinstance(value, str) and place < len(args):
            width = args[place]
            wide = len(width) if isinstance(width, str) else width
            if isinstance(wide, int):
                _check_chars(len(value) + wide * (value.count("\n") + 1))
        return work(*args, **kwargs)

    return bounded


def _percent(form: object, *args: object, **kwargs: object) -> str:
    if args and kwargs:
        raise TypeError("format takes positional or named values, not both")
    text = str(form)
    _check_percent(text, kwargs or args)
    return text % (kwargs or args)


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment,
    items: Iterable[object],
    d: object = "",
    attribute: str | int | None = None,
) -> str:
    if attribute is not None:
        items = map(make_attrgetter(environment, attribute), items)
    texts = [str(item) for item in items]
    separator = str(d)
    _check_chars(sum(len(text) + len(separator) for text in texts))
    return separator.join(texts)


def _replace(text: object, old: object, new: object, count: int | None = None) -> str:
    whole, was, becomes = str(text), str(old), str(new)
    _check_replace(whole, was, becomes)
    return whole.replace(was, becomes, -1 if count is None else count)


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # the signature templates call
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    _check_width(indent)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message)[:1000])


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)
