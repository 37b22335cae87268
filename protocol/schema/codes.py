"""Writes codes.h and codes.cpp: exit codes and fault codes, the same lists as in Python."""

from __future__ import annotations

from schema.cpp import NOTICE, pascal
from strata_protocol.errors import FaultCode
from strata_protocol.exit_codes import ExitCode


def header() -> str:
    out = NOTICE + "// Exit codes of the engine and codes of protocol faults"
    out += " (protocol/README.md).\n#pragma once\n\n#include <cstdint>\n#include <string_view>\n\n"
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
    out += "};\nstd::string_view name(FaultCode code);\n\n}  // namespace strata::protocol\n"
    return out


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
