"""The signature of a crash: what makes two of them the same one. Pure.

Exit class, signal or status, top frames or assertion, phase, kernel and what shared the step.
Neither pids nor addresses, times, layers or counts are part of it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import astuple, dataclass

from strata_protocol.messages import ModePlan

from strata.engines.blame import drafts, is_in_step, is_proving
from strata.engines.exits import EngineExit, ExitClass, signal_name

FRAMES_MAX = 3  # those of the kernel; further out they are the thread's that computed it
PROVING = "proving"
_FOLDERS = re.compile(r"(?:[\w.+-]*/)+(?=[\w.+-])")
_HEX = re.compile(r"0x[0-9a-f]+", re.IGNORECASE)
# The line number behind a source file's name is kept: the first alternative takes it.
_NUMBER = re.compile(r"(\.\w{1,4}:\d+)|(?<![\w.])-?\d+(?:\.\d+)?(?!\w)")


@dataclass(frozen=True, slots=True)
class Signature:
    exit_class: str
    how: str  # "SIGSEGV (11)", "exit status 70", "hang"
    assertion: str  # as `normalised` gives it
    frames: tuple[str, ...]  # the top ones, where there was no assertion
    phase: str
    kernel: str
    modes: tuple[str, ...]  # being proven, or what the step consisted of

    @property
    def id(self) -> str:
        """Short and stable across supervisors and machines."""
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()[:12]

    @property
    def sentence(self) -> str:
        """ "SIGSEGV (11) in kernel attention_f16 while proving batch"."""
        parts = [self.how]
        if self.kernel:
            parts.append(f"in kernel {self.kernel}")
        if self.modes[:1] == (PROVING,):
            parts.append(f"while proving {self.modes[-1]}")
        elif self.modes:
            parts.append(f"in a step of {self.phase} with {' and '.join(self.modes)}")
        elif self.phase:
            parts.append(f"in phase {self.phase}")
        text = " ".join(parts)
        return f"{text}: {self.assertion}" if self.assertion else text


# No end of an engine: requests that failed in steps of a mode and were fine without it.
NUMERIC = Signature(
    "numeric", "logits not finite, and finite for the same request alone", "", (), "", "", ()
)


def signature(exited: EngineExit, plan: ModePlan | None) -> Signature:
    """The signature of one end of an engine; without a beacon it holds what the exit says."""
    how = exited.exit_class.value
    if exited.exit_class.value != "hang":
        if exited.signal is not None:
            how = signal_name(exited.signal)
        elif exited.status is not None:
            how = f"exit status {exited.status}"
    view = exited.beacon
    if view is None:
        return Signature(exited.exit_class.value, how, "", (), exited.phase, "", ())
    exit_class = exited.exit_class
    crash = view.crash
    if view.exit_called and exited.signal is not None:
        # What ended the process came of the exit: its threads ran on over what exit() tears down.
        exit_class, how, crash = ExitClass.EXIT, f"exit status {view.exit_status}", None
    assertion = normalised(view.assert_text)
    frames = top_frames(crash.frames) if crash is not None and not assertion else ()
    kernel = crash.kernel if crash is not None and crash.kernel else view.kernel
    modes: list[str] = []
    if is_proving(view):
        modes = [PROVING, view.mode.partition("=")[0]]
    elif is_in_step(view):
        modes = ["several sequences" if view.sequences > 1 else "one sequence"]
        if plan is not None and drafts(view, plan):
            modes.append("drafts")
    return Signature(exit_class.value, how, assertion, frames, view.phase, kernel, tuple(modes))


def normalised(text: str) -> str:
    """An assertion without what differs from one time to the next: folders, addresses, numbers.
    The line number behind a source file's name stays."""
    text = _HEX.sub("0x", _FOLDERS.sub("", " ".join(text.split())))
    return _NUMBER.sub(lambda match: match[1] or "N", text)


def top_frames(frames: tuple[str, ...]) -> tuple[str, ...]:
    """The innermost frames in the engine itself; where there is none, in any known module."""
    known = [f for f in frames if not f.startswith("?")]
    own = [f for f in known if f.startswith("strata-engine")]
    return tuple((own or known)[:FRAMES_MAX])
