"""What serving reports about requests, for metrics and status. Implemented in `observe`."""

from __future__ import annotations

from typing import Protocol

from strata_protocol.messages import Stats

from strata.serving.request import CancelReason


class Recorder(Protocol):
    """Called on the event loop; must not block. Times are seconds."""

    def on_accepted(self) -> None: ...

    def on_rejected(self, code: str) -> None: ...

    def on_submitted(self, queue_s: float) -> None:
        """A request left the line for the engine."""
        ...

    def on_requeued(self) -> None:
        """A request without a token, whose engine died or drains, goes back to the line."""
        ...

    def on_resumed(self, gap_s: float) -> None:
        """A request that had begun was sent to the next engine, `gap_s` after it lost its last."""
        ...

    def on_quarantined(self) -> None:
        """A request was found to kill engines and is refused from now on."""
        ...

    def on_deadline(self, where: str) -> None:
        """A request was late: at its "arrival", in the "queue", or in the "engine"."""
        ...

    def on_cancelled(self, why: CancelReason) -> None:
        """A request that had been accepted is ended before its own end."""
        ...

    def on_tokens(self, now: float, first_s: list[float], gaps_s: list[float], count: int) -> None:
        """One step's tokens: `count` new ones; time to first token of the requests that began,
        and the time since the last token of the others."""
        ...

    def on_ended(self, outcome: str, total_s: float, prompt: int, cached: int) -> None:
        """`outcome`: a finish reason or an error code. `prompt`, `cached`: prompt tokens."""
        ...

    def on_stats(self, stats: Stats, before: Stats | None) -> None:
        """What an engine has done so far, and what it said last; None: nothing yet."""
        ...

    def on_loop_lag(self, lag_s: float) -> None:
        """How late the event loop ran a timer."""
        ...


class NullRecorder:
    """Records nothing."""

    def on_accepted(self) -> None:
        pass

    def on_rejected(self, code: str) -> None:
        pass

    def on_submitted(self, queue_s: float) -> None:
        pass

    def on_requeued(self) -> None:
        pass

    def on_resumed(self, gap_s: float) -> None:
        pass

    def on_quarantined(self) -> None:
        pass

    def on_deadline(self, where: str) -> None:
        pass

    def on_cancelled(self, why: CancelReason) -> None:
        pass

    def on_tokens(self, now: float, first_s: list[float], gaps_s: list[float], count: int) -> None:
        pass

    def on_ended(self, outcome: str, total_s: float, prompt: int, cached: int) -> None:
        pass

    def on_stats(self, stats: Stats, before: Stats | None) -> None:
        pass

    def on_loop_lag(self, lag_s: float) -> None:
        pass
