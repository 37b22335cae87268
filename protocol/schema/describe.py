"""Reads the schema out of `strata_protocol`: records, messages and enums as plain data.

Fields and types come from msgspec's introspection, comments from the source text of messages.py.
Anything the C++ side has no rule for raises SchemaError, so a new kind of field cannot slip in.
"""

from __future__ import annotations

import ast
import enum
import inspect
import itertools
from dataclasses import dataclass, field
from typing import Any

import msgspec
import msgspec.inspect as mi
from strata_protocol import messages


class SchemaError(Exception):
    """messages.py uses something the generator does not know how to carry to C++."""


@dataclass(frozen=True)
class FieldType:
    """`kind` is a scalar ("u8", "u32", "u64", "i32", "token", "float", "str", "bool"), "list",
    "optional", "enum" or "struct"; `name` is the enum's or struct's, `item` the inner type.
    """

    kind: str
    name: str = ""
    item: FieldType | None = None

    def text(self) -> str:
        if self.item is not None:
            return f"{self.kind}<{self.item.text()}>"
        return self.name or self.kind


@dataclass(frozen=True)
class Field:
    name: str
    type: FieldType
    required: bool
    default: Any  # a builtin, an enum member or a struct of defaults; None where required
    comment: str


@dataclass(frozen=True)
class Record:
    """A Struct: nested record where `tag` is empty, else a message."""

    name: str
    doc: str
    is_array: bool
    fields: list[Field]
    tag: str = ""
    to_engine: bool = False
    is_data: bool = False

    @property
    def required_count(self) -> int:
        return sum(f.required for f in self.fields)


@dataclass(frozen=True)
class Enum:
    name: str
    doc: str
    values: list[tuple[str, str]]  # member name, wire value


@dataclass
class Schema:
    enums: list[Enum] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)  # a record comes after those it contains
    messages: list[Record] = field(default_factory=list)


_INTS: dict[tuple[int | None, int | None], str] = {
    (0, 0xFF): "u8",
    (0, 0xFFFF_FFFF): "u32",
    (0, None): "u64",
    (0, 0x7FFF_FFFF): "token",
    (-0x8000_0000, 0x7FFF_FFFF): "i32",
}


def _field_type(where: str, kind: mi.Type) -> FieldType:
    match kind:
        case mi.IntType(ge=ge, le=le, gt=None, lt=None) if (ge, le) in _INTS:
            return FieldType(_INTS[ge, le])
        case mi.FloatType():
            return FieldType("float")
        case mi.StrType():
            return FieldType("str")
        case mi.BoolType():
            return FieldType("bool")
        case mi.EnumType(cls=cls):
            return FieldType("enum", name=cls.__name__)
        case mi.StructType(cls=cls, tag=None):
            return FieldType("struct", name=cls.__name__)
        case mi.ListType(item_type=item):
            return FieldType("list", item=_field_type(where, item))
        case mi.UnionType(types=(inner, mi.NoneType())):
            return FieldType("optional", item=_field_type(where, inner))
    raise SchemaError(f"{where}: no C++ counterpart for {kind}")


def _comments() -> dict[tuple[str, str], str]:
    """(class, field) -> the comment at the end of the field's line."""
    source = inspect.getsource(messages)
    lines = source.splitlines()
    found: dict[tuple[str, str], str] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                line = lines[item.lineno - 1]
                found[node.name, item.target.id] = line.partition("  # ")[2].strip()
    return found


def _record(cls: type[msgspec.Struct], comments: dict[tuple[str, str], str]) -> Record:
    info = mi.type_info(cls)
    if not isinstance(info, mi.StructType):
        raise SchemaError(f"{cls.__name__} is no Struct")
    fields = []
    for f in info.fields:
        where = f"{cls.__name__}.{f.name}"
        if f.name != f.encode_name:
            raise SchemaError(f"{where}: renamed fields are not supported")
        default = f.default
        if f.default_factory is not msgspec.NODEFAULT:
            default = f.default_factory()
        fields.append(
            Field(
                name=f.name,
                type=_field_type(where, f.type),
                required=f.required,
                default=None if f.required else default,
                comment=comments.get((cls.__name__, f.name), ""),
            )
        )
    for before, after in itertools.pairwise(fields):
        if info.array_like and after.required and not before.required:
            raise SchemaError(f"{cls.__name__}.{after.name}: required after an optional field")
    return Record(
        name=cls.__name__,
        doc=inspect.cleandoc(cls.__dict__.get("__doc__") or ""),
        is_array=info.array_like,
        fields=fields,
        tag=str(info.tag) if info.tag is not None else "",
        to_engine=issubclass(cls, messages.ToEngine | messages.ToEngineRow),
        is_data=cls in messages.DATA,
    )


def _ordered(records: dict[str, Record]) -> list[Record]:
    """Source order, but a record follows every record it contains."""
    done: dict[str, Record] = {}

    def visit(record: Record) -> None:
        if record.name in done:
            return
        for f in record.fields:
            inner: FieldType | None = f.type
            while inner is not None:
                if inner.kind == "struct":
                    visit(records[inner.name])
                inner = inner.item
        done[record.name] = record

    for record in records.values():
        visit(record)
    return list(done.values())


_BASES = {"Struct", "Row", "ToEngine", "ToSupervisor", "ToEngineRow", "ToSupervisorRow"}


def describe() -> Schema:
    """The whole schema. Raises SchemaError for what cannot be carried to C++."""
    comments = _comments()
    schema = Schema()
    records: dict[str, Record] = {}
    for name, cls in vars(messages).items():
        if not inspect.isclass(cls) or cls.__module__ != messages.__name__ or name in _BASES:
            continue
        if issubclass(cls, enum.StrEnum):
            doc = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
            schema.enums.append(Enum(name, doc, [(e.name, e.value) for e in cls]))
        elif issubclass(cls, msgspec.Struct):
            record = _record(cls, comments)
            if record.tag:
                schema.messages.append(record)
            else:
                records[name] = record
    schema.records = _ordered(records)
    return schema
