"""The restart policy: what happens after an engine ends. Events in, a decision out; no clock.

- The first restart comes at once, then after 1, 2, 4, 8, 16, 30 s with jitter.
- A good spell (10 min ready and 20 served requests) forgives everything before it.
- 5 crashes in 10 min lead to HOLD: one start every 5 min until one stays up for 10 min.
- A crash that took a mode out (quarantine.py) is followed by a start at once and counts for
  nothing else: each such start has one mode less to try.
- A deterministic refusal is not retried.
- Never more than 12 starts an hour, whatever the reason.

Kills from outside are restarted like crashes but do not count towards HOLD: they say nothing
about the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from strata.engines.exits import ExitClass

DELAY_MAX_S = 30.0
CRASHES_MAX = 5
CRASH_WINDOW_S = 600.0
HOLD_RETRY_S = 300.0
GOOD_READY_S = 600.0
GOOD_SERVED = 20
STARTS_MAX = 12
STARTS_WINDOW_S = 3600.0


@dataclass(frozen=True, slots=True)
class StartAfter:
    delay_s: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Stay down with a reason; try again after `delay_s`."""

    delay_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class StayDown:
    """Do not start again until an operator changes something."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """It ended because we asked."""


Decision = StartAfter | Hold | StayDown | Stopped


class RestartPolicy:
    """One engine's history of starts and crashes. All times are seconds of one steady clock.

    `jitter` returns a factor in [0.5, 1] for each delay.
    """

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._starts: deque[float] = deque(maxlen=STARTS_MAX)
        self._crashes: deque[float] = deque(maxlen=CRASHES_MAX)
        self._attempts = 0  # restarts since the last good spell
        self._ready_at: float | None = None
        self._served = 0
        self._is_held = False

    def on_started(self, now: float) -> None:
        self._starts.append(now)
        self._ready_at = None
        self._served = 0

    def on_ready(self, now: float) -> None:
        self._ready_at = now

    def on_request_finished(self) -> None:
        self._served += 1

    def on_exited(
        self, exit_class: ExitClass, now: float, *, took_mode_out: bool = False
    ) -> Decision:
        if exit_class is ExitClass.STOP:
            return Stopped()
        if exit_class is ExitClass.REFUSE:
            return StayDown()
        ready_s = 0.0 if self._ready_at is None else now - self._ready_at
        self._ready_at = None
        if ready_s >= GOOD_READY_S:
            self._is_held = False
            if self._served >= GOOD_SERVED:
                self._attempts = 0
                self._crashes.clear()
        if took_mode_out:
            return self._within_ceiling(now, 0.0, None)
        if exit_class is not ExitClass.EXTERNAL:
            self._crashes.append(now)
        if self._is_held or self._has_too_many_crashes(now):
            self._is_held = True
            return self._within_ceiling(
                now,
                HOLD_RETRY_S,
                f"{CRASHES_MAX} crashes within {CRASH_WINDOW_S / 60:.0f} minutes",
            )
        return self._within_ceiling(now, self._delay(), None)

    def _has_too_many_crashes(self, now: float) -> bool:
        return len(self._crashes) == CRASHES_MAX and now - self._crashes[0] <= CRASH_WINDOW_S

    def _delay(self) -> float:
        attempt = self._attempts
        self._attempts += 1
        if attempt == 0:
            return 0.0
        return min(2.0 ** min(attempt - 1, 10), DELAY_MAX_S) * self._jitter()

    def _within_ceiling(self, now: float, delay_s: float, reason: str | None) -> Decision:
        if len(self._starts) == STARTS_MAX:
            earliest_s = self._starts[0] + STARTS_WINDOW_S - now
            if earliest_s > delay_s:
                return Hold(earliest_s, reason or f"{STARTS_MAX} starts within an hour")
        return StartAfter(delay_s) if reason is None else Hold(delay_s, reason)
