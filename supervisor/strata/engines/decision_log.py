"""The decision log: each thing that was decided about the engine, as one sentence for people."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import msgspec

from strata.engines.restart import Decision, Hold, StartAfter, StayDown, Step, Stopped

ENTRIES_MAX = 100


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is stable: "restart.stepped_down", "engine.exited.signal", "hang.stopped", ..."""

    when: float  # seconds of the wall clock
    sentence: str
    code: str


class DecisionLog:
    """The newest ENTRIES_MAX entries, oldest first. `clock` is the wall clock."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._entries: deque[Entry] = deque(maxlen=ENTRIES_MAX)
        self.added = 0  # ever, also those that have been dropped since

    def add(self, code: str, sentence: str) -> None:
        self.added += 1
        self._entries.append(Entry(when=self._clock(), sentence=sentence, code=code))

    def entries(self) -> list[Entry]:
        return list(self._entries)

    def since(self, added: int) -> list[Entry]:
        """Those that came after the first `added`, as far as they are still there."""
        count = min(self.added - added, len(self._entries))
        return list(self._entries)[-count:] if count > 0 else []


def step_sentence(step: Step) -> str:
    """A step down."""
    text = f"The engine goes down from rung {step.old} to {step.new}: {step.why}."
    if step.is_pinned:
        text += " It stays there until the engine's build, the model file or its modes change."
    return text


def decision_sentence(decision: Decision) -> tuple[str, str]:
    """Code and sentence of what follows an exit, a step aside."""
    match decision:
        case StartAfter(delay_s) if delay_s == 0:
            return "restart.at_once", "The engine starts again at once."
        case StartAfter(delay_s):
            return "restart.delayed", f"The engine starts again in {delay_s:.1f} s."
        case Hold(delay_s, reason):
            text = f"The engine is held: {reason}; the next start is in {delay_s:.0f} s."
            return "restart.held", text
        case StayDown():
            text = "The engine stays down until its build or the model file changes: it refuses."
            return "restart.refused", text
        case Stopped():
            return "restart.stopped", "The engine is not started again: the service ends."
