"""The engine's exit codes: what each means and whether the same start may be tried again.

The engine never exits with 1: that is what an interpreter, a shell or a C library uses when
nobody decided anything. C++ gets this list from `protocol/schema/generate.py`.
"""

from __future__ import annotations

import enum
from typing import Self


class ExitCode(enum.IntEnum):
    """`retryable`: another start with unchanged file, build and configuration can succeed."""

    meaning: str
    retryable: bool

    def __new__(cls, value: int, meaning: str = "", retryable: bool = False) -> Self:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        member.retryable = retryable
        return member

    OK = 0, "ended because it was asked to", False
    USAGE = 64, "unknown or malformed command line", False
    MODEL_BAD = 65, "the model file is missing, damaged or not supported", False
    ISA_MISSING = 69, "the processor lacks the instruction set this build needs", False
    INTERNAL = 70, "a fault of the engine itself", True
    OUT_OF_MEMORY = 71, "memory ran out; a smaller configuration may fit", True
    DEVICE_LOST = 74, "the compute device failed or went away", True
    PROTOCOL_BROKEN = 76, "the peer broke the protocol", True
    PROTOCOL_MISMATCH = 77, "no protocol version in common with the supervisor", False
    CONFIG_REFUSED = 78, "the configuration cannot run with this file on this device", False
    PARENT_DIED = 86, "the supervisor is gone", False
