"""What the end of an engine process means: its class and a sentence for people.

Judged by exit status and by what we had asked for before, never by end-of-file alone.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass

from strata_protocol.exit_codes import ExitCode


class ExitClass(enum.StrEnum):
    STOP = "stop"  # we asked for it
    REFUSE = "refuse"  # deterministic: the same start would end the same way
    OOM = "oom"  # memory ran out, or the kernel killed it for memory
    SIGNAL = "signal"  # a fault of its own: SEGV, ABRT, BUS, ILL, ...
    EXTERNAL = "external"  # killed or told to end from outside
    HANG = "hang"  # no progress; we killed it
    PROTOCOL = "protocol"  # broke the protocol; we killed it
    BOOT = "boot"  # could not be launched at all
    EXIT = "exit"  # ended by itself with a status that says something went wrong


class Intent(enum.StrEnum):
    """Why we are about to end the process; set before any signal is sent."""

    STOP = "stop"
    HANG = "hang"
    PROTOCOL = "protocol"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class EngineExit:
    """One abnormal or asked-for end of an engine process."""

    epoch: int
    pid: int
    exit_class: ExitClass
    text: str  # "killed by SIGKILL (9) while running, 41 s after start"
    phase: str  # "launch", "handshake", "loading", "running"
    uptime_s: float
    status: int | None = None  # exit status, where it exited
    signal: int | None = None

    @property
    def is_retryable(self) -> bool:
        """Whether another start with nothing changed can succeed."""
        return self.exit_class not in (ExitClass.STOP, ExitClass.REFUSE)

    @property
    def is_crash(self) -> bool:
        """Whether the engine or its machine is to blame: an end from outside says nothing of it."""
        return self.is_retryable and self.exit_class is not ExitClass.EXTERNAL


_CODES: dict[int, ExitCode] = {code.value: code for code in ExitCode}


def signal_name(number: int) -> str:
    """ "SIGKILL (9)"."""
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return f"signal {number}"


def status_text(returncode: int) -> str:
    """A process's return code in words; negative means killed by that signal."""
    if returncode < 0:
        return f"killed by {signal_name(-returncode)}"
    known = _CODES.get(returncode)
    return f"exited with status {returncode}" + (f" ({known.meaning})" if known else "")


_EXTERNAL = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_INTENT_CLASS = {
    Intent.STOP: ExitClass.STOP,
    Intent.HANG: ExitClass.HANG,
    Intent.PROTOCOL: ExitClass.PROTOCOL,
    Intent.REFUSED: ExitClass.REFUSE,
}


def classify(returncode: int, intent: Intent | None, *, was_oom_kill: bool) -> ExitClass:
    """The class of an exit. An intent of ours wins: what follows a signal of ours is ours."""
    if intent is not None:
        return _INTENT_CLASS[intent]
    if returncode < 0:
        if was_oom_kill and returncode == -signal.SIGKILL:
            return ExitClass.OOM
        return ExitClass.EXTERNAL if -returncode in _EXTERNAL else ExitClass.SIGNAL
    if returncode == ExitCode.OUT_OF_MEMORY:
        return ExitClass.OOM
    if returncode == ExitCode.PROTOCOL_BROKEN:
        return ExitClass.PROTOCOL
    if returncode == ExitCode.OK:
        return ExitClass.EXTERNAL  # SIGTERM that was not ours: it finished what ran
    known = _CODES.get(returncode)
    return ExitClass.EXIT if known is None or known.retryable else ExitClass.REFUSE
