"""What the end of an engine process means: its class and a sentence for people.

Judged by exit status and by what we had asked for before, never by end-of-file alone. What the
beacon says is believed where the status leaves it open: who sent a signal, who called `exit()`.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass

from strata_protocol.beacon import BeaconView
from strata_protocol.exit_codes import ExitCode

STEP_PHASES = frozenset({"prefill", "decode", "draft"})  # of the beacon: a step is under way
WORK_PHASES = STEP_PHASES | {"probe"}


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
    phase: str  # "launch", "handshake", "loading", "probe", "running"
    uptime_s: float
    status: int | None = None  # exit status, where it exited
    signal: int | None = None
    beacon: BeaconView | None = None  # what it said it was doing, where that is known

    @property
    def is_retryable(self) -> bool:
        """Whether another start with nothing changed can succeed."""
        return self.exit_class not in (ExitClass.STOP, ExitClass.REFUSE)

    @property
    def is_crash(self) -> bool:
        """Whether the engine or its machine is to blame: an end from outside says nothing of it."""
        return self.is_retryable and self.exit_class is not ExitClass.EXTERNAL

    @property
    def is_boot_attempt(self) -> bool:
        """Whether it ended by its own doing while it found out what it can run."""
        return self.is_crash and self.phase == "probe"


# The engine's command line or the processor is wrong: no change of the model file helps.
UNUSABLE = (ExitCode.USAGE, ExitCode.ISA_MISSING)

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


def classify(
    returncode: int,
    intent: Intent | None,
    *,
    was_oom_kill: bool,
    beacon: BeaconView | None = None,
) -> ExitClass:
    """The class of an exit. An intent of ours wins: what follows a signal of ours is ours."""
    if intent is not None:
        return _INTENT_CLASS[intent]
    crash = beacon.crash if beacon is not None else None
    if returncode < 0:
        if crash is not None and crash.is_external and crash.signal == -returncode:
            return ExitClass.EXTERNAL
        if was_oom_kill and returncode == -signal.SIGKILL:
            return ExitClass.OOM
        return ExitClass.EXTERNAL if -returncode in _EXTERNAL else ExitClass.SIGNAL
    if returncode == ExitCode.OUT_OF_MEMORY:
        return ExitClass.OOM
    if returncode == ExitCode.PROTOCOL_BROKEN:
        return ExitClass.PROTOCOL
    if beacon is not None and beacon.exit_called and beacon.phase in WORK_PHASES:
        return ExitClass.EXIT  # in the middle of its work: whatever the number, nobody decided it
    if returncode == ExitCode.OK:
        return ExitClass.EXTERNAL  # SIGTERM that was not ours: it finished what ran
    known = _CODES.get(returncode)
    return ExitClass.EXIT if known is None or known.retryable else ExitClass.REFUSE


def beacon_text(view: BeaconView) -> str:
    """What an engine was doing: "in phase probe of mode batch, kernel matmul, layer 3"."""
    text = f"in phase {view.phase}"
    if view.mode:
        text += f" of mode {view.mode}"
    crash = view.crash
    kernel = crash.kernel if crash is not None and crash.kernel else view.kernel
    if kernel:
        text += f", kernel {kernel}"
        if view.layer >= 0:
            text += f", layer {view.layer}"
    if view.phase in STEP_PHASES:
        text += f", {_counted(view.sequences, 'sequence')}, {_counted(view.rows, 'row')}"
    if crash is not None and crash.is_external:
        text += f", sent by process {crash.sender_pid}"
    elif crash is not None and crash.thread not in ("", "compute"):
        text += f", in the thread {crash.thread}"
    if view.exit_called and view.phase in WORK_PHASES:
        text += ", by a call of exit()"
    if view.assert_text:
        text += f": {view.assert_text}"
    return text


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
