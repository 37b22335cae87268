"""The waiting line: first come first served per key,
fair between keys. Pure: no clock, no I/O. How long it may get is decided in admission.py.

Fairness is by served tokens: the key with the least tokens served goes first. A key that was
away re-enters at the level of the least served key that waits, so absence earns no credit.
Requests that an engine sent back stand in front of everyone, in their former order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What the line needs to know of an entry."""

    @property
    def key(self) -> str: ...

    @property
    def prompt_tokens(self) -> int: ...


W = TypeVar("W", bound=Waiting)

KEYS_REMEMBERED = 4096


class Line(Generic[W]):
    """Waiting requests. `served` tokens are reported by the owner through `on_served`."""

    def __init__(self) -> None:
        self._front: deque[W] = deque()
        self._by_key: dict[str, deque[W]] = {}
        self._served: dict[str, int] = {}
        self._floor = 0  # served level of the key that went last
        self.count = 0
        self.tokens = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[W]:
        """All entries, front first; not in the order of fairness."""
        yield from self._front
        for queue in self._by_key.values():
            yield from queue

    def push(self, entry: W) -> None:
        """Adds at the end of its key's queue."""
        queue = self._by_key.get(entry.key)
        if queue is None:
            queue = self._by_key[entry.key] = deque()
            self._served[entry.key] = max(self._served.get(entry.key, 0), self._floor)
        queue.append(entry)
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
        if self._front:
            entry = self._front.popleft()
        elif self._by_key:
            key = min(self._by_key, key=self._served.__getitem__)
            queue = self._by_key[key]
            entry = queue.popleft()
            self._floor = self._served[key]
            self._served[key] += entry.prompt_tokens
            if not queue:
                self._drop_key(key)
        else:
            return None
        self._add(entry, -1)
        return entry

    def remove(self, entry: W) -> None:
        """Takes one entry out. Raises ValueError where it does not wait."""
        if entry in self._front:
            self._front.remove(entry)
        else:
            queue = self._by_key.get(entry.key)
            if queue is None:
                raise ValueError("not in line")
            queue.remove(entry)
            if not queue:
                self._drop_key(entry.key)
        self._add(entry, -1)

    def on_served(self, key: str, tokens: int) -> None:
        """Counts tokens produced for a key."""
        self._served[key] = self._served.get(key, self._floor) + tokens

    def _drop_key(self, key: str) -> None:
        del self._by_key[key]
        if len(self._served) > KEYS_REMEMBERED:
            self._served = {k: v for k, v in self._served.items() if k in self._by_key}

    def _add(self, entry: W, sign: int) -> None:
        self.count += sign
        self.tokens += sign * entry.prompt_tokens
