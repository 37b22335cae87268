"""Watches one engine: looks at its beacon, sends PINGs, and ends it where it hangs.

`hang.py` decides; here are the looks and the signals. An engine that hangs is asked for the compute
thread's backtrace (SIGUSR2), then aborted, so that it can write last words, then killed with its
whole group. One that goes on after it was asked is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from strata.engines.epoch_beacon import EpochBeacon
from strata.engines.exits import Intent
from strata.engines.hang import Fine, Hang, HangWatch, Limits, Report
from strata.engines.process import EngineProcess
from strata.engines.steady import slept_s
from strata.engines.vitals import is_stopped, read_vitals

LOOK_S = 0.25
DUMP_LOOK_S = 0.02
STUCK_S = 10.0  # from SIGKILL until it is told that the process does not end


@dataclass(frozen=True, slots=True)
class Patience:
    """How long which silence is borne, in seconds."""

    ping_s: float = 2.0  # between PINGs
    silence_s: float = 10.0  # no message while it runs, and a beacon that stands still: a hang
    reader_s: float = 30.0  # no message, where the beacon moves or there is none: a hang
    step_s: float = 10.0  # no movement in prefill and decode; more where more is usual: a hang
    busy_s: float = 30.0  # one step by its PONGs, where the beacon does not tell: a hang
    stall_s: float = 30.0  # no PROGRESS while loading; the handshake's own, where shorter, wins
    probe_s: float = 10.0  # neither beacon nor PROGRESS moves while a mode is proven: a hang
    dump_s: float = 3.0  # from SIGUSR2 to SIGABRT
    abort_s: float = 5.0  # from SIGABRT to SIGKILL
    reap_s: float = 0.5  # from the event pipe's end to the exit
    refuse_s: float = 3.0  # from REFUSE to the exit
    drain_s: float = 5.0  # from DRAIN to the exit
    term_s: float = 3.0  # from SIGTERM to SIGKILL

    @property
    def limits(self) -> Limits:
        return Limits(
            step_s=self.step_s,
            probe_s=self.probe_s,
            load_s=self.stall_s,
            silence_s=self.silence_s,
            reader_s=self.reader_s,
            busy_s=self.busy_s,
        )


class WatchHost(Protocol):
    """The epoch. Called on the event loop."""

    @property
    def is_running(self) -> bool:
        """READY has come."""
        ...

    def ping(self) -> None: ...

    def on_report(self, report: Report) -> None: ...

    def on_continued(self) -> None:
        """It was stopped by a signal or a debugger, and runs again."""
        ...

    def on_hang(self, text: str) -> None:
        """Before the first signal."""
        ...

    def on_went_on(self) -> None:
        """It moved again after `on_hang`, and is left alone."""
        ...


class EngineWatch:
    """Run `run` as a task from the pipes' connection to the exit. `hang` takes what is heard."""

    def __init__(
        self,
        patience: Patience,
        host: WatchHost,
        beacon: EpochBeacon | None,
        now: Callable[[], float],
    ) -> None:
        self._patience = patience
        self._host = host
        self._beacon = beacon
        self._now = now
        # A late PONG is normal on a busy machine, three missing ones in a row are a gap.
        self.hang = HangWatch(patience.limits, 3 * patience.ping_s, now())

    async def run(self, process: EngineProcess) -> None:
        tick_s = min(LOOK_S, self._patience.ping_s)
        ping_at = due = self._now()
        was_stopped = False
        while True:
            due = self._now() + tick_s
            await asyncio.sleep(tick_s)
            now = self._now()
            is_slow, is_still = self._look(now - due), is_stopped(process.pid)
            # An idle engine that is stopped is not slow for seconds: its state says it at once.
            if is_slow or is_still:
                await self._judge(process)
            if was_stopped and not is_still:
                self.hang.restart(self._now())
                self._host.on_continued()
            was_stopped = is_still
            if self._host.is_running and self._now() >= ping_at:
                ping_at = self._now() + self._patience.ping_s * 0.99
                self._host.ping()

    def _look(self, late_s: float) -> bool:
        glance = None if self._beacon is None else self._beacon.glance()
        return self.hang.on_look(self._now(), slept_s(), late_s=late_s, glance=glance)

    async def _judge(self, process: EngineProcess) -> None:
        match self.hang.judge(self._now(), read_vitals(process.pid)):
            case Report() as report:
                self._host.on_report(report)
            case Hang(text):
                self._host.on_hang(text)
                if await self._is_gone_on(process):
                    self._host.on_went_on()
                else:
                    await self._end(process)
            case Fine():
                pass

    async def _is_gone_on(self, process: EngineProcess) -> bool:
        """Asks for a backtrace, waits for it, and looks once more."""
        beacon = self._beacon
        if beacon is None or beacon.glance() is None:
            return False  # it may have no handler, and the signal would end it
        process.signal_leader(signal.SIGUSR2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience.dump_s):
                while not beacon.has_dump() and process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(DUMP_LOOK_S)
        self._look(0.0)
        return process.returncode is None and not self.hang.is_over(self._now())

    async def _end(self, process: EngineProcess) -> None:
        if self._beacon is not None and self._beacon.glance() is not None:
            process.signal_leader(signal.SIGABRT)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience.abort_s):
                    await process.wait()
        process.signal(signal.SIGKILL, Intent.HANG)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STUCK_S):
                await process.wait()
        if process.returncode is None:
            text = "it does not end after SIGKILL, it waits in the kernel"
            self._host.on_report(Report("hang.in_kernel", f"{text}; no second engine is started"))
        await process.wait()
