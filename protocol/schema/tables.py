"""Writes the tables of protocol/README.md between its BEGIN and END marks."""

from __future__ import annotations

from schema.describe import Field, FieldType, Record, Schema
from strata_protocol.errors import FaultCode
from strata_protocol.exit_codes import ExitCode
from strata_protocol.limits import MODE_MAX, MODE_PLAINEST
from strata_protocol.order import ORDER, Phase

BEGIN = "<!-- generated: {} -->"
END = "<!-- end -->"

FAULTS = {
    FaultCode.MAGIC: "the header does not start with 0x5354",
    FaultCode.VERSION: "frame version other than 1",
    FaultCode.FLAGS: "a reserved flag is set, or the data flag disagrees with the message",
    FaultCode.LENGTH: "the payload is longer than the limit of its class",
    FaultCode.CRC: "the checksum does not match",
    FaultCode.TRUNCATED: "the stream ended inside a frame",
    FaultCode.DECODE: "the payload is not MessagePack or not of the schema",
    FaultCode.UNKNOWN_TYPE: "no such message in this direction and form, and not ignorable",
    FaultCode.ORDER: "the current phase does not allow the message",
    FaultCode.MISMATCH: "no protocol version in common",
}


def _type(kind: FieldType) -> str:
    if kind.item is None:
        return kind.text()
    return _type(kind.item) + ("[]" if kind.kind == "list" else "?")


def _field(f: Field) -> str:
    text = f"`{f.name}` {_type(f.type)}"
    return text if f.required else f"[{text}]"


def _row(record: Record) -> str:
    fields = ", ".join(_field(f) for f in record.fields) or "none"
    form = "array" if record.is_array else "map"
    if not record.tag:
        return f"| {record.name} | {form} | {fields} |"
    kind = "data" if record.is_data else "control"
    to = "engine" if record.to_engine else "supervisor"
    return f"| {record.tag} | {to} | {form} | {kind} | {fields} |"


def _messages(schema: Schema) -> str:
    head = "| message | to | form | class | fields |\n|---|---|---|---|---|\n"
    return head + "\n".join(_row(record) for record in schema.messages)


def _records(schema: Schema) -> str:
    head = "| record | form | fields |\n|---|---|---|\n"
    return head + "\n".join(_row(record) for record in schema.records)


def _order() -> str:
    out = "| phase | to the supervisor | to the engine |\n|---|---|---|\n"
    for phase in Phase:
        cells: dict[bool, list[str]] = {False: [], True: []}
        for (at, kind), after in ORDER.items():
            if at is not phase:
                continue
            tag = str(kind.__struct_config__.tag)
            move = "" if after is phase else f" → {after.value}"
            to_engine = any(base.__name__.startswith("ToEngine") for base in kind.__mro__)
            cells[to_engine].append(tag + move)
        out += f"| {phase.value} | {', '.join(cells[False])} | {', '.join(cells[True])} |\n"
    return out.rstrip()


def _exit_codes() -> str:
    out = "| code | name | retryable | meaning |\n|---|---|---|---|\n"
    for e in ExitCode:
        word = "yes" if e.retryable else "no"
        out += f"| {e.value} | {e.name.lower()} | {word} | {e.meaning} |\n"
    return out.rstrip()


def _faults() -> str:
    rows = "\n".join(f"| `{code.value}` | {FAULTS[code]} |" for code in FaultCode)
    return "| code | meaning |\n|---|---|\n" + rows


def _mode_max() -> str:
    rows = "\n".join(f"| `{name}` | {value} |" for name, value in MODE_MAX.items())
    return "| field | largest value |\n|---|---|\n" + rows


def _mode_plainest() -> str:
    rows = "\n".join(f"| `{axis}` | {value} |" for axis, value in MODE_PLAINEST.items())
    return "| axis | plainest value |\n|---|---|\n" + rows


def _enums(schema: Schema) -> str:
    rows = "\n".join(f"| {e.name} | {', '.join(v for _, v in e.values)} |" for e in schema.enums)
    return "| enum | values |\n|---|---|\n" + rows


def fill(readme: str, schema: Schema) -> str:
    """`readme` with every generated part replaced. Raises ValueError where a mark is missing."""
    parts = {
        "order": _order(),
        "messages": _messages(schema),
        "records": _records(schema),
        "enums": _enums(schema),
        "mode max": _mode_max(),
        "mode plainest": _mode_plainest(),
        "faults": _faults(),
        "exit codes": _exit_codes(),
    }
    for name, text in parts.items():
        begin = BEGIN.format(name)
        if begin not in readme:
            raise ValueError(f"protocol/README.md lacks the mark {begin}")
        before, _, rest = readme.partition(begin)
        _, _, after = rest.partition(END)
        readme = f"{before}{begin}\n{text}\n{END}{after}"
    return readme
