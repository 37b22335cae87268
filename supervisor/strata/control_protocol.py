"""What travels over the control socket of a run directory: one JSON line asks, JSON lines answer.

The last answer has `is_final`; the connection ends with it. The socket has mode 0600 and the server
asks the kernel who is at the other end.
"""

from __future__ import annotations

import msgspec

from strata.engines.modes import ModeRow

CONTROL_NAME = "control.sock"
LINE_BYTES_MAX = 64 * 1024


class DrainCommand(msgspec.Struct, frozen=True, tag="drain", tag_field="command"):
    """Ends the service: what was accepted finishes within `drain_s`."""


class ReloadCommand(msgspec.Struct, frozen=True, tag="reload", tag_field="command"):
    """Replaces the engine by one of the settings that are in force now. `model` and `engine` are
    absolute paths that count instead of those of the settings."""

    model: str = ""
    engine: str = ""
    force: bool = False  # also settings that were left for a crash


Command = DrainCommand | ReloadCommand


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is the exit status of the command where `is_final`."""

    text: str
    code: str = ""
    status: int = 0
    is_final: bool = False
    pid: int = 0  # of the supervisor
    reasons: list[str] = []  # sentences, where it is a refusal or less than was asked
    modes: list[ModeRow] = []  # that run with less than was asked
