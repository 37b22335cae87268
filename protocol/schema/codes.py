"""Writes codes.h and codes.cpp: exit codes, fault codes, the largest values of modes and the
plainest, the same lists as in Python.
"""

from __future__ import annotations

from schema.cpp import NOTICE, cpp_type, pascal
from schema.describe import Schema
from strata_protocol.errors import FaultCode
from strata_protocol.exit_codes import ExitCode
from strata_protocol.limits import CONTEXT_MIN, MODE_MAX, MODE_PLAINEST


def _mode_limits(schema: Schema) -> str:
    """A constant for each bounded field of ModePlan, of the field's own type."""
    plan = next(record for record in schema.records if record.name == "ModePlan")
    types = {field.name: cpp_type(field.type) for field in plan.fields}
    return "".join(
        f"inline constexpr {types[name]} k{pascal(name)}Max = {value};\n"
        for name, value in MODE_MAX.items()
    )


def _mode_plainest() -> str:
    rows = "".join(f'{{"{axis}", "{value}"}},\n' for axis, value in MODE_PLAINEST.items())
    return (
        "// What OFFER's quarantine may name, and the value of a plan that the bare name leaves.\n"
        "struct ModePlainest {\nstd::string_view axis;\nstd::string_view value;\n};\n"
        f"inline constexpr ModePlainest kModePlainest[] = {{\n{rows}}};\n"
    )


def header(schema: Schema) -> str:
    out = NOTICE + "// Exit codes of the engine, codes of protocol faults and the bounds of modes\n"
    out += "// (protocol/README.md).\n#pragma once\n\n"
    out += "#include <cstdint>\n#include <string_view>\n\n"
    out += "namespace strata::protocol {\n\n// The engine never exits with 1.\n"
    out += "enum class ExitCode : uint8_t {\n"
    for e in ExitCode:
        out += f"{pascal(e.name)} = {e.value},  // {e.meaning}\n"
    out += (
        "};\n// Whether another start with unchanged file, build and configuration can succeed.\n"
    )
    out += "bool is_retryable(ExitCode code);\nstd::string_view meaning(ExitCode code);\n\n"
    out += "enum class FaultCode : uint8_t {\n"
    out += "".join(f"{pascal(f.name)},  // {f.value}\n" for f in FaultCode)
    out += "};\nstd::string_view name(FaultCode code);\n\n"
    out += "// The largest values of WantedModes and ModePlan.\n" + _mode_limits(schema)
    out += "// The least context worth serving.\n"
    out += f"inline constexpr uint32_t kContextMin = {CONTEXT_MIN};\n\n"
    out += _mode_plainest()
    return out + "\n}  // namespace strata::protocol\n"


def source() -> str:
    out = NOTICE + '#include "protocol/cpp/codes.h"\n\nnamespace strata::protocol {\n\n'
    out += "bool is_retryable(ExitCode code) {\nswitch (code) {\n"
    out += "".join(f"case ExitCode::{pascal(e.name)}:\n" for e in ExitCode if e.retryable)
    out += "return true;\ndefault: return false;\n}\n}\n\n"
    out += "std::string_view meaning(ExitCode code) {\nswitch (code) {\n"
    for e in ExitCode:
        out += f'case ExitCode::{pascal(e.name)}: return "{e.meaning}";\n'
    out += '}\nreturn "?";\n}\n\nstd::string_view name(FaultCode code) {\nswitch (code) {\n'
    for f in FaultCode:
        out += f'case FaultCode::{pascal(f.name)}: return "{f.value}";\n'
    return out + '}\nreturn "?";\n}\n\n}  // namespace strata::protocol\n'
