"""Finds stop strings in text that arrives in pieces.

Text is released as soon as it can no longer be the beginning of a stop string, and never the stop
string itself. The result does not depend on where the pieces were cut.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """The state of one sequence. `feed` pieces; at the end `flush` gives what was held back.

    Of several stop strings the one that is complete first ends the text; of those complete at the
    same place, the one that began first.
    """

    __slots__ = ("_held", "_prefixes", "_reach", "_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` holds no empty string; without any, text passes through untouched."""
        if any(not stop for stop in stops):
            raise ValueError("a stop string is empty")
        self.matched: str | None = None
        self._held = ""
        self._reach = max((len(stop) for stop in stops), default=1) - 1
        self._prefixes = frozenset(stop[:n] for stop in stops for n in range(1, len(stop)))
        self._stops = tuple(stops)

    def feed(self, text: str) -> str:
        """What may be shown now. Once `matched` is set it is always ""."""
        if not self._stops:
            return text
        if self.matched is not None or not text:
            return ""
        window = self._held + text
        hit = self._first_hit(window)
        if hit is not None:
            begin, self.matched = hit
            self._held = ""
            return window[:begin]
        keep = self._held_from(window)
        self._held = window[keep:]
        return window[:keep]

    def flush(self) -> str:
        """What was held back, when the text ended without a match."""
        held, self._held = self._held, ""
        return held

    def _first_hit(self, window: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None  # end, begin, stop
        for stop in self._stops:
            begin = window.find(stop)
            if begin >= 0:
                hit = (begin + len(stop), begin, stop)
                if best is None or hit < best:
                    best = hit
        return None if best is None else (best[1], best[2])

    def _held_from(self, window: str) -> int:
        """Where the longest end of `window` begins that may yet become a stop string."""
        for begin in range(max(0, len(window) - self._reach), len(window)):
            if window[begin:] in self._prefixes:
                return begin
        return len(window)
