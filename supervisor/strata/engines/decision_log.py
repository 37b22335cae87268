"""The decision log: each thing that was decided about the engine, as one sentence for people."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import msgspec

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
