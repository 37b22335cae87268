"""How long a request that comes now would wait, from what was measured. Pure.

While the engine runs: the requests ahead, at the rate at which requests ended lately while others
waited; before enough have, at the mean time of one over the places. While it is away: that, after
what is left of a reload, as long as earlier ones took.
"""

from __future__ import annotations

from collections import deque

SERVICE_S_UNKNOWN = 2.0  # a request's time in the engine, before any has ended
RELOAD_S_UNKNOWN = 10.0  # from the loss of an engine to the next READY, before any was seen
ENDS_KEPT = 32
ENDS_LEAST = 4  # below this the ends say too little
SMOOTHING = 0.1  # share of the newest in the moving average of service times
RELOAD_SMOOTHING = 0.5


class WaitEstimate:
    """Times: seconds of the caller's clock."""

    def __init__(self) -> None:
        self._service_s = SERVICE_S_UNKNOWN
        self._ends: deque[float] = deque(maxlen=ENDS_KEPT)  # without a gap in which nobody waited
        self._away_s: float | None = None  # since when there is no engine
        self._is_away = True
        self._reload_s: float | None = None

    @property
    def service_s(self) -> float:
        """Mean time of a request in the engine."""
        return self._service_s

    def on_finished(self, service_s: float, now: float, *, others_wait: bool) -> None:
        """A request ended in the engine, `service_s` after it was sent."""
        self._service_s += SMOOTHING * (service_s - self._service_s)
        if others_wait:
            self._ends.append(now)
        else:
            self._ends.clear()

    def on_time(self, now: float) -> None:
        """Called regularly; so a start that nobody announced is timed, too."""
        if self._is_away and self._away_s is None:
            self._away_s = now

    def on_away(self, now: float) -> None:
        """The engine is gone, or takes nothing more."""
        if not self._is_away:
            self._away_s = now
        self._is_away = True
        self._ends.clear()

    def on_ready(self, now: float, *, was_held: bool) -> None:
        """An engine is ready. `was_held`: it had not been expected soon, which tells nothing of
        how long a reload takes."""
        if self._is_away and self._away_s is not None and not was_held:
            took_s = now - self._away_s
            before_s = took_s if self._reload_s is None else self._reload_s
            self._reload_s = before_s + RELOAD_SMOOTHING * (took_s - before_s)
        self._is_away = False
        self._away_s = None

    def reload_left_s(self, now: float) -> float | None:
        """Until the engine is expected to be ready: 0 where it is, None where nothing is known."""
        if not self._is_away:
            return 0.0
        if self._reload_s is None:
            return None
        elapsed_s = 0.0 if self._away_s is None else now - self._away_s
        # Later than expected: the later it is, the less is known.
        return max(self._reload_s - elapsed_s, elapsed_s / 4, 0.1)

    def wait_s(self, ahead: int, places: int, now: float) -> float:
        """Until a request with `ahead` waiting before it is sent; `places`: of the engine."""
        left_s = self.reload_left_s(now)
        reload_s = RELOAD_S_UNKNOWN if left_s is None else left_s
        return reload_s + self._seconds_per_request(places, now) * (ahead + 1)

    def _seconds_per_request(self, places: int, now: float) -> float:
        if len(self._ends) < ENDS_LEAST:
            return self._service_s / max(places, 1)
        # Up to now, not to the last end: an engine that has become slow shows at once.
        return (now - self._ends[0]) / len(self._ends)
