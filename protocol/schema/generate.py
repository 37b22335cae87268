"""Derives the C++ side, schema/messages.json, the README's tables and the beacon's C++ layout from
strata_protocol.

    python protocol/schema/generate.py          writes the files
    python protocol/schema/generate.py --check  exits 1 and names the files that are stale

The output depends on the schema and on clang-format 19 alone, so it is committed and a test
compares it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

PROTOCOL = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROTOCOL))

from schema import beacon, codes, cpp, tables  # noqa: E402
from schema.describe import Record, Schema, describe  # noqa: E402
from strata_protocol import messages  # noqa: E402
from strata_protocol.errors import FaultCode  # noqa: E402
from strata_protocol.exit_codes import ExitCode  # noqa: E402
from strata_protocol.limits import MODE_MAX, MODE_PLAINEST  # noqa: E402
from strata_protocol.order import ORDER, Phase  # noqa: E402

CLANG_FORMAT_MAJOR = 19


def clang_format(text: str, name: str) -> str:
    """`text` as the repository's .clang-format wants it. Raises SystemExit without version 19."""
    beside = Path(sys.executable).parent / "clang-format"
    tool = str(beside) if beside.exists() else shutil.which("clang-format")
    if tool is None:
        raise SystemExit("clang-format is not installed (pip install 'clang-format>=19,<20')")
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    if f"version {CLANG_FORMAT_MAJOR}." not in version:
        raise SystemExit(f"clang-format {CLANG_FORMAT_MAJOR} is needed, found: {version.strip()}")
    style = PROTOCOL.parent / ".clang-format"
    command = [tool, f"--style=file:{style}", f"--assume-filename={name}"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def _record_json(record: Record) -> dict[str, Any]:
    out: dict[str, Any] = {"form": "array" if record.is_array else "map"}
    if record.tag:
        out |= {
            "tag": record.tag,
            "to": "engine" if record.to_engine else "supervisor",
            "class": "data" if record.is_data else "control",
        }
    out["fields"] = [
        {"name": f.name, "type": f.type.text(), "required": f.required}
        | ({} if f.required else {"default": msgspec.to_builtins(f.default)})
        | ({"comment": f.comment} if f.comment else {})
        for f in record.fields
    ]
    return out


def schema_json(schema: Schema) -> str:
    """The schema for readers in other languages and for diffs between versions."""
    order: dict[str, dict[str, str]] = {phase.value: {} for phase in Phase}
    for (phase, kind), after in ORDER.items():
        order[phase.value][str(kind.__struct_config__.tag)] = after.value
    document = {
        "proto_min": messages.PROTO_MIN,
        "proto_max": messages.PROTO_MAX,
        "enums": {e.name: [value for _, value in e.values] for e in schema.enums},
        "records": {r.name: _record_json(r) for r in schema.records},
        "messages": {m.name: _record_json(m) for m in schema.messages},
        "mode_max": MODE_MAX,
        "mode_plainest": MODE_PLAINEST,
        "order": order,
        "fault_codes": [code.value for code in FaultCode],
        "exit_codes": {
            e.name.lower(): {"value": e.value, "meaning": e.meaning, "retryable": e.retryable}
            for e in ExitCode
        },
    }
    return json.dumps(document, indent=2) + "\n"


def generate() -> dict[Path, str]:
    """Every generated file with the text it must have."""
    schema = describe()
    header = cpp.header(schema)
    header = header.replace("{min}", str(messages.PROTO_MIN))
    header = header.replace("{max}", str(messages.PROTO_MAX))
    sources = {
        "messages.h": header,
        "messages.cpp": cpp.source(schema),
        "codes.h": codes.header(schema),
        "codes.cpp": codes.source(),
    }
    files = {PROTOCOL / "cpp" / name: clang_format(text, name) for name, text in sources.items()}
    layout = PROTOCOL.parent / "engine" / "base" / "beacon_layout.h"
    files[layout] = clang_format(beacon.header(), layout.name)
    files[PROTOCOL / "schema" / "messages.json"] = schema_json(schema)
    readme = PROTOCOL / "README.md"
    files[readme] = tables.fill(readme.read_text(encoding="utf-8"), schema)
    return files


def stale() -> list[Path]:
    """Generated files whose committed text is not what the schema yields."""
    return [
        path
        for path, text in generate().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Derive the C++ side and messages.json")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when stale")
    if parser.parse_args().check:
        old = stale()
        for path in old:
            sys.stderr.write(f"{path.relative_to(PROTOCOL.parent)} is stale; run generate.py\n")
        return 1 if old else 0
    for path, text in generate().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
