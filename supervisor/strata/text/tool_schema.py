"""Checks that the parameters of a tool are a JSON schema of an object.

Only what is certainly wrong is found: keywords of draft 2020-12 with values of a wrong type, names
of types that do not exist, patterns of required names that are no list. Keywords that are not known
here are left to those who know them.
"""

from __future__ import annotations

from collections.abc import Mapping

from strata.text.tool_values import Json

DEPTH_MAX = 64
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_SCHEMAS = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
)
_SCHEMA_MAPS = frozenset({"properties", "$defs", "definitions", "patternProperties"})
_SCHEMA_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_COUNTS = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
)
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_TEXTS = frozenset({"$ref", "title", "description", "pattern", "format"})


class SchemaError(ValueError):
    """`path` leads to what is wrong, from the schema's root on; the text says what it is."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(text)
        self.path = path


def check_parameters(schema: Mapping[str, Json]) -> None:
    """Raises SchemaError when `schema` is no JSON schema, or one of something else than an
    object."""
    kind = schema.get("type", "object")
    if kind != "object":
        raise SchemaError(".type", f"is {_shown(kind)}; the parameters of a function are 'object'")
    _check(schema, "", 0)


def _check(schema: Json, path: str, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise SchemaError(path, f"is {_shown(schema)}; a JSON schema is an object")
    if depth > DEPTH_MAX:
        raise SchemaError(path, f"is nested deeper than {DEPTH_MAX} levels")
    for key, value in schema.items():
        at = f"{path}.{key[:100]}"
        if key == "type":
            _check_type(value, at)
        elif key in _SCHEMA_MAPS:
            if not isinstance(value, Mapping):
                raise SchemaError(at, f"is {_shown(value)}; it is an object of JSON schemas")
            for name, part in value.items():
                _check(part, f"{at}.{name[:100]}", depth + 1)
        elif key in _SCHEMA_LISTS:
            if not isinstance(value, list) or not value:
                raise SchemaError(at, f"is {_shown(value)}; it is a list of JSON schemas")
            for i, part in enumerate(value):
                _check(part, f"{at}[{i}]", depth + 1)
        elif key in _SCHEMAS:
            if key == "items" and isinstance(value, list):  # of older drafts
                for i, part in enumerate(value):
                    _check(part, f"{at}[{i}]", depth + 1)
            else:
                _check(value, at, depth + 1)
        else:
            _check_plain(key, value, at)


def _check_type(value: Json, at: str) -> None:
    names = value if isinstance(value, list) else [value]
    if not names:
        raise SchemaError(at, "is an empty list; it names at least one type")
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            raise SchemaError(at, f"is {_shown(name)}; allowed: {', '.join(TYPES)}")


def _check_plain(key: str, value: Json, at: str) -> None:
    if key == "required":
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise SchemaError(at, f"is {_shown(value)}; it is a list of names")
    elif key == "enum":
        if not isinstance(value, list) or not value:
            raise SchemaError(at, f"is {_shown(value)}; it is a list of values")
    elif key in _COUNTS:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise SchemaError(at, f"is {_shown(value)}; it is a whole number from 0 on")
    elif key in _NUMBERS:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise SchemaError(at, f"is {_shown(value)}; it is a number")
    elif key in _TEXTS and not isinstance(value, str):
        raise SchemaError(at, f"is {_shown(value)}; it is a text")


def _shown(value: Json) -> str:
    match value:
        case Mapping():
            return "an object"
        case list():
            return "an empty list" if not value else "a list"
        case None:
            return "null"
        case _:
            return repr(value)[:40]
