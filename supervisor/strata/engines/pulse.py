"""How long a running or loading engine has been silent, and how long its compute thread has stood
still. Pure: events with their times in, seconds out.

The engine answers PING in a thread of its own, so a PONG says that the process lives, not that it
computes. That it computes is seen in a step counter that moves, in an idle engine, and in every
message that only the compute thread sends.
"""

from __future__ import annotations

from strata_protocol.codec import ToSupervisorMessage
from strata_protocol.messages import Pong


class Pulse:
    """All times: seconds of one steady clock. `gap_s`: a longer pause between messages says that
    the process or we ourselves stood still, so the step's time starts anew."""

    def __init__(self, gap_s: float, now: float) -> None:
        self._gap_s = gap_s
        self._heard_s = now
        self._moved_s = now
        self.step = 0  # the counter of the last PONG

    def restart(self, now: float) -> None:
        """The time up to now proves nothing: we were late, or the process was stopped."""
        self._heard_s = self._moved_s = now

    def on_message(self, message: ToSupervisorMessage, now: float) -> None:
        is_after_gap = now - self._heard_s > self._gap_s
        self._heard_s = now
        if not isinstance(message, Pong):
            self._moved_s = now
            return
        if is_after_gap or not message.busy or message.step != self.step:
            self._moved_s = now
        self.step = message.step

    def moved(self, now: float) -> None:
        """The compute thread goes on, as something else than a message shows."""
        self._moved_s = now

    def silent_s(self, now: float) -> float:
        """Since the last message of any kind."""
        return now - self._heard_s

    def stuck_s(self, now: float) -> float:
        """Since the last sign that the compute thread is idle or goes on."""
        return now - self._moved_s
