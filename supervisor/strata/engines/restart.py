"""The restart policy: what happens after an engine ends. Events in, a decision out; no clock.

- The first restart comes at once, then after 1, 2, 4, 8, 16, 30 s with jitter.
- 3 crashes of one signature, 5 of any, or 3 before READY within 10 min on one rung lead one rung
  down the ladder, to the implicated axis where there is one. Lack of memory leads to the next rung
  that needs less at its first time: the same configuration is not tried again while there is one.
  Where there is none the engine is asked for less (less.py); a step up asks for all again.
- Below the last rung is HOLD: a start every 5 min; where none becomes ready, further apart.
- A good spell (10 min ready and 20 served requests) forgives the crashes before it.
- After 30 min without a crash a start tries one rung up; where none comes, an idle engine is asked
  to make room for it, at most every 6 h. If the same signature comes again up there, the rung below
  is pinned until build, model file or configuration changes.
- A crash that took a mode out (quarantine.py) is followed by a start at once and counts for
  nothing else: each such start has one mode less to try. Those that one
  request is convicted of count as one.
- An end from outside is followed by a start at once and counts for nothing.
- A deterministic refusal is not retried.
- Never more than 12 starts an hour, 8 of them in a row without READY, ends from outside or asked
  for aside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from strata.engines.exits import ExitClass
from strata.engines.good_run import GOOD_READY_S, GOOD_SERVED
from strata.engines.less import Less, less_than
from strata.engines.restart_state import (
    FALLS_MAX,
    WAIT_MAX_S,
    CrashNote,
    Fall,
    RestartState,
    StartNote,
)
from strata.engines.rungs import Ladder, is_same_rung

DELAY_MAX_S = 30.0
SAME_CRASHES_MAX = 3
CRASHES_MAX = 5
BOOT_CRASHES_MAX = 3
CRASH_WINDOW_S = 600.0
HOLD_RETRY_S = 300.0
HOLD_RETRY_MAX_S = 1800.0  # of an engine that does not become ready
STARTS_MAX = 12
UNREADY_STARTS_MAX = 8  # in a row, none of which became ready
STARTS_WINDOW_S = WAIT_MAX_S
CLEAN_S = 1800.0  # without a crash, before a step up
STEP_UP_EVERY_S = 6 * 3600.0  # an engine is ended for a step up
FALLS_IN_A_ROW = 2  # steps down within the window before one leads to the plainest rung


@dataclass(frozen=True, slots=True)
class Step:
    """From one rung to another. `why` is a clause: "3 crashes of one signature within ..."."""

    old: str
    new: str
    why: str
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class StartAfter:
    delay_s: float
    step: Step | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Stay down with a reason; try again after `delay_s`."""

    delay_s: float
    reason: str
    step: Step | None = None


@dataclass(frozen=True, slots=True)
class StayDown:
    """Do not start again until an operator changes something."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """It ended because we asked."""


Decision = StartAfter | Hold | StayDown | Stopped


@dataclass(frozen=True, slots=True)
class Ended:
    """One end of an engine. `axis`: of the ladder, that it implicates."""

    exit_class: ExitClass
    signature: str = ""
    axis: str = ""
    took_mode_out: bool = False


class RestartPolicy:
    """One engine's history of starts and crashes. All times are seconds of one steady clock.

    `jitter` returns a factor in [0.5, 1] for each delay. `state` is what there is to remember; it
    changes with every call.
    """

    def __init__(
        self,
        jitter: Callable[[], float],
        state: RestartState | None = None,
        *,
        is_strict: bool = False,
    ) -> None:
        self._jitter = jitter
        self._is_strict = is_strict  # what was wanted or nothing
        self.state = state or RestartState()
        self._ladder: Ladder | None = None  # of the engine that runs, from its CAPS on
        self._rung = 0
        self._ready_at: float | None = None
        self._served = 0

    @property
    def rung(self) -> int:
        """0 is the top; of the engine that runs or ran last."""
        return self._rung

    @property
    def rung_count(self) -> int:
        """Rungs of its ladder; 0 before one is known."""
        return 0 if self._ladder is None else len(self._ladder.rungs)

    # --- events

    def on_place(self, place: str, now: float) -> bool:
        """Before each start: what is about to be started. Another place than before forgets
        everything; returns whether there was something to forget."""
        if place == self.state.place:
            return False
        had_any = self.state != RestartState(place=self.state.place)
        self.state = RestartState(place=place)
        return had_any

    def first_start(self, now: float) -> Decision:
        """When a supervisor that has just come up may start its first engine."""
        due_s = max((self.state.next_start or now) - now, 0.0)
        held = self.state.held_why if self.state.is_held and due_s > 0 else None
        return self._within_ceiling(now, due_s, held)

    def on_started(self, now: float) -> None:
        state = self.state
        state.starts = [s for s in state.starts if now - s.at < STARTS_WINDOW_S]
        state.starts.append(StartNote(at=now))
        state.next_start = None
        if state.less is not None and state.clean_s >= CLEAN_S:
            state.less, state.limit, state.why = None, None, ""
            self._on_stepped(now)
        self._ladder = None
        self._ready_at = None
        self._served = 0

    def choose(self, ladder: Ladder, now: float) -> tuple[int, Step | None]:
        """The rung on which an engine goes on from its CAPS, and the step up that this is."""
        state, step = self.state, None
        index = ladder.find(state.limit)
        floor = 0 if state.pin is None else ladder.find(state.pin)
        if index > floor and state.clean_s >= CLEAN_S:
            name = ladder.rungs[index].name
            index -= 1
            state.limit = ladder.limit(index) if index else None
            state.why = state.why if index else ""
            self._on_stepped(now)
            step = Step(name, ladder.rungs[index].name, "no crash for long enough")
        self._ladder, self._rung = ladder, index
        state.rung = ladder.rungs[index].name
        return index, step

    def on_ready(self, now: float) -> None:
        self._ready_at = now
        starts = self.state.starts
        if starts:
            starts[-1] = msgspec.structs.replace(starts[-1], became_ready=True)

    def take_over(self, ladder: Ladder, now: float) -> None:
        """An engine that was proven beside the last one goes on, on the rung of `peek`."""
        self.on_made_room(now)
        self.on_started(now)
        self._ladder, self._rung = ladder, self.peek(ladder)
        self.state.rung = ladder.rungs[self._rung].name
        self.on_ready(now)

    def peek(self, ladder: Ladder) -> int:
        """The rung without a step up."""
        return ladder.find(self.state.limit)

    def on_request_finished(self) -> None:
        self._served += 1

    def on_exited(self, ended: Ended, now: float) -> Decision:
        ready_s, was_ready = self._end_life(now)
        decision = self._decide(ended, now, ready_s, was_ready=was_ready)
        self.state.next_start = None
        if isinstance(decision, StartAfter | Hold):
            self.state.next_start = now + decision.delay_s
        return decision

    def on_convicted(self, signature: str) -> None:
        """A request is convicted of the crashes of this signature that nobody was convicted of
        before: they count as one from now on. What several are convicted of is the rung's doing."""
        crashes = self.state.crashes
        open_ = [c for c in crashes if c.signature == signature and not c.is_settled]
        kept = [c for c in crashes if c not in open_]
        settled = [msgspec.structs.replace(c, is_settled=True) for c in open_[-1:]]
        self.state.crashes = sorted([*kept, *settled], key=lambda crash: crash.at)

    def on_made_room(self, now: float) -> Decision:
        """The engine has been ended for a step up."""
        ready_s, _ = self._end_life(now)
        self._forget_start()
        self.state.clean_s += ready_s
        return StartAfter(0.0)

    def is_step_up_due(self, now: float) -> bool:
        """Whether an engine that has nothing to do should be ended for a step up."""
        state, ladder = self.state, self._ladder
        if ladder is None or self._ready_at is None:
            return False
        if self._rung == 0 and state.less is None:
            return False
        if state.pin is not None and ladder.find(state.pin) >= self._rung:
            return False
        is_clean = state.clean_s + now - self._ready_at >= CLEAN_S
        return is_clean and (state.stepped is None or now - state.stepped >= STEP_UP_EVERY_S)

    def look(self, now: float) -> None:
        """Now and then beside a running engine: forgives after a good spell."""
        if self._ready_at is not None:
            self._forgive(now - self._ready_at)

    # --- inside

    def _end_life(self, now: float) -> tuple[float, bool]:
        was_ready = self._ready_at is not None
        ready_s = 0.0 if self._ready_at is None else now - self._ready_at
        self._forgive(ready_s)
        self._ready_at = None
        return ready_s, was_ready

    def _forgive(self, ready_s: float) -> None:
        if ready_s < GOOD_READY_S:
            return
        state = self.state
        state.is_held, state.holds, state.held_why = False, 0, ""
        if self._served < GOOD_SERVED:
            return
        state.attempts = 0
        state.crashes = []
        if self._ladder is not None:
            plan = self._ladder.rungs[self._rung].plan
            state.falls = [f for f in state.falls if not is_same_rung(plan, f.plan)]

    def _decide(self, ended: Ended, now: float, ready_s: float, *, was_ready: bool) -> Decision:
        state = self.state
        if was_ready or ended.exit_class is not ExitClass.EXTERNAL:
            state.outside = 0
        match ended.exit_class:
            case ExitClass.STOP:
                self._forget_start()
                state.clean_s += ready_s
                return Stopped()
            case ExitClass.REFUSE:
                return StayDown()
            case ExitClass.EXTERNAL:
                self._forget_start()
                state.clean_s += ready_s
                return self._within_ceiling(now, self._delay_outside(was_ready=was_ready), None)
        state.clean_s = 0.0
        if ended.took_mode_out:
            return self._within_ceiling(now, 0.0, None)
        signature = "oom" if ended.exit_class is ExitClass.OOM else ended.signature
        state.crashes = [c for c in state.crashes if now - c.at <= CRASH_WINDOW_S]
        state.crashes.append(CrashNote(at=now, signature=signature, was_ready=was_ready))
        if (why := self._why_down(ended, signature, now, was_ready=was_ready)) is None:
            return self._within_ceiling(now, self._delay(), None)
        step = self._step_down(ended, signature, why, now, was_ready=was_ready)
        if step is None and ended.exit_class is ExitClass.OOM:
            step = self._ask_less(why, now)
        if step is not None:
            return self._within_ceiling(now, self._delay(), None, step)
        return self._hold(why, now, was_ready=was_ready)

    def _why_down(self, ended: Ended, signature: str, now: float, *, was_ready: bool) -> str | None:
        """Why this rung is given up, or None where it is tried again."""
        state, crashes = self.state, self.state.crashes
        if ended.exit_class is ExitClass.OOM and (self._has_smaller() or self._next_less()):
            return "memory ran out"
        if self._is_repeat(signature):
            return "the crash that led down before came again"
        same = sum(c.signature == signature for c in crashes)
        window = f"within {CRASH_WINDOW_S / 60:.0f} minutes"
        if same >= SAME_CRASHES_MAX:
            return f"{same} crashes of one signature {window}"
        if len(crashes) >= CRASHES_MAX:
            return f"{len(crashes)} crashes {window}"
        boots = sum(not c.was_ready for c in crashes)
        if boots >= BOOT_CRASHES_MAX:
            return f"{boots} starts that did not become ready {window}"
        last = state.falls[-1] if state.falls else None
        is_fresh = last is not None and now - last.at <= CRASH_WINDOW_S
        if not was_ready and is_fresh and last is not None and last.signature == signature:
            return "it ended on this rung as on the one above"
        return state.held_why if state.is_held else None

    def _has_smaller(self) -> bool:
        ladder = self._ladder
        return ladder is not None and ladder.below_in_memory(self._rung) is not None

    def _next_less(self) -> Less | None:
        if self._ladder is None or self._is_strict:
            return None
        return less_than(self._ladder.rungs[self._rung].plan, self.state.less)

    def _ask_less(self, why: str, now: float) -> Step | None:
        """None where the engine is asked for the least already."""
        state, less = self.state, self._next_less()
        if less is None or self._ladder is None:
            return None
        state.less, state.why = less, why
        # Smaller sizes make another ladder: its top is within them.
        state.limit = None if self._rung == 0 else self._ladder.limit(self._rung)
        state.is_held, state.holds, state.held_why = False, 0, ""
        self._on_stepped(now)
        name = self._ladder.rungs[self._rung].name
        return Step(name, f"{name} with at most {less.text}", why)

    def _is_repeat(self, signature: str) -> bool:
        """Whether this signature led down from this very rung before."""
        if self._ladder is None:
            return False
        plan = self._ladder.rungs[self._rung].plan
        return any(
            f.signature == signature and is_same_rung(plan, f.plan) for f in self.state.falls
        )

    def _step_down(
        self, ended: Ended, signature: str, why: str, now: float, *, was_ready: bool
    ) -> Step | None:
        """None where there is no rung to go to."""
        state, ladder, index = self.state, self._ladder, self._rung
        if ladder is None:
            return None  # it ended before it knew what it can run: no rung is better
        is_repeat = self._is_repeat(signature)
        recent = [f for f in state.falls if now - f.at <= CRASH_WINDOW_S]
        for_memory = ended.exit_class is ExitClass.OOM
        target: int | None
        if for_memory:
            target = ladder.below_in_memory(index, is_last=len(recent) >= FALLS_IN_A_ROW)
        else:
            target = ladder.below(index, ended.axis)
            # What ends several rungs before READY has nothing to do with what they run.
            in_vain = [f for f in recent if not f.was_ready]
            is_in_vain = bool(in_vain) and in_vain[-1].signature == signature
            if not was_ready and (is_in_vain or len(in_vain) >= FALLS_IN_A_ROW):
                target = None if target is None else len(ladder.rungs) - 1
        if target is None:
            return None
        old, new = ladder.rungs[index], ladder.rungs[target]
        fall = Fall(at=now, plan=old.plan, signature=signature, was_ready=was_ready)
        kept = [f for f in state.falls if f.plan != old.plan or f.signature != signature]
        state.falls = [*kept, fall][-FALLS_MAX:]
        state.limit = ladder.limit(target, for_memory=for_memory)
        if is_repeat:
            state.pin = state.limit
        state.rung, state.why = new.name, why
        state.is_held, state.holds, state.held_why = False, 0, ""
        self._on_stepped(now)
        return Step(old.name, new.name, why, is_repeat)

    def _on_stepped(self, now: float) -> None:
        self.state.crashes = []
        self.state.clean_s = 0.0
        self.state.stepped = now

    def _hold(self, why: str, now: float, *, was_ready: bool) -> Decision:
        state = self.state
        state.is_held = True
        state.held_why = why
        state.holds = 0 if was_ready else state.holds + 1
        doubled = 2.0 ** min(max(state.holds - 1, 0), 8)
        return self._within_ceiling(now, min(HOLD_RETRY_S * doubled, HOLD_RETRY_MAX_S), why)

    def _delay(self) -> float:
        attempt = self.state.attempts
        self.state.attempts += 1
        return self._delay_of(attempt)

    def _delay_outside(self, *, was_ready: bool) -> float:
        """At once, unless it is never let live until READY."""
        if was_ready:
            return 0.0
        self.state.outside += 1
        return self._delay_of(self.state.outside - 1)

    def _delay_of(self, attempt: int) -> float:
        if attempt == 0:
            return 0.0
        return min(2.0 ** min(attempt - 1, 10), DELAY_MAX_S) * self._jitter()

    def _forget_start(self) -> None:
        """The last start does not count, but that it became ready does."""
        *kept, last = self.state.starts or [StartNote(at=0.0)]
        if kept and last.became_ready:
            kept[-1] = msgspec.structs.replace(kept[-1], became_ready=True)
        self.state.starts = kept

    def _within_ceiling(
        self, now: float, delay_s: float, reason: str | None, step: Step | None = None
    ) -> Decision:
        starts = self.state.starts
        unready: list[StartNote] = []
        for start in reversed(starts):
            if start.became_ready:
                break
            unready.insert(0, start)
        for counted, most in ((starts, STARTS_MAX), (unready, UNREADY_STARTS_MAX)):
            if len(counted) < most:
                continue
            earliest_s = counted[-most].at + STARTS_WINDOW_S - now
            if earliest_s > delay_s:
                delay_s = earliest_s
                reason = reason or f"{most} starts within an hour"
        return StartAfter(delay_s, step) if reason is None else Hold(delay_s, reason, step)
