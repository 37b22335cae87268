"""Tells a service manager how the service is, as systemd's sd_notify(3) describes: datagrams of
KEY=VALUE lines to the socket that it named.

READY=1 once it is known how the start went, also where the engine is refused or held: HTTP is up
and says why. Until then, and while the service drains, the manager's time-out is extended, as long
as the event loop moves. WATCHDOG=1 comes from the event loop alone, so that a loop which hangs gets
the service restarted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from strata.config import NotifyEnvironment
from strata.observe.status import Status

EXTEND_S = 60.0  # from each message on; there is one every PULSE_S
PULSE_S = 10.0
STATUS_CHARACTERS = 200
SETTLED = frozenset({"ready", "degraded", "hold", "refused"})

log = logging.getLogger("strata.service")


class ServiceNotifier:
    """Sends what changed when `pulse` is called; `run` calls it now and then. Never blocks: what a
    manager does not take at once is dropped, as the next message says it again."""

    def __init__(self, environment: NotifyEnvironment, source: Callable[[], Status]) -> None:
        self._source = source
        self._watchdog_s = environment.watchdog_usec / 1e6
        self._socket: socket.socket | None = None
        self._is_ready = False
        self._shown = ""
        self._changed = asyncio.Event()
        if not environment.socket:
            return
        try:
            self._socket = _connect(environment.socket)
        except OSError as error:
            log.warning("the service manager's socket %s: %s", environment.socket, error.strerror)

    @property
    def is_on(self) -> bool:
        return self._socket is not None

    @property
    def pulse_s(self) -> float:
        """Between two pulses: at least twice within the watchdog's time."""
        return min(PULSE_S, self._watchdog_s / 2) if self._watchdog_s else PULSE_S

    def on_changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """On the event loop, until cancelled."""
        while self.is_on:
            self._changed.clear()
            self.pulse()
            try:
                async with asyncio.timeout(self.pulse_s):
                    await self._changed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(min(0.2, self.pulse_s / 4))  # many changes, few messages

    def pulse(self) -> None:
        """Says how the service is."""
        if not self.is_on:
            return
        status = self._source()
        lines = []
        if not self._is_ready and status.state in SETTLED:
            self._is_ready = True
            lines.append("READY=1")
        if not self._is_ready or status.state == "draining":
            lines.append(f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1e6:.0f}")
        if self._watchdog_s:
            lines.append("WATCHDOG=1")
        shown = status_line(status)
        if shown != self._shown:
            self._shown = shown
            lines.append(f"STATUS={shown}")
        if lines:
            self._send(lines)

    def on_stopping(self) -> None:
        """The service has begun to end."""
        self._send(["STOPPING=1", f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1e6:.0f}"])

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, lines: list[str]) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send("\n".join(lines).encode())
        except BlockingIOError:
            self._shown = ""
            self._is_ready &= "READY=1" not in lines
        except OSError as error:
            log.warning("the service manager is not told any more: %s", error.strerror)
            self.close()


def status_line(status: Status) -> str:
    """One line: state, reason, and load where requests are served."""
    if status.is_serving:
        load = f"{status.load.running} running, {status.load.waiting} waiting"
        text = f"{status.state}: {status.model.name}, {status.supervisor.url}; {load}"
    else:
        text = f"{status.state}: {status.reason}" if status.reason else status.state
    text = " ".join(text.split())
    return text if len(text) <= STATUS_CHARACTERS else text[: STATUS_CHARACTERS - 1] + "…"


def _connect(address: str) -> socket.socket:
    """Raises OSError. An address that begins with @ is an abstract one."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0))
    try:
        found.setblocking(False)
        found.connect("\0" + address[1:] if address.startswith("@") else address)
    except OSError:
        found.close()
        raise
    return found
