"""The waiting requests of one class: fair between keys, ordered within a key. Pure; no I/O.

Between keys it counts tokens (a virtual token counter): the key that was served least goes next,
and pays its prompt at once and its answer as that comes. A key that was away enters at the level of
the least served key that waits, or of the key that went last, so absence earns no credit. Two keys
that keep waiting are never further apart than one request's tokens, and what runs, can take them.

Within a key the lower `priority` goes first, then who came first, where a long prompt counts as
having come later by up to AGEING_S: short ones may pass it, but none that came AGEING_S after it.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

AGEING_S = 5.0  # a long prompt is passed by what comes within this of it, and by nothing later
AGEING_TOKENS_PER_S = 1024  # of its prompt; from AGEING_S times this many on, nothing is added
KEYS_REMEMBERED = 4096


class Waiting(Protocol):
    """What the line needs to know of an entry; nothing of it changes while it waits."""

    @property
    def key(self) -> str: ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def priority(self) -> int:
        """Lower goes first; above 0 is batch work."""
        ...

    @property
    def arrived_s(self) -> float: ...


W = TypeVar("W", bound=Waiting)


class FairQueue(Generic[W]):
    """Waiting requests of one class. Entries are told apart by identity (hash)."""

    def __init__(self) -> None:
        # Sorted per key: (priority, place in time, number of arrival, entry).
        self._by_key: dict[str, list[tuple[int, float, int, W]]] = {}
        self._tickets: dict[W, tuple[int, float, int, W]] = {}
        self._served: dict[str, int] = {}
        # Heap of (level, number, key). A level in it may be too low; an item is dead where
        # `_entered` has another number for its key, or none.
        self._levels: list[tuple[int, int, str]] = []
        self._entered: dict[str, int] = {}
        self._last_key: str | None = None  # that went last
        self._floor = 0  # its level then
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, entry: W) -> bool:
        return entry in self._tickets

    def __iter__(self) -> Iterator[W]:
        """All entries, in the order of arrival."""
        return iter(self._tickets)

    def push(self, entry: W) -> None:
        late_s = min(entry.prompt_tokens / AGEING_TOKENS_PER_S, AGEING_S)
        number = next(self._numbers)
        ticket = (entry.priority, entry.arrived_s + late_s, number, entry)
        queue = self._by_key.get(entry.key)
        if queue is None:
            level = max(self._served.get(entry.key, 0), self._entry_level())
            self._served[entry.key] = level
            self._entered[entry.key] = number
            heapq.heappush(self._levels, (level, number, entry.key))
            queue = self._by_key[entry.key] = []
        bisect.insort(queue, ticket)
        self._tickets[entry] = ticket

    def pop(self) -> W | None:
        """The next entry to serve, or None."""
        self._settle()
        if not self._levels:
            return None
        self._floor, _, key = self._levels[0]
        self._last_key = key
        queue = self._by_key[key]
        entry = queue.pop(0)[-1]
        del self._tickets[entry]
        self._served[key] += entry.prompt_tokens
        if not queue:
            self._drop_key(key)
        return entry

    def remove(self, entry: W) -> None:
        """Takes one entry out. Raises KeyError where it does not wait here."""
        ticket = self._tickets.pop(entry)
        queue = self._by_key[entry.key]
        del queue[bisect.bisect_left(queue, ticket)]
        if not queue:
            self._drop_key(entry.key)

    def on_served(self, key: str, tokens: int) -> None:
        """Counts tokens produced for a key."""
        self._served[key] = self._served.get(key, self._floor) + tokens

    def _entry_level(self) -> int:
        """Where a key that was away comes in."""
        self._settle()
        if self._levels:
            return self._levels[0][0]
        if self._last_key is None:
            return 0
        return max(self._floor, self._served.get(self._last_key, 0))

    def _settle(self) -> None:
        """Makes the top of the heap the key that was served least; levels only ever rise."""
        while self._levels:
            level, number, key = self._levels[0]
            if self._entered.get(key) != number:
                heapq.heappop(self._levels)
            elif level != self._served[key]:
                heapq.heapreplace(self._levels, (self._served[key], number, key))
            else:
                return

    def _drop_key(self, key: str) -> None:
        del self._by_key[key]
        del self._entered[key]
        if len(self._served) > KEYS_REMEMBERED + 2 * len(self._by_key):
            kept = {*self._by_key, self._last_key}
            self._served = {k: v for k, v in self._served.items() if k in kept}
