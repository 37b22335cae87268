"""The waiting line: who goes to the engine next. Pure: no clock, no I/O. How long it may get is
decided in admission.py.

Requests that must run alone are set aside when their turn comes, until the engine is idle.
Requests that an engine sent back stand in front of everyone, in their former order. Then come
interactive requests, then batch work (a priority above 0); within each class keys share fairly
(fair_queue.py). Batch work does not starve: while both wait, one start in BATCH_EVERY is its.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic

from strata.serving.fair_queue import FairQueue, W

BATCH_EVERY = 8


class Line(Generic[W]):
    """Waiting requests. `served` tokens are reported by the owner through `on_served`."""

    def __init__(self) -> None:
        self._front: deque[W] = deque()
        self._aside: deque[W] = deque()
        self._interactive: FairQueue[W] = FairQueue()
        self._batch: FairQueue[W] = FairQueue()
        self._passed = 0  # starts of interactive requests since batch work, which waits, had one
        self.count = 0
        self.tokens = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[W]:
        """All entries, front first; not in the order of service."""
        yield from self._front
        yield from self._aside
        yield from self._interactive
        yield from self._batch

    def push(self, entry: W) -> None:
        """Adds a request that has just been accepted."""
        self._class(entry).push(entry)
        self._add(entry, 1)

    def push_front(self, entries: list[W]) -> None:
        """Puts requests back before all others, keeping their order."""
        self._front.extendleft(reversed(entries))
        for entry in entries:
            self._add(entry, 1)

    def push_returned(self, entry: W) -> None:
        """Puts one request back before all others but those that were put back before it."""
        self._front.append(entry)
        self._add(entry, 1)

    def pop(self) -> W | None:
        """The next entry to serve, or None."""
        entry: W | None
        if self._front:
            entry = self._front.popleft()
        elif len(self._batch) and (self._passed >= BATCH_EVERY - 1 or not len(self._interactive)):
            self._passed = 0
            entry = self._batch.pop()
        else:
            self._passed = self._passed + 1 if len(self._batch) else 0
            entry = self._interactive.pop()
        if entry is not None:
            self._add(entry, -1)
        return entry

    def set_aside(self, entry: W) -> None:
        """What `pop` gave waits on, but is not among what `pop` gives."""
        self._aside.append(entry)
        self._add(entry, 1)

    @property
    def aside(self) -> W | None:
        """The first of what was set aside."""
        return self._aside[0] if self._aside else None

    def remove(self, entry: W) -> None:
        """Takes one entry out. Raises ValueError where it does not wait."""
        queue = self._class(entry)
        if entry in queue:
            queue.remove(entry)
        elif entry in self._aside:
            self._aside.remove(entry)
        else:
            self._front.remove(entry)
        self._add(entry, -1)

    def on_served(self, entry: W, tokens: int) -> None:
        """Counts tokens produced for a request, or for all of its key and class; the key pays."""
        self._class(entry).on_served(entry.key, tokens)

    def _class(self, entry: W) -> FairQueue[W]:
        return self._batch if entry.priority > 0 else self._interactive

    def _add(self, entry: W, sign: int) -> None:
        self.count += sign
        self.tokens += sign * entry.prompt_tokens
