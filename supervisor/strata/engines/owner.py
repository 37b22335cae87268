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

from strata.engines.blame import blame, is_in_step
from strata.engines.crash_memory import CrashMemory
from strata.engines.crash_report import Counters, CrashReporter, NullCrashReporter, crash_of
from strata.engines.decision_log import DecisionLog
from strata.engines.engine_log import newest_epoch
from strata.engines.epoch import EngineSetup, Epoch
from strata.engines.exits import UNUSABLE, EngineExit, ExitClass
from strata.engines.handshake import Refused
from strata.engines.memory_wait import bytes_needed, wait_for_memory
from strata.engines.modes import sentence, sentences
from strata.engines.port import EngineListener, EngineLost
from strata.engines.quarantine import QuarantineRow
from strata.engines.restart import Decision, Ended, Hold, StartAfter, StayDown, Stopped
from strata.engines.restart_memory import RestartMemory
from strata.engines.restart_state import RestartView
from strata.engines.signature import signature
from strata.errors import EngineUnusableError, StrictError

STEP_UP_LOOK_S = 60.0  # how often an engine below the top rung is looked at
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
    decisions: DecisionLog = field(default_factory=DecisionLog)


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
        self.view = EngineView(decisions=DecisionLog(setup.clock))
        self._restarts = RestartMemory(
            setup.run_dir,
            setup.clocks,
            lambda: 0.5 + 0.5 * jitter(),
            self.view.decisions,
            is_strict=setup.wanted.is_strict,
        )
        wanted = replace(setup.wanted, quarantine=self._memory.offer, rung=self._restarts.choose)
        self._setup = replace(setup, wanted=wanted)
        self._listener = listener
        self._observer = observer
        self._reporter = reporter or NullCrashReporter()
        self._stop = asyncio.Event()
        self._number = newest_epoch(setup.run_dir)
        self._was_ever_ready = False
        self._inputs = (model, setup.launch.executable)
        asked = setup.wanted
        self._place = (
            str(model),
            asked.modes,
            sorted(asked.explicit),
            asked.is_strict,
            asked.without_kernels,
        )
        self._found: Fingerprints = ()  # of the inputs, before the last start read them
        self._ready_at_s: float | None = None  # loop time, of the engine that runs
        self._needed_bytes = 0  # memory that the last engine's plan needed
        self._is_making_room = False  # the engine is being ended for a step up
        self._counted = 0  # finished requests that the policy knows of
        self._saves: set[asyncio.Task[None]] = set()

    def quarantine(self) -> list[QuarantineRow]:
        """What is remembered of modes that ended engines."""
        return self._memory.rows()

    def restarts(self) -> RestartView:
        """The restart policy's counters."""
        return self._restarts.view

    async def saved(self) -> None:
        """Waits until nothing of what has happened so far is being written to disk."""
        await asyncio.gather(*self._saves)

    def last_bundle(self) -> str:
        """Id of the crash bundle of the last exit; empty where there is none (yet)."""
        last = self.view.last_exit
        return "" if last is None else self._reporter.bundle_of(last.epoch)

    async def run(self) -> None:
        """Returns after `stop`, once no engine is left. Raises StrictError when `--strict`
        refuses the first start, EngineUnusableError when this engine cannot run here at all."""
        is_first = True
        try:
            while not self._stop.is_set():
                self._found = await asyncio.to_thread(_fingerprint, self._inputs)
                await self._memory.on_start()
                await self._restarts.on_place(self._memory.inputs, self._place)
                if is_first:
                    is_first = False
                    await self._follow(self._restarts.first_start(), "that of an earlier run")
                await self._await_memory()
                if self._stop.is_set():
                    break
                exited, took_mode_out = await self._run_epoch()
                if not await self._carry_out(exited, took_mode_out):
                    break
        finally:
            await self.saved()
            if self._stop.is_set():
                await self._restarts.on_stopped()
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
        epoch = Epoch(
            self._number, self._setup, self._listener, self._epoch_changed, self.view.decisions.add
        )
        await self._restarts.on_started()
        self._ready_at_s = None
        self._is_making_room = False
        self._counted = 0
        self.view.starts += 1
        self.view.epoch = epoch
        self.view.next_start_s = None
        self._observer.on_started(self._number)
        self._show(EngineState.LOADING)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._memory.keep(self._ready_s, lambda: epoch.served), name="memory")
            looks = tasks.create_task(self._look_up(epoch), name="step up")
            exited = await epoch.run()
            looks.cancel()
            ready_s = self._ready_s()
            self._memory.stop_keeping()
        self.view.last_exit, self.view.last_exit_s = exited, now()
        for _ in range(epoch.served - self._counted):
            self._restarts.on_request_finished()
        if self._stop.is_set():
            log.info("engine %s", exited.text)
        else:
            self.view.boot_attempts += exited.is_boot_attempt
            self.view.crashes += exited.is_crash and not exited.is_boot_attempt
            log.error("engine %s", exited.text)
        self.view.decisions.add(
            f"engine.exited.{exited.exit_class.value}",
            f"Engine start {exited.epoch}, pid {exited.pid}: {exited.text}.",
        )
        self._observer.on_exited(exited)
        verdict = self._memory.on_exited(exited, _plan(epoch), ready_s, epoch.served)
        if verdict.taken_out:
            out = ", ".join(verdict.taken_out)
            self.view.decisions.add(
                "mode.quarantined", f"Mode {out} is taken out: the crash implicates it."
            )
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
        self._needed_bytes = _needed(epoch)
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
            self.view.decisions.add(
                "engine.ready",
                f"Engine start {epoch.number} is ready on rung {self._restarts.view.rung}.",
            )
            save = asyncio.ensure_future(self._restarts.on_ready())
            self._saves.add(save)
            save.add_done_callback(self._saves.discard)
            self._show(EngineState.READY)
        else:
            self._observer.on_changed()

    async def _look_up(self, epoch: Epoch) -> None:
        """Beside an engine: ends an idle one where it is time for a step up."""
        while True:
            await asyncio.sleep(STEP_UP_LOOK_S)
            for _ in range(epoch.served - self._counted):
                self._restarts.on_request_finished()
            self._counted = epoch.served
            if self._restarts.look() and epoch.is_running and epoch.in_flight == 0:
                text = "The engine is idle and starts again to try a higher rung."
                self.view.decisions.add("restart.makes_room", text)
                log.info("the engine is idle and starts again to try a higher rung")
                self._is_making_room = True
                epoch.stop()
                return

    async def _await_memory(self) -> None:
        """The next engine plans with what is free."""
        missing = await wait_for_memory(self._needed_bytes)
        if missing:
            log.warning(
                "%.0f MiB less than the engine needs are free; it plans with what there is",
                missing / (1 << 20),
            )

    async def _carry_out(self, exited: EngineExit, took_mode_out: bool) -> bool:
        """Does what the policy says about an exit; False when the owner is done."""
        decision: Decision = Stopped()
        if self._stop.is_set():
            self._restarts.on_exited(Ended(ExitClass.STOP))
        elif self._is_making_room and exited.exit_class is ExitClass.STOP:
            decision = self._restarts.on_made_room()
        else:
            decision = self._restarts.on_exited(self._ended(exited, took_mode_out))
        await self._restarts.save()
        self._reporter.on_decided(decision)
        return await self._follow(decision, exited.text, exited)

    def _ended(self, exited: EngineExit, took_mode_out: bool) -> Ended:
        """An exit as the policy sees it."""
        epoch = self.view.epoch
        plan = None if epoch is None else _plan(epoch)
        guilty = blame(exited.exit_class, exited.status, exited.beacon, plan)
        return Ended(
            exited.exit_class,
            signature(exited, plan).id if exited.is_crash else "",
            "" if guilty is None else guilty.mode.partition("=")[0],
            took_mode_out,
        )

    async def _follow(
        self, decision: Decision, last: str, exited: EngineExit | None = None
    ) -> bool:
        """Waits as decided; False when the owner is done. `last`: what ended the last engine."""
        if isinstance(decision, StartAfter | Hold) and decision.step is not None:
            step = decision.step
            log.error("the engine goes down from rung %s to %s: %s", step.old, step.new, step.why)
        match decision:
            case Stopped():
                return False
            case StartAfter(delay_s):
                if delay_s:
                    log.info("the engine starts again in %.1f s", delay_s)
                if delay_s or exited is not None:
                    await self._wait(EngineState.RESTARTING, delay_s)
            case Hold(delay_s, why):
                text = f"{why}; the last: {last}"
                self.view.reasons = [Reason(code="engine.hold", text=text)]
                log.error("the engine is held: %s; next start in %.0f s", text, delay_s)
                self._listener.on_down("engine_hold", f"the engine is held: {text}", delay_s)
                await self._wait(EngineState.HOLD, delay_s)
            case StayDown():
                if exited is not None:
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


def _needed(epoch: Epoch) -> int:
    """Memory that an engine's plan needed, as far as is known."""
    shake = epoch.handshake
    if shake.ready is not None:
        return bytes_needed(shake.ready.memory)
    configuration = shake.choice.configuration if shake.choice is not None else None
    return 0 if configuration is None else bytes_needed(configuration.memory)


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
