"""The owner task of the engine: starts it, restarts it by policy, holds or gives up in the open.

Everything about the engine's life is decided here and nowhere else; others read `view` and call
`stop`. What an epoch's end means for requests is told to the listener before anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, assert_never

from strata_protocol.exit_codes import ExitCode
from strata_protocol.messages import ModePlan, Reason

from strata.engines.blame import is_in_step
from strata.engines.crash_memory import CrashMemory
from strata.engines.crash_report import Counters, CrashReporter, NullCrashReporter, crash_of
from strata.engines.engine_log import newest_epoch
from strata.engines.epoch import EngineSetup, Epoch
from strata.engines.exits import UNUSABLE, EngineExit, ExitClass
from strata.engines.handshake import Refused
from strata.engines.modes import sentence, sentences
from strata.engines.port import EngineListener, EngineLost
from strata.engines.quarantine import QuarantineRow
from strata.engines.restart import (
    Decision,
    Hold,
    RestartPolicy,
    StartAfter,
    StayDown,
    Stopped,
)
from strata.errors import EngineUnusableError, StrictError

INPUT_POLL_S = 2.0  # how often a refused start looks whether its inputs changed

Fingerprints = tuple[tuple[int, int, int] | None, ...]

log = logging.getLogger("strata.engine")


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


class EngineOwner:
    """Run `run` as one task for the life of the service."""

    def __init__(
        self,
        setup: EngineSetup,
        listener: EngineListener,
        observer: OwnerObserver,
        jitter: Callable[[], float] = random.random,
        reporter: CrashReporter | None = None,
    ) -> None:
        model = Path(setup.wanted.model)
        self._memory = CrashMemory(
            setup.run_dir,
            model,
            setup.launch.executable,
            setup.quarantine_trial_s,
            setup.clock,
        )
        wanted = replace(setup.wanted, quarantine=self._memory.offer)
        self._setup = replace(setup, wanted=wanted)
        self._listener = listener
        self._observer = observer
        self._reporter = reporter or NullCrashReporter()
        self._policy = RestartPolicy(lambda: 0.5 + 0.5 * jitter())
        self._stop = asyncio.Event()
        self._number = newest_epoch(setup.run_dir)
        self._was_ever_ready = False
        self._inputs = (model, setup.launch.executable)
        self._found: Fingerprints = ()  # of the inputs, before the last start read them
        self._ready_at_s: float | None = None  # loop time, of the engine that runs
        self.view = EngineView()

    def quarantine(self) -> list[QuarantineRow]:
        """What is remembered of modes that ended engines."""
        return self._memory.rows()

    def last_bundle(self) -> str:
        """Id of the crash bundle of the last exit; empty where there is none (yet)."""
        last = self.view.last_exit
        return "" if last is None else self._reporter.bundle_of(last.epoch)

    async def run(self) -> None:
        """Returns after `stop`, once no engine is left. Raises StrictError when `--strict`
        refuses the first start, EngineUnusableError when this engine cannot run here at all."""
        try:
            while True:
                self._found = await asyncio.to_thread(_fingerprint, self._inputs)
                if self._stop.is_set():
                    return
                await self._memory.on_start()
                if self._stop.is_set():
                    return
                exited, took_mode_out = await self._run_epoch()
                if not await self._carry_out(exited, took_mode_out):
                    return
        finally:
            self._show(EngineState.STOPPED)

    def stop(self) -> None:
        """Ends the engine and the owner task."""
        self._stop.set()
        if self.view.epoch is not None:
            self.view.epoch.stop()

    async def _run_epoch(self) -> tuple[EngineExit, bool]:
        """Runs one engine; returns its exit and whether that took a mode out."""
        now = asyncio.get_running_loop().time
        self._number += 1
        epoch = Epoch(self._number, self._setup, self._listener, self._epoch_changed)
        self._policy.on_started(now())
        self._ready_at_s = None
        self.view.starts += 1
        self.view.epoch = epoch
        self.view.next_start_s = None
        self._observer.on_started(self._number)
        self._show(EngineState.LOADING)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._memory.keep(self._ready_s, lambda: epoch.served), name="memory")
            exited = await epoch.run()
            ready_s = self._ready_s()
            self._memory.stop_keeping()
        self.view.last_exit, self.view.last_exit_s = exited, now()
        for _ in range(epoch.served):
            self._policy.on_request_finished()
        if self._stop.is_set():
            log.info("engine %s", exited.text)
        else:
            self.view.boot_attempts += exited.is_boot_attempt
            self.view.crashes += exited.is_crash and not exited.is_boot_attempt
            log.error("engine %s", exited.text)
        self._observer.on_exited(exited)
        verdict = self._memory.on_exited(exited, _plan(epoch), ready_s, epoch.served)
        if exited.is_crash and not self._stop.is_set():
            view = self.view
            counters = Counters(view.starts, view.crashes, view.boot_attempts)
            self._reporter.on_crashed(
                crash_of(epoch, self._setup, exited, verdict, _plan(epoch), counters=counters)
            )
        if epoch.handshake.ready is not None:
            self._listener.on_lost(
                EngineLost(
                    exited.text,
                    suspects=_suspects(exited),
                    is_external=exited.exit_class in (ExitClass.EXTERNAL, ExitClass.STOP),
                    signature=verdict.signature,
                    blamed_mode=", ".join(verdict.taken_out),
                )
            )
        await self._memory.save()
        return exited, bool(verdict.taken_out)

    def _ready_s(self) -> float:
        at_s = self._ready_at_s
        return 0.0 if at_s is None else asyncio.get_running_loop().time() - at_s

    def _epoch_changed(self) -> None:
        epoch = self.view.epoch
        if epoch is not None and epoch.handshake.caps is not None:
            self._memory.on_header(epoch.handshake.caps.model.sha256_head)
        if (
            epoch is not None
            and epoch.handshake.ready is not None
            and self.view.state is EngineState.LOADING
        ):
            self._was_ever_ready = True
            self.view.reasons = []
            self._ready_at_s = asyncio.get_running_loop().time()
            self._policy.on_ready(self._ready_at_s)
            self._show(EngineState.READY)
        else:
            self._observer.on_changed()

    async def _carry_out(self, exited: EngineExit, took_mode_out: bool) -> bool:
        """Does what the policy says about an exit; False when the owner is done."""
        decision: Decision = Stopped()
        if not self._stop.is_set():
            now = asyncio.get_running_loop().time()
            decision = self._policy.on_exited(exited.exit_class, now, took_mode_out=took_mode_out)
        self._reporter.on_decided(decision)
        match decision:
            case Stopped():
                return False
            case StartAfter(delay_s):
                if delay_s:
                    log.info("the engine starts again in %.1f s", delay_s)
                await self._wait(EngineState.RESTARTING, delay_s)
            case Hold(delay_s, why):
                text = f"{why}; the last: {exited.text}"
                self.view.reasons = [Reason(code="engine.hold", text=text)]
                log.error("the engine is held: %s; next start in %.0f s", text, delay_s)
                self._listener.on_down("engine_hold", f"the engine is held: {text}", delay_s)
                await self._wait(EngineState.HOLD, delay_s)
            case StayDown():
                await self._stay_down(exited)
            case _:
                assert_never(decision)
        return not self._stop.is_set()

    async def _stay_down(self, exited: EngineExit) -> None:
        refused = self.view.epoch.refused if self.view.epoch is not None else None
        reasons = list(refused.reasons) if refused is not None else []
        if refused is not None and not self._was_ever_ready:
            self._end_service(refused)
        self.view.reasons = reasons or [Reason(code="engine.refused", text=exited.text)]
        text = sentences(self.view.reasons)
        log.error("the engine refuses to start: %s", text)
        self._listener.on_down("engine_refused", f"the engine refuses to start: {text}", 55.0)
        self._show(EngineState.REFUSED)
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INPUT_POLL_S):
                    await self._stop.wait()
            if await asyncio.to_thread(_fingerprint, self._inputs) != self._found:
                log.info("the model file or the engine changed; starting again")
                return

    def _end_service(self, refused: Refused) -> None:
        """Raises where staying up is pointless: what was started can never come right by itself,
        or --strict wants no less than what was asked."""
        if refused.exit_code in UNUSABLE:
            raise EngineUnusableError("; ".join(r.text for r in refused.reasons), refused.exit_code)
        if self._setup.wanted.is_strict and refused.exit_code == ExitCode.CONFIG_REFUSED:
            raise StrictError(list(refused.lines) or [sentence(r) for r in refused.reasons])

    async def _wait(self, state: EngineState, delay_s: float) -> None:
        self.view.next_start_s = asyncio.get_running_loop().time() + delay_s
        self._show(state)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._stop.wait()

    def _show(self, state: EngineState) -> None:
        self.view.state = state
        self._observer.on_changed()


def _suspects(exited: EngineExit) -> tuple[int, ...]:
    """Requests in the step that an engine died in; empty where not all of them are known."""
    view = exited.beacon
    if view is None or not is_in_step(view) or view.rid_count > len(view.rids):
        return ()
    return view.rids


def _plan(epoch: Epoch) -> ModePlan | None:
    """What an engine ran, or was about to."""
    shake = epoch.handshake
    if shake.ready is not None:
        return shake.ready.plan
    return shake.choice.plan if shake.choice is not None else None


def _fingerprint(paths: tuple[Path, ...]) -> Fingerprints:
    """Identity, size and time of change of files; None for one that is not there."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)
