"""Whether an engine hangs: judged by progress, phase by phase. Pure: what was heard and looked at
with its time in, a verdict out.

The compute thread's progress is in the beacon. In work (prefill, decode, probe, loading) it moves
with every layer; none for max(10 s, 8 x the usual of that phase), at most 60 s, is a hang. A long
prompt is none: it moves. An idle engine needs only PONGs. Without a beacon what counts is what the
messages say (pulse.py).

What must not end an engine: our own lateness and a machine that slept (the time starts anew), a
process stopped by a signal or a debugger and one that waits in the kernel (reported), memory
pressure (twice the time, once).
"""

from __future__ import annotations

from dataclasses import dataclass

from strata_protocol.codec import ToSupervisorMessage
from strata_protocol.messages import Progress, Ready

from strata.engines.exits import STEP_PHASES
from strata.engines.glance import Glance
from strata.engines.pulse import Pulse

LOAD_PHASES = frozenset({"map", "pack", "allocate"})
WORK_PHASES = STEP_PHASES | LOAD_PHASES | {"probe", "dying"}
STOPPED_STATES = frozenset("Tt")  # by a signal, by a debugger
LATE_S = 1.0  # our own lateness, or sleep of the machine, that makes all times start anew
USUAL_TIMES = 8.0
LIMIT_MAX_S = 60.0
USUAL_WEIGHT = 0.2
IN_KERNEL_S = 30.0  # waiting in the kernel so long is told
PRESSURE_PERCENT = 20.0  # of the last 10 s in which nothing could run for lack of memory
FAULTS_PER_S = 1000.0  # pages read from disk


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds without movement or message that are borne."""

    step_s: float = 10.0  # prefill, decode
    probe_s: float = 10.0
    load_s: float = 30.0
    silence_s: float = 10.0  # no PONG: process hang, where the beacon stands still too
    reader_s: float = 30.0  # no PONG, though the beacon moves
    busy_s: float = 30.0  # one step by PONGs, where the beacon knows no work

    def of(self, phase: str) -> float:
        if phase in LOAD_PHASES:
            return self.load_s
        return self.probe_s if phase == "probe" else self.step_s


@dataclass(frozen=True, slots=True)
class Vitals:
    """What the system says of the process; read when a limit is reached."""

    state: str = "R"  # as in /proc/PID/stat
    faults: int = 0  # major page faults so far
    pressure: float = 0.0  # percent, see PRESSURE_PERCENT


@dataclass(frozen=True, slots=True)
class Fine:
    """Nothing to do."""


@dataclass(frozen=True, slots=True)
class Report:
    """Something is odd, and the engine is left alone. Told once per spell."""

    code: str  # "hang.stopped", "hang.in_kernel", "hang.pressure"
    text: str


@dataclass(frozen=True, slots=True)
class Hang:
    text: str


Verdict = Fine | Report | Hang


class HangWatch:
    """One engine's. All times: seconds of one steady clock. `gap_s` as in Pulse."""

    def __init__(self, limits: Limits, gap_s: float, now: float) -> None:
        self.pulse = Pulse(gap_s, now)
        self._limits = limits
        self._is_running = False  # READY has come
        self._load_limit_s = limits.load_s
        self._waits_for = "HELLO"
        self._last_look_s = now
        self._slept_s: float | None = None
        self._place: object = None
        self._phase = ""
        self._still_since_s = now  # of the beacon
        self._usual_s: dict[str, float] = {}
        self._is_doubled = False  # for memory pressure, in this spell
        self._told = ""  # code of the last report of this spell
        self._kernel_since_s: float | None = None
        self._faults: tuple[float, int] | None = None

    # --- what is heard

    def on_message(self, message: ToSupervisorMessage, now: float) -> None:
        self.pulse.on_message(message, now)
        if isinstance(message, Progress):
            self._moved(now)
        if isinstance(message, Ready):
            self._is_running = True

    def wait_for(self, what: str, limit_s: float) -> None:
        """Before READY: what comes next, and how long it may take."""
        self._waits_for, self._load_limit_s = what, limit_s

    def limit_s(self, phase: str) -> float:
        """Seconds without movement in a phase that are borne."""
        floor_s = self._limits.of(phase)
        usual_s = self._usual_s.get(phase, 0.0)
        return max(floor_s, min(USUAL_TIMES * usual_s, LIMIT_MAX_S))

    # --- what is looked at

    def on_look(self, now: float, slept_s: float, *, late_s: float, glance: Glance | None) -> bool:
        """Takes a look at the beacon, None where there is none. Returns whether it is slow, and
        then `judge` decides. `slept_s`: of the machine since it booted; `late_s`: by how much we
        are late ourselves."""
        has_slept = self._slept_s is not None and slept_s - self._slept_s > LATE_S
        self._slept_s = slept_s
        if late_s > LATE_S or has_slept:
            self.restart(now)
        if glance is not None and (glance.place, glance.phase) != (self._place, self._phase):
            self._learn(now)
            self._place, self._phase = glance.place, glance.phase
            # Since the look before, but not later than now.
            self._moved(now)
            self._still_since_s = min(max(glance.moved_s, self._last_look_s), now)
        self._last_look_s = now
        if glance is None:
            self._phase = ""
        return bool(self._problem(now, share=0.5))

    def judge(self, now: float, vitals: Vitals) -> Verdict:
        """What it means that an engine is slow."""
        is_short = self._is_short_of_memory(now, vitals)
        if vitals.state in STOPPED_STATES:
            self._restart_times(now)
            return self._report("hang.stopped", "it is stopped by a signal or a debugger")
        problem = self._problem(now)
        if not problem:
            return Fine()
        if vitals.state == "D":
            return self._in_kernel(now, problem)
        self._kernel_since_s = None
        if not self._is_doubled and is_short:
            self._is_doubled = True
            return self._report(
                "hang.pressure",
                f"{problem}; the machine is short of memory, it gets twice the time",
            )
        return Hang(problem)

    def is_over(self, now: float) -> bool:
        """Whether a limit is exceeded."""
        return bool(self._problem(now))

    def restart(self, now: float) -> None:
        """The time up to now proves nothing."""
        self._restart_times(now)
        self._told = ""
        self._kernel_since_s = None

    # --- inside

    def _restart_times(self, now: float) -> None:
        self.pulse.restart(now)
        self._still_since_s = self._last_look_s = now

    def _moved(self, now: float) -> None:
        self.pulse.moved(now)
        self._still_since_s = now
        self._is_doubled = False
        self._told = ""
        self._kernel_since_s = None

    def _learn(self, now: float) -> None:
        """A spell without movement has ended: between the look before and this one."""
        if not self._phase or self._is_doubled:
            return
        spell_s = max(self._last_look_s - self._still_since_s, 0.0)
        usual_s = self._usual_s.get(self._phase)
        if usual_s is None:
            self._usual_s[self._phase] = spell_s
        else:
            self._usual_s[self._phase] = usual_s + USUAL_WEIGHT * (spell_s - usual_s)

    def _problem(self, now: float, share: float = 0.999) -> str:
        """What has taken too long, or `share` of that; empty where nothing has."""
        limits, pulse = self._limits, self.pulse
        silent_s, still_s = pulse.silent_s(now), now - self._still_since_s
        times = share * (2.0 if self._is_doubled else 1.0)
        if self._phase in WORK_PHASES:
            if still_s >= self.limit_s(self._phase) * times:
                return f"no movement for {still_s:.1f} s in phase {self._phase}"
            if self._is_running and silent_s >= limits.reader_s * times:
                return f"no message for {silent_s:.1f} s, though its beacon moves"
            return ""
        if not self._is_running:
            if silent_s >= self._load_limit_s * times:
                return f"no {self._waits_for} for {silent_s:.1f} s"
            return ""
        silence_s = limits.silence_s if self._phase else limits.reader_s
        if silent_s >= silence_s * times:
            return f"no message for {silent_s:.1f} s"
        stuck_s = pulse.stuck_s(now)
        if stuck_s >= limits.busy_s * times:
            return f"step {pulse.step} has not ended for {stuck_s:.1f} s"
        return ""

    def _in_kernel(self, now: float, problem: str) -> Verdict:
        if self._kernel_since_s is None:
            self._kernel_since_s = now
        if now - self._kernel_since_s < IN_KERNEL_S:
            return Fine()
        return self._report(
            "hang.in_kernel",
            f"{problem}; it waits in the kernel (state D), for a disk or a device: nothing can end"
            " it there, and no second engine is started beside it",
        )

    def _is_short_of_memory(self, now: float, vitals: Vitals) -> bool:
        before, self._faults = self._faults, (now, vitals.faults)
        if vitals.pressure > PRESSURE_PERCENT:
            return True
        if before is None or now <= before[0]:
            return False
        return (vitals.faults - before[1]) / (now - before[0]) > FAULTS_PER_S

    def _report(self, code: str, text: str) -> Verdict:
        if self._told == code:
            return Fine()
        self._told = code
        return Report(code, text)
