"""The tools a request offers, and what the values of their parameters become.

A model that writes calls in JSON writes typed values itself. The XML form has only texts; which
type a text stands for is what the tool's JSON schema says, and nothing is guessed where it is
silent: what no type of the schema fits stays a string, for the tool's owner to judge.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

STRING_ONLY = frozenset({"string"})
_ALL = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
_REFERENCES_MAX = 16  # a schema that leads from one definition to the next and on
_WORDS = {"true": "true", "True": "true", "false": "false", "False": "false"}
_NULLS = frozenset({"null", "None"})


@dataclass(frozen=True, slots=True)
class Tool:
    """`types` says which JSON types each parameter may have, by its schema."""

    name: str
    types: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of a request by name. Immutable."""

    tools: Mapping[str, Tool]

    def __contains__(self, name: str) -> bool:
        return name in self.tools

    def parameter_types(self, tool: str, parameter: str) -> frozenset[str]:
        """A parameter that the tool does not declare is a string."""
        return self.tools[tool].types.get(parameter, STRING_ONLY)


def build_tool(name: str, schema: Mapping[str, Json]) -> Tool:
    """A tool whose parameters are the properties of `schema` (checked: `tool_schema.py`)."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return Tool(name, {})
    known: dict[str, frozenset[str]] = {}
    return Tool(name, {key: _types(value, schema, known, 0) for key, value in properties.items()})


def convert(text: str, types: frozenset[str]) -> str:
    """The JSON that `text` stands for as a value of one of `types`."""
    word = text.strip()
    if "null" in types and word in _NULLS:
        return "null"
    if "boolean" in types and "string" not in types and word in _WORDS:
        return _WORDS[word]
    kind, value = _parse(word)
    if kind in ("object", "array") and kind in types:
        return value
    if "string" not in types:
        if kind == "integer" and types & {"integer", "number"}:
            return value
        if kind == "number" and "number" in types:
            return value
        if kind == "string" and not types & {"string"}:
            return value  # a text that the model wrote in quotes where no text is wanted
    return json.dumps(text, ensure_ascii=False)


def _parse(text: str) -> tuple[str, str]:
    """The type of `text` as JSON, and the JSON itself; ("", "") when it is none."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return "", ""
    match value:
        case bool():
            return "boolean", text
        case int():
            return "integer", text
        case float():
            return "number", text
        case str():
            return "string", text
        case dict():
            return "object", text
        case list():
            return "array", text
        case _:
            return "null", text


def _types(
    schema: Json, root: Mapping[str, Json], known: dict[str, frozenset[str]], depth: int
) -> frozenset[str]:
    """The JSON types that `schema` allows, as far as it says. `known`: by reference, so that each
    definition is read once however often and deep others lead to it."""
    if not isinstance(schema, Mapping) or depth > _REFERENCES_MAX:
        return STRING_ONLY
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in known:
            known[reference] = STRING_ONLY  # what leads back to itself
            known[reference] = _types(_resolve(reference, root), root, known, depth + 1)
        return known[reference]
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, Sequence) and kind:
        return frozenset(k for k in kind if isinstance(k, str))
    for word in ("enum", "const"):
        if word in schema:
            values = schema[word]
            listed = values if word == "enum" and isinstance(values, list) else [values]
            return frozenset(_parse(json.dumps(value))[0] for value in listed)
    found: frozenset[str] = frozenset()
    for word in ("anyOf", "oneOf"):
        for option in _listed(schema.get(word)):
            found |= _types(option, root, known, depth + 1)
    for option in _listed(schema.get("allOf")):
        types = _types(option, root, known, depth + 1)
        found = found & types or types
    if not found and ("properties" in schema or "additionalProperties" in schema):
        return frozenset({"object"})
    if not found and "items" in schema:
        return frozenset({"array"})
    return found & _ALL or STRING_ONLY


def _listed(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list) else ()


def _resolve(reference: str, root: Mapping[str, Json]) -> Json:
    """`#/$defs/Name` within the tool's own schema; None for anything else."""
    if not reference.startswith("#/"):
        return None
    value: Json = root
    for step in reference[2:].split("/"):
        if not isinstance(value, Mapping):
            return None
        value = value.get(step.replace("~1", "/").replace("~0", "~"))
    return value
