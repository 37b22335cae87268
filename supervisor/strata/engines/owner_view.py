"""What the owner of the engine shows of itself, and who is told when it changes."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

from strata_protocol.messages import DeviceFacts, Reason

from strata.engines.decision_log import DecisionLog
from strata.engines.epoch import Epoch
from strata.engines.exits import EngineExit


class EngineState(enum.StrEnum):
    LOADING = "loading"  # started, not ready
    READY = "ready"
    RESTARTING = "restarting"  # down, waits for its next start
    HOLD = "hold"  # down after too many crashes; tried again every few minutes
    REFUSED = "refused"  # down: no restart helps until something changes
    STOPPED = "stopped"


class OwnerObserver(Protocol):
    """Told of what status, metrics and the terminal show. Called on the event loop."""

    def on_changed(self) -> None:
        """Something in `view` changed, load progress included."""
        ...

    def on_started(self, epoch: int) -> None: ...

    def on_exited(self, exited: EngineExit) -> None: ...


@dataclass(slots=True)
class EngineView:
    """What the owner shows of itself. Written by the owner only."""

    state: EngineState = EngineState.LOADING
    epoch: Epoch | None = None
    starts: int = 0
    crashes: int = 0  # without boot attempts
    boot_attempts: int = 0  # starts that ended while a mode was being proven
    last_exit: EngineExit | None = None
    last_exit_s: float = 0.0  # loop time
    next_start_s: float | None = None  # loop time, where a start is due
    reasons: list[Reason] = field(default_factory=list)  # why it is held or refused
    decisions: DecisionLog = field(default_factory=DecisionLog)

    @property
    def device(self) -> DeviceFacts:
        """What the engine has said of it; empty where it has not."""
        caps = None if self.epoch is None else self.epoch.handshake.caps
        return DeviceFacts() if caps is None else caps.device
