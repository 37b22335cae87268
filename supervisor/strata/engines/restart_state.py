"""What the restart policy remembers: of one place (build, model file, wanted modes), on one clock.

Plain data, so that it can be written to disk as it is; `restart_store.py` does that.
"""

from __future__ import annotations

import msgspec
from strata_protocol.messages import ModePlan

from strata.engines.less import Less
from strata.engines.rungs import Limit

FALLS_MAX = 16
WAIT_MAX_S = 3600.0  # until a start, at most: the window in which starts are counted


class StartNote(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    became_ready: bool = False


class CrashNote(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    signature: str
    was_ready: bool
    is_settled: bool = False  # a request is convicted of it, and it stands for all that one did


class Fall(msgspec.Struct, frozen=True, kw_only=True):
    """A step down: the rung that was left and what brought it down."""

    at: float
    plan: ModePlan
    signature: str
    was_ready: bool


class RestartState(msgspec.Struct, kw_only=True):
    """All times: seconds of one clock that goes on while the machine sleeps."""

    place: str = ""
    starts: list[StartNote] = []  # that count, of the last hour
    crashes: list[CrashNote] = []  # on the present rung, of the last window
    attempts: int = 0  # restarts since the last good spell
    outside: int = 0  # ends from outside before READY, in a row
    limit: Limit | None = None  # what may run at most; None: all that was chosen
    less: Less | None = None  # what the engine is asked for at most; None: all that was wanted
    rung: str = ""  # name of the one that ran last
    why: str = ""  # sentence: why it is below the top
    falls: list[Fall] = []
    pin: Limit | None = None  # steps up end here
    is_held: bool = False
    holds: int = 0  # in a row, of starts that did not become ready
    held_why: str = ""
    clean_s: float = (
        0.0  # ready without a crash since the last step or crash, the present life aside
    )
    stepped: float | None = None  # last step up or down
    next_start: float | None = None  # where one is due


def moved(state: RestartState, by_s: float) -> RestartState:
    """The same with all times later by `by_s`: on another clock."""
    replace = msgspec.structs.replace
    return replace(
        state,
        starts=[replace(s, at=s.at + by_s) for s in state.starts],
        crashes=[replace(c, at=c.at + by_s) for c in state.crashes],
        falls=[replace(f, at=f.at + by_s) for f in state.falls],
        stepped=None if state.stepped is None else state.stepped + by_s,
        next_start=None if state.next_start is None else state.next_start + by_s,
    )


def not_after(state: RestartState, now: float) -> RestartState:
    """The same with nothing that happened later than now, and the next start within the hour that
    bounds all waits: whatever a file says, no service waits longer."""
    replace = msgspec.structs.replace
    due = state.next_start
    return replace(
        state,
        starts=[replace(s, at=min(s.at, now)) for s in state.starts],
        crashes=[replace(c, at=min(c.at, now)) for c in state.crashes],
        falls=[replace(f, at=min(f.at, now)) for f in state.falls],
        stepped=None if state.stepped is None else min(state.stepped, now),
        next_start=None if due is None else min(due, now + WAIT_MAX_S),
    )


class RestartView(msgspec.Struct, frozen=True, kw_only=True):
    """The policy's counters, for people."""

    rung: str = ""  # of the engine that runs or ran last; empty before one is known
    rung_index: int = 0  # 0 is the top
    rung_count: int = 0  # 0 before the ladder is known
    rung_why: str = ""  # a clause, where it is not the top
    is_pinned: bool = False  # no step up until build, model file or modes change
    crashes_in_window: int = 0  # on this rung, of the last ten minutes
    starts_in_hour: int = 0  # of those that count
    holds: int = 0  # in a row, none of which became ready
