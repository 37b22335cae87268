"""Between one engine and serving: what a replaced engine still says reaches nobody.

Both ways: serving sends through it, so that it knows which requests the engine has and can cancel
them when another engine goes on with them.
"""

from __future__ import annotations

import asyncio

from strata_protocol.messages import Cancel, Credit, Done, Resume, Submit

from strata.engines.port import EngineListener, EngineLost, EnginePort, EngineReady, RunMessage


class Gate:
    """Implements `EngineListener` for an epoch and `EnginePort` for serving."""

    def __init__(self, listener: EngineListener, *, is_open: bool) -> None:
        self._listener = listener
        self._is_open = is_open
        self._port: EnginePort | None = None
        self._rids: set[int] = set()  # sent and not done
        self.ready: EngineReady | None = None
        self.became_ready = asyncio.Event()

    def open(self) -> None:
        """The engine serves from now on. It must be ready."""
        if self.ready is None:
            raise RuntimeError("an engine that is not ready cannot serve")
        self._is_open = True
        self._listener.on_ready(self.ready, self)

    def close(self) -> None:
        """Nothing of it counts any more; what it computes is cancelled."""
        self._is_open = False
        for rid in sorted(self._rids):
            if self._port is not None:
                self._port.send(Cancel(rid=rid))
        self._rids.clear()

    # --- EngineListener

    def on_ready(self, ready: EngineReady, port: EnginePort) -> None:
        self.ready, self._port = ready, port
        self.became_ready.set()
        if self._is_open:
            self._listener.on_ready(ready, self)

    def on_message(self, message: RunMessage) -> None:
        if not self._is_open:
            return
        if isinstance(message, Done):
            self._rids.discard(message.rid)
        self._listener.on_message(message)

    def on_writable(self, is_writable: bool) -> None:
        if self._is_open:
            self._listener.on_writable(is_writable)

    def suspected(self, suspects: tuple[int, ...]) -> frozenset[str]:
        return self._listener.suspected(suspects) if self._is_open else frozenset()

    def are_known(self, prints: frozenset[str]) -> bool:
        return self._is_open and self._listener.are_known(prints)

    def on_lost(self, lost: EngineLost) -> str:
        return self._listener.on_lost(lost) if self._is_open else ""

    def on_down(self, code: str, text: str, retry_after_s: float | None) -> None:
        if self._is_open:
            self._listener.on_down(code, text, retry_after_s)

    def why_not_move(self, ready: EngineReady) -> str:
        return self._listener.why_not_move(ready)

    # --- EnginePort

    def send(self, message: Submit | Resume | Cancel | Credit) -> None:
        if self._port is None or not self._is_open:
            return
        self._port.send(message)
        if isinstance(message, Submit | Resume):
            self._rids.add(message.rid)

    def fault(self, text: str) -> None:
        if self._port is not None and self._is_open:
            self._port.fault(text)
