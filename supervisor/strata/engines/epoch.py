"""One engine from launch to known exit: process, pipes, handshake, timers.

`run` returns the exit; it never raises for anything the engine does. The timers judge what
`pulse.py` measures: no PROGRESS while loading; a beacon that stands still while a mode is proven;
no PONG, or a step that does not end, while running.
A stopped process (SIGSTOP, debugger) is reported and left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from strata_protocol.beacon import BeaconView
from strata_protocol.codec import ToSupervisorMessage
from strata_protocol.errors import FaultCode, ProtocolFault
from strata_protocol.messages import (
    Cancel,
    Caps,
    Credit,
    Done,
    Drain,
    Dying,
    FinishReason,
    Hello,
    Ping,
    Pong,
    Probe,
    Progress,
    PromptLogprobs,
    Ready,
    Reason,
    Refuse,
    Resume,
    Stats,
    Submit,
    Tokens,
)

from strata.engines import stale
from strata.engines.blame import is_proving
from strata.engines.client import EngineClient
from strata.engines.engine_log import EngineLog
from strata.engines.epoch_beacon import EpochBeacon
from strata.engines.exits import (
    EngineExit,
    ExitClass,
    Intent,
    beacon_text,
    classify,
    status_text,
)
from strata.engines.handshake import (
    BecameReady,
    Broken,
    Handshake,
    HandshakeMessage,
    Refused,
    SendOffer,
    SendPlan,
    Wanted,
)
from strata.engines.port import ENGINE_DRAINING, EngineListener, EngineReady
from strata.engines.process import EngineProcess, Launch, launch
from strata.engines.pulse import Pulse
from strata.engines.quarantine import TRIAL_WAIT_S

log = logging.getLogger("strata.engine")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long which silence is borne, in seconds."""

    ping_s: float = 2.0  # between PINGs
    silence_s: float = 30.0  # no message at all while running: a hang
    step_s: float = 30.0  # one step, while PONGs say that it still runs: a hang
    stall_s: float = 30.0  # no PROGRESS while loading; the handshake's own, where shorter, wins
    probe_s: float = 10.0  # neither beacon nor PROGRESS moves while a mode is proven: a hang
    reap_s: float = 0.5  # from the event pipe's end to the exit
    refuse_s: float = 3.0  # from REFUSE to the exit
    drain_s: float = 5.0  # from DRAIN to the exit
    term_s: float = 3.0  # from SIGTERM to SIGKILL


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What every epoch of one service shares."""

    launch: Launch
    wanted: Wanted
    run_dir: Path
    patience: Patience = Patience()
    quarantine_trial_s: float = TRIAL_WAIT_S
    clock: Callable[[], float] = time.time  # of the quarantine's records


class Epoch:
    """One engine's life. Implements `EnginePort` for serving and `ClientListener` for the pipes."""

    def __init__(
        self,
        number: int,
        setup: EngineSetup,
        listener: EngineListener,
        on_changed: Callable[[], None],
    ) -> None:
        self.number = number
        self.handshake = Handshake(setup.wanted, number)
        self.output = EngineLog(setup.run_dir, number)
        self.is_stopped = False  # by SIGSTOP or a debugger, as seen when it was silent too long
        self.is_draining = False  # told to end, by us or from outside: it refused a request
        self.served = 0  # requests that finished without an error
        self.refused: Refused | None = None
        self.process: EngineProcess | None = None
        self._setup = setup
        self._patience = setup.patience
        self._listener = listener
        self._on_changed = on_changed
        self._client = EngineClient(self)
        self.frames = self._client.frames
        self._loop = asyncio.get_running_loop()
        # A late PONG is normal on a busy machine, three missing ones in a row are a gap.
        self._pulse = Pulse(3 * setup.patience.ping_s, self._loop.time())
        self._beacon: EpochBeacon | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._nonce = 0
        self._fault: str | None = None
        self._dying: Dying | None = None
        self._stop_requested = asyncio.Event()
        self._connected = asyncio.Event()

    # --- life

    async def run(self) -> EngineExit:
        self._beacon = await asyncio.to_thread(EpochBeacon.make, self._setup.run_dir, self.number)
        try:
            return await self._run()
        finally:
            if self._beacon is not None:
                self._beacon.close()

    async def _run(self) -> EngineExit:
        if self._stop_requested.is_set():
            return EngineExit(self.number, 0, ExitClass.STOP, "was not started", "launch", 0.0)
        beacon_fd = None if self._beacon is None else self._beacon.fd
        try:
            process = launch(self._setup.launch, beacon_fd)
        except OSError as error:
            return self._launch_failed(error)
        self.process = process
        try:
            await self._write_record(process)
            returncode = await self._attend(process)
        except BaseException:
            process.signal(signal.SIGKILL, Intent.STOP)
            raise
        finally:
            self._disarm()
            self._client.close()
        await self._forget_record()
        return self._exit(process, returncode)

    async def _attend(self, process: EngineProcess) -> int:
        """From the pipes' connection to the exit; returns its status."""
        log_pipe, _ = await self._loop.connect_read_pipe(
            lambda: self.output, os.fdopen(process.log_fd, "rb", 0)
        )
        log.info("engine started: pid %d, epoch %d", process.pid, self.number)
        try:
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self.output.write_file())
                stopper = tasks.create_task(self._end_when_asked(process))
                await self._client.connect(process.command_fd, process.event_fd)
                self._connected.set()
                self._arm(self._load_tick_s())
                self._on_changed()
                returncode = await process.wait()
                stopper.cancel()
                # What it said before it died still counts; the pipes end with the process.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._patience.reap_s):
                        await self._client.ended.wait()
                        await asyncio.shield(writer)
                log_pipe.close()
        finally:
            log_pipe.close()
        return returncode

    async def _write_record(self, process: EngineProcess) -> None:
        """A full disk or a run directory that is gone costs the record, not the service."""
        run_dir, run_id = self._setup.run_dir, self._setup.wanted.run_id
        try:
            await asyncio.to_thread(stale.write_record, run_dir, process.pid, self.number, run_id)
        except OSError as error:
            log.warning(
                "%s cannot be written: %s; should this supervisor be killed, the next one does not"
                " know of engine %d",
                run_dir / stale.RECORD_NAME,
                error.strerror,
                process.pid,
            )

    async def _forget_record(self) -> None:
        """A record that stays is harmless: its process is gone, and it names the start time."""
        run_dir = self._setup.run_dir
        try:
            await asyncio.to_thread(stale.forget_record, run_dir)
        except OSError as error:
            log.warning("%s cannot be removed: %s", run_dir / stale.RECORD_NAME, error.strerror)

    def stop(self) -> None:
        """Ends the engine: DRAIN where it runs, then SIGTERM, then SIGKILL."""
        if self.process is not None and self.process.intent is None:
            self.process.intent = Intent.STOP
        self._stop_requested.set()

    async def _end_when_asked(self, process: EngineProcess) -> None:
        await self._stop_requested.wait()
        patience = self._patience
        intent = process.intent or Intent.STOP
        if self.refused is not None and not self.refused.is_ours:
            with contextlib.suppress(TimeoutError):  # it ends by itself after REFUSE
                async with asyncio.timeout(patience.refuse_s):
                    await process.wait()
        elif self.handshake.ready is not None:
            self._client.send(Drain())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience.drain_s):
                    await process.wait()
        await process.end(intent, grace_s=patience.term_s)

    # --- EnginePort

    def send(self, message: Submit | Resume | Cancel | Credit) -> None:
        self._client.send(message)

    def fault(self, text: str) -> None:
        """Implements `EnginePort`: ends the engine, which then counts as a protocol crash."""
        if self._fault is None and self.process is not None:
            self._fault = text
            log.error("the engine broke the protocol: %s", text)
            self.process.signal(signal.SIGKILL, Intent.PROTOCOL)

    # --- ClientListener

    def on_message(self, message: ToSupervisorMessage) -> None:
        if self._fault is not None or self.refused is not None:
            return
        self._pulse.on_message(message, self._loop.time())
        self.is_stopped = False
        match message:
            case Tokens() | PromptLogprobs() | Stats():
                self._listener.on_message(message)
            case Done():
                self.served += message.reason is not FinishReason.ERROR
                self._listener.on_message(message)
                if message.code == ENGINE_DRAINING and not self.is_draining:
                    self.is_draining = True
                    log.warning("the engine was told to end and takes no new requests")
                    self._on_changed()
            case Pong():
                pass  # the pulse has it
            case Dying():
                self._dying = message
                log.error("the engine is dying: %s: %s", message.code, message.text)
            case Hello() | Caps() | Progress() | Probe() | Ready() | Refuse():
                self._on_handshake(message)

    def on_fault(self, fault: ProtocolFault) -> None:
        if fault.code is FaultCode.MISMATCH:
            self._refuse(Refused((Reason(code=fault.code.value, text=fault.text),)))
        else:
            self.fault(str(fault))

    def on_end(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self._arm(self._patience.reap_s, is_reaping=True)

    def on_writable(self, is_writable: bool) -> None:
        if self.handshake.ready is not None:
            self._listener.on_writable(is_writable)

    # --- handshake

    def _on_handshake(self, message: HandshakeMessage) -> None:
        for effect in self.handshake.on_message(message):
            match effect:
                case SendOffer(offer):
                    self._client.send(offer)
                case SendPlan(plan):
                    self._client.send(plan)
                case BecameReady(ready):
                    self._on_ready(ready)
                case Refused():
                    self._refuse(effect)
                case Broken(text):
                    self.fault(text)
        if self.handshake.ready is None:
            self._arm(self._load_tick_s())
        self._on_changed()

    def _on_ready(self, ready: Ready) -> None:
        caps = self.handshake.caps
        if caps is None:
            raise RuntimeError("READY before CAPS passed the peer")
        self._arm(self._patience.ping_s)
        self._on_changed()
        rows = self.handshake.rows
        self._listener.on_ready(EngineReady(caps.model, ready, rows, caps.features), self)

    def _refuse(self, refused: Refused) -> None:
        self.refused = refused
        if self.process is not None and self.process.intent is None:
            self.process.intent = Intent.REFUSED
        self._stop_requested.set()

    # --- silence

    def _stall_s(self) -> float:
        return min(self._patience.stall_s, self.handshake.stall_s)

    def _load_tick_s(self) -> float:
        """Until the next look at an engine that loads: a beacon has to be looked at."""
        stall_s = self._stall_s()
        return stall_s if self._beacon is None else min(self._patience.ping_s, stall_s)

    def _read_beacon(self) -> BeaconView | None:
        return None if self._beacon is None else self._beacon.read()

    def _arm(self, after_s: float, *, is_reaping: bool = False) -> None:
        self._disarm()
        due_s = self._loop.time() + after_s
        self._timer = self._loop.call_at(due_s, self._on_timer, due_s, is_reaping)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self, due_s: float, is_reaping: bool) -> None:
        process = self.process
        if process is None or process.returncode is not None:
            return
        now = self._loop.time()
        if is_reaping:
            self.fault("it closed its event pipe and did not end")
            return
        if now - due_s > 1.0:
            self._pulse.restart(now)  # we were late ourselves, so silence proves nothing
        is_running = self.handshake.ready is not None
        limit_s = self._patience.silence_s if is_running else self._stall_s()
        hang = self._hang(now, limit_s, is_running=is_running)
        if hang:
            if not _is_stopped(process.pid):
                self._fault = hang
                log.error("the engine hangs: %s; ending it", hang)
                process.signal(signal.SIGKILL, Intent.HANG)
                return
            log.warning("the engine is stopped (SIGSTOP or a debugger); waiting for it")
            self._pulse.restart(now)
            self.is_stopped = True
            self._on_changed()
        if is_running:
            self._nonce += 1
            self._client.send(Ping(nonce=self._nonce))
        self._arm(self._patience.ping_s if is_running else self._load_tick_s())

    def _hang(self, now: float, limit_s: float, *, is_running: bool) -> str:
        """What is wrong, where something is; else empty."""
        pulse = self._pulse
        view = None if is_running else self._read_beacon()
        if view is not None:
            pulse.on_beacon(view, now)
        silent_s, stuck_s = pulse.silent_s(now), pulse.stuck_s(now)
        if view is not None and view.phase == "probe":
            if stuck_s < self._patience.probe_s * 0.999:
                return ""
            return f"no movement for {stuck_s:.1f} s while mode {view.mode} was proven"
        if silent_s >= limit_s * 0.999:
            what = "message" if is_running else self.handshake.waits_for
            return f"no {what} for {silent_s:.1f} s"
        if is_running and stuck_s >= self._patience.step_s:
            return f"step {pulse.step} has not ended for {stuck_s:.1f} s"
        return ""

    # --- exit

    def _launch_failed(self, error: OSError) -> EngineExit:
        is_final = error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.EPERM)
        text = f"{self._setup.launch.executable} cannot be started: {error.strerror}"
        if is_final:
            self.refused = Refused((Reason(code="engine.missing", text=text),))
        exit_class = ExitClass.REFUSE if is_final else ExitClass.BOOT
        return EngineExit(self.number, 0, exit_class, text, "launch", 0.0)

    def _exit(self, process: EngineProcess, returncode: int) -> EngineExit:
        view = self._read_beacon()
        exit_class = classify(
            returncode, process.intent, was_oom_kill=process.was_oom_kill, beacon=view
        )
        uptime_s = asyncio.get_running_loop().time() - process.started_s
        phase = self.handshake.phase
        if phase == "loading" and view is not None and is_proving(view):
            phase = "probe"
        doing = f"in phase {phase}" if view is None else beacon_text(view)
        when = f"{doing}, {uptime_s:.1f} s after start"
        text = f"{status_text(returncode)} {when}"
        if exit_class is ExitClass.OOM:
            text += ", for lack of memory"
        if self._fault is not None:
            text = f"ended by us: {self._fault} ({when})"
        elif self._dying is not None:
            text += f": {self._dying.code}: {self._dying.text}"
        elif exit_class is ExitClass.REFUSE and self.refused is None:
            last = self.output.lines[-1] if self.output.lines else text
            reason = Reason(code="engine.exit", text=last)
            self.refused = Refused((reason,), exit_code=returncode)
        return EngineExit(
            self.number,
            process.pid,
            exit_class,
            text,
            phase,
            uptime_s,
            status=returncode if returncode >= 0 else None,
            signal=-returncode if returncode < 0 else None,
            beacon=view,
        )


def _is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal or a tracer."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")
