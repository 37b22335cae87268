"""One engine from launch to known exit: process, pipes, handshake, timers.

`run` returns the exit; it never raises for anything the engine does. Whether it hangs is watched by
`watch.py`. The exit is told once nothing is left of the process and of what it may have started.
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
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
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

from strata.engines import stale, strays
from strata.engines.blame import is_proving
from strata.engines.client import EngineClient
from strata.engines.engine_log import EngineLog
from strata.engines.engine_record import EngineRecord
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
from strata.engines.hang import Report
from strata.engines.modes import sentence
from strata.engines.port import ENGINE_DRAINING, EngineListener, EngineReady
from strata.engines.process import EngineProcess, Launch, launch
from strata.engines.quarantine import TRIAL_WAIT_S
from strata.engines.restart_store import Clocks
from strata.engines.vitals import is_stopped
from strata.engines.watch import EngineWatch, Patience

log = logging.getLogger("strata.engine")


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What every epoch of one service shares."""

    launch: Launch
    wanted: Wanted
    run_dir: Path
    patience: Patience = field(default_factory=Patience)
    quarantine_trial_s: float = TRIAL_WAIT_S
    clock: Callable[[], float] = time.time  # of the quarantine's records
    clocks: Clocks = field(default_factory=Clocks)  # of the restart policy


class Epoch:
    """One engine's life. Implements `EnginePort` for serving and `ClientListener` for the pipes."""

    def __init__(
        self,
        number: int,
        setup: EngineSetup,
        listener: EngineListener,
        on_changed: Callable[[], None],
        on_report: Callable[[str, str], None],
        *,
        record_name: str = stale.RECORD_NAME,
    ) -> None:
        """`on_report` takes code and sentence of what is odd about the engine."""
        self.number = number
        self.record = EngineRecord(setup.run_dir, number, setup.wanted.run_id, record_name)
        self.handshake = Handshake(setup.wanted, number)
        self.output = EngineLog(setup.run_dir, number)
        self._on_idle: Callable[[], None] | None = None
        self.in_flight = 0  # requests sent to it that are not done
        self.is_draining = False  # told to end, by us or from outside: it refused a request
        self.served = 0  # requests that finished without an error
        self.refused: Refused | None = None
        self.process: EngineProcess | None = None
        self._setup = setup
        self._patience = setup.patience
        self._listener = listener
        self._on_changed = on_changed
        self._on_report = on_report
        self._client = EngineClient(self)
        self.frames = self._client.frames
        self._loop = asyncio.get_running_loop()
        self._beacon: EpochBeacon | None = None
        self._watch = EngineWatch(setup.patience, self, None, self._loop.time)
        self._reap_timer: asyncio.TimerHandle | None = None
        self._nonce = 0
        self._fault: str | None = None
        self._hang = ""  # what is wrong with an engine that is being asked or ended for a hang
        self._dying: Dying | None = None
        self._stop_requested = asyncio.Event()
        self._connected = asyncio.Event()

    @property
    def is_stopped(self) -> bool:
        """By SIGSTOP or a debugger, as the system shows it now."""
        process = self.process
        return process is not None and process.returncode is None and is_stopped(process.pid)

    # --- life

    async def run(self) -> EngineExit:
        self._beacon = await asyncio.to_thread(EpochBeacon.make, self._setup.run_dir, self.number)
        self._watch = EngineWatch(self._patience, self, self._beacon, self._loop.time)
        try:
            return await self._run()
        finally:
            if self._beacon is not None:
                self._beacon.close()

    async def _run(self) -> EngineExit:
        if self._stop_requested.is_set():
            return EngineExit(self.number, 0, ExitClass.STOP, "was not started", "launch", 0.0)
        beacon_fd = None if self._beacon is None else self._beacon.fd
        run_dir = self._setup.run_dir
        try:
            process = launch(self._setup.launch, beacon_fd, run_dir, self.number)
        except OSError as error:
            return self._launch_failed(error)
        self.process = process
        try:
            await self.record.write(process.pid)
            returncode = await self._attend(process)
        except BaseException:
            process.signal(signal.SIGKILL, Intent.STOP)
            raise
        finally:
            if self._reap_timer is not None:
                self._reap_timer.cancel()
            self._client.close()
        left = await asyncio.to_thread(_end_rest, run_dir, process.pid, self.number)
        if left:
            log.warning("ended what the engine had started and left: %s", left)
        await self.record.forget()
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
                self._expect_next()
                watcher = tasks.create_task(self._watch.run(process))
                self._on_changed()
                returncode = await process.wait()
                stopper.cancel()
                watcher.cancel()
                # What it said before it died still counts; the pipes end with the process.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._patience.reap_s):
                        await self._client.ended.wait()
                        await asyncio.shield(writer)
                log_pipe.close()
        finally:
            log_pipe.close()
        return returncode

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
        self.in_flight += isinstance(message, Submit | Resume)

    def fault(self, text: str) -> None:
        """Implements `EnginePort`: ends the engine, which then counts as a protocol crash."""
        if self._fault is None and self.process is not None:
            self._fault = text
            log.error("the engine broke the protocol: %s", text)
            self.process.signal(signal.SIGKILL, Intent.PROTOCOL)

    def when_idle(self, act: Callable[[], None]) -> None:
        """`act` is called when the last request that it has is done, and no other follows."""
        self._on_idle = act

    # --- ClientListener

    def on_message(self, message: ToSupervisorMessage) -> None:
        if self._fault is not None or self.refused is not None:
            return
        self._watch.hang.on_message(message, self._loop.time())
        match message:
            case Tokens() | PromptLogprobs() | Stats():
                self._listener.on_message(message)
            case Done():
                self.in_flight -= 1
                self.served += message.reason is not FinishReason.ERROR
                self._listener.on_message(message)
                if self._on_idle is not None and not self.in_flight:
                    self._on_idle()
                if message.code == ENGINE_DRAINING and not self.is_draining:
                    self.is_draining = True
                    log.warning("the engine was told to end and takes no new requests")
                    self._on_changed()
            case Pong():
                pass  # the watch has it
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
            text = "it closed its event pipe and did not end"
            self._reap_timer = self._loop.call_later(self._patience.reap_s, self.fault, text)

    def on_writable(self, is_writable: bool) -> None:
        if self.handshake.ready is not None:
            self._listener.on_writable(is_writable)

    # --- handshake

    def _on_handshake(self, message: HandshakeMessage) -> None:
        if isinstance(message, Caps):
            for note in message.notes:
                log.warning("%s", sentence(note))
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
            self._expect_next()
        self._on_changed()

    def _on_ready(self, ready: Ready) -> None:
        caps = self.handshake.caps
        if caps is None:
            raise RuntimeError("READY before CAPS passed the peer")
        self._on_changed()
        rows = self.handshake.rows
        build = self.handshake.hello.build if self.handshake.hello is not None else ""
        self._listener.on_ready(EngineReady(caps.model, ready, rows, build), self)

    def _refuse(self, refused: Refused) -> None:
        self.refused = refused
        if self.process is not None and self.process.intent is None:
            self.process.intent = Intent.REFUSED
        self._stop_requested.set()

    def _expect_next(self) -> None:
        stall_s = min(self._patience.stall_s, self.handshake.stall_s)
        self._watch.hang.wait_for(self.handshake.waits_for, stall_s)

    # --- WatchHost

    @property
    def is_running(self) -> bool:
        """Implements `WatchHost`."""
        return self.handshake.ready is not None

    def ping(self) -> None:
        if self._client.ended.is_set():
            return  # it could not answer
        self._nonce += 1
        self._client.send(Ping(nonce=self._nonce))

    def on_report(self, report: Report) -> None:
        log.warning("the engine: %s", report.text)
        self._on_report(report.code, f"The engine is left alone: {report.text}.")
        self._on_changed()

    def on_continued(self) -> None:
        log.warning("the engine: it runs again")
        self._on_report("hang.continued", "The engine is no longer stopped and runs again.")
        self._on_changed()

    def on_hang(self, text: str) -> None:
        self._hang = text
        if self.process is not None and self.process.intent is None:
            self.process.intent = Intent.HANG
        view = self._read_beacon()
        doing = "" if view is None else f", {beacon_text(view)}"
        log.error("the engine hangs: %s%s; ending it", text, doing)
        self._on_report("hang.ended", f"The engine hangs and is ended: {text}{doing}.")

    def on_went_on(self) -> None:
        self._hang = ""
        if self.process is not None and self.process.intent is Intent.HANG:
            is_stopping = self._stop_requested.is_set()
            self.process.intent = Intent.STOP if is_stopping else None
        log.warning("the engine moves again; it is left alone")
        self._on_report("hang.went_on", "The engine moves again and is left alone.")

    def _read_beacon(self) -> BeaconView | None:
        return None if self._beacon is None else self._beacon.read()

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
        crash = view.crash if view is not None else None
        if view is not None and crash is not None and crash.sender_pid == os.getpid():
            view = msgspec.structs.replace(view, crash=None)  # our own SIGABRT: `dump` says where
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
        if self._fault is not None or (self._hang and exit_class is ExitClass.HANG):
            text = f"ended by us: {self._fault or self._hang} ({when})"
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


def _end_rest(run_dir: Path, group: int, epoch: int) -> list[int]:
    """What the engine may have started, in its group or out of it."""
    strays.reap_group(group)
    return strays.end_strays(run_dir, epoch)
