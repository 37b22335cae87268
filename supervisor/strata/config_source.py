"""Reads values into `Config`: the schema's fields, text and TOML to typed values, clear errors.

Everything is derived from the annotations of `Config`; no key is named here. A wrong value is a
`ConfigError` that names key, source and allowed range; an unknown key names its close matches.
"""

from __future__ import annotations

import difflib
import functools
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from strata.byte_size import FORMS, exact_bytes_text, parse_bytes
from strata.config import Config
from strata.errors import ConfigError

Value = str | int | float | bool | tuple[str, ...]
TOML_NAME = "strata.toml"


CLOSE = 0.7  # by difflib's ratio: --bacth is like --batch, --draft-max not like --drain-s
Kind = Literal["str", "int", "bytes", "float", "bool", "list", "choice"]


@dataclass(frozen=True, slots=True)
class Field:
    """One key of the schema."""

    key: str
    kind: Kind
    choices: tuple[str, ...]
    default: Value
    help: str
    group: str
    flag: str  # without the leading dashes
    secret: bool
    annotation: object
    meta: Meta

    @property
    def allowed(self) -> str:
        """The allowed values, as the end of the sentence "allowed: ..."."""
        meta = self.meta
        match self.kind:
            case "choice":
                return " or ".join(self.choices)
            case "bool":
                return "true or false"
            case "int":
                return f"a whole number from {meta.ge} to {meta.le}"
            case "bytes":
                least, most = (exact_bytes_text(int(n or 0)) for n in (meta.ge, meta.le))
                return f"a size from {least} to {most} ({FORMS})"
            case "float":
                return f"a number from {meta.ge} to {meta.le}"
            case "list":
                return "a list of texts that are not empty"
            case "str":
                return str((meta.extra or {}).get("allowed", "a text"))

    @property
    def metavar(self) -> str:
        """What stands for the value in the help: N, FILE, {f16,f32}."""
        if self.kind == "choice":
            return "{" + ",".join(self.choices) + "}"
        return str((self.meta.extra or {}).get("metavar", "N"))

    @property
    def usage(self) -> str:
        """The help of the flag: meaning, range, default."""
        notes = []
        if self.kind in ("int", "bytes", "float"):
            notes.append(self.allowed)
        if self.kind == "list":
            notes.append("repeatable")
        elif self.default != "":
            notes.append(f"default {self.shown(self.default)}")
        return f"{self.help} ({'; '.join(notes)})" if notes else self.help

    def shown(self, value: Value) -> str:
        """A value for people; secrets are counted, not shown."""
        if self.secret and value:
            return f"({len(value) if isinstance(value, tuple) else 1} hidden)"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return "[" + ", ".join(value) + "]"
        if self.kind == "bytes" and isinstance(value, int):
            return exact_bytes_text(value)
        return str(value)


@functools.cache
def fields() -> Mapping[str, Field]:
    """All keys of `Config`, in the order of their declaration."""
    hints = get_type_hints(Config, include_extras=True)
    found = {}
    for entry in msgspec.structs.fields(Config):
        base = get_args(hints[entry.name])[0]
        meta = cast("Meta", get_args(hints[entry.name])[1])
        extra = meta.extra or {}
        choices: tuple[str, ...] = ()
        kind: Kind
        if get_origin(base) is Literal:
            kind, choices = "choice", get_args(base)
        elif extra.get("unit") == "bytes":
            kind = "bytes"
        elif get_origin(base) is tuple:
            kind = "list"
        else:
            kind = {str: "str", int: "int", float: "float", bool: "bool"}[base]  # type: ignore[assignment]
        default = (
            entry.default_factory()
            if entry.default_factory is not msgspec.NODEFAULT
            else entry.default
        )
        found[entry.name] = Field(
            key=entry.name,
            kind=kind,
            choices=choices,
            default=default,
            help=meta.description or "",
            group=str(extra["group"]),
            flag=str(extra.get("flag", entry.name.replace("_", "-"))),
            secret=bool(extra.get("secret", False)),
            annotation=Annotated[base, meta],
            meta=meta,
        )
    return MappingProxyType(found)


def shown(config: Config) -> dict[str, str]:
    """All settings for people; secrets are counted, not shown."""
    return {key: field.shown(getattr(config, key)) for key, field in fields().items()}


def hidden(config: Config) -> list[str]:
    """The values of secret settings, to be kept out of what leaves the process."""
    found: list[str] = []
    for key, field in fields().items():
        if field.secret:
            value = getattr(config, key)
            found += value if isinstance(value, tuple) else [str(value)]
    return found


@dataclass(frozen=True, slots=True)
class Settings:
    """A checked configuration and where each of its values came from."""

    config: Config
    sources: Mapping[str, str]  # key -> "default", "--flag" or the path of the TOML file

    def is_set(self, key: str) -> bool:
        """Whether the operator gave the value."""
        return self.sources[key] != "default"


def _wrong(field: Field, value: object, source: str) -> ConfigError:
    given = "(hidden)" if field.secret else _written(value)
    return ConfigError(f"{source}: {field.key} = {given} is not allowed; allowed: {field.allowed}")


def _written(value: object) -> str:
    """A value as TOML writes it, near enough for a message."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_written(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_written(v)}" for k, v in value.items()) + "}"
    return repr(value) if isinstance(value, str) else str(value)


def check(field: Field, value: object, source: str) -> Value:
    """A value of a TOML file, checked. Raises ConfigError."""
    if field.kind == "list" and isinstance(value, list):
        if not all(isinstance(v, str) and v for v in value):
            raise _wrong(field, value, source)
        value = tuple(value)
    if field.kind == "bytes":
        value = _bytes(field, value, source)
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(field, value, source)
    try:
        checked: Value = msgspec.convert(value, field.annotation, strict=True)
    except msgspec.ValidationError:
        raise _wrong(field, value, source) from None
    if isinstance(checked, str) and "\0" in checked:
        raise _wrong(field, value, source)
    return checked


def _bytes(field: Field, value: object, source: str) -> object:
    """A size written as text, or as a float that is whole: TOML reads 1e9 as one."""
    if isinstance(value, str):
        try:
            return parse_bytes(value)
        except ValueError:
            raise _wrong(field, value, source) from None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def parse(field: Field, text: str, source: str) -> Value:
    """A value of the command line, parsed and checked. Raises ConfigError."""
    value: object = text
    try:
        match field.kind:
            case "int":
                value = int(text)
            case "float":
                value = float(text)
            case "str" | "bytes" | "choice" | "list" | "bool":
                pass  # as it is, for `check`; a bool is a flag without a text
    except ValueError:
        raise _wrong(field, text, source) from None
    return check(field, value, source)


def close_matches(name: str, known: Iterable[str]) -> str:
    """ "; did you mean a or b?" or nothing."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=CLOSE)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def read_toml(path: Path) -> dict[str, Value]:
    """The checked values of one TOML file. Raises ConfigError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None
    values = {}
    for key, value in data.items():
        if isinstance(value, dict) or (isinstance(value, list) and dict in map(type, value)):
            raise ConfigError(
                f"{path}: unknown table [{key}]; keys stand at top level, not in tables"
            )
        field = fields().get(key)
        if field is None:
            raise ConfigError(f"{path}: unknown key {key}{close_matches(key, fields())}")
        values[key] = check(field, value, str(path))
    return values


def load(flags: Mapping[str, Value], toml: Path | None) -> Settings:
    """Defaults, then `toml` (or ./strata.toml where it exists), then flags. Raises ConfigError."""
    if toml is None and Path(TOML_NAME).is_file():
        toml = Path(TOML_NAME)
    sources = dict.fromkeys(fields(), "default")
    values: dict[str, Value] = {}
    if toml is not None:
        values |= read_toml(toml)
        sources |= dict.fromkeys(values, str(toml))
    for key, value in flags.items():
        values[key] = value
        sources[key] = ("--no-" if value is False else "--") + fields()[key].flag
    return Settings(msgspec.convert(values, Config), MappingProxyType(sources))
