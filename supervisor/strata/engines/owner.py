"""The owner task of the engine: starts it, restarts it by policy, holds or gives up in the open.

Everything about the engine's life is decided here and nowhere else; others read `view` and call
`stop`. Waits between engines are in `interval.py`, reloads in `replacer.py`. What an epoch's end
means for requests is told to the listener before anything else.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from strata.engines import stale
from strata.engines.blame import axis_of, blame
from strata.engines.course import Course
from strata.engines.crash_report import Counters, CrashReporter, NullCrashReporter, crash_of
from strata.engines.decision_log import DecisionLog
from strata.engines.engine_log import newest_epoch
from strata.engines.epoch import EngineSetup, Epoch
from strata.engines.epoch_facts import Fingerprints, fingerprint, memory_of, plan_of, suspects_of
from strata.engines.exits import EngineExit, ExitClass
from strata.engines.gate import Gate
from strata.engines.interval import Interval
from strata.engines.owner_view import EngineState, EngineView, OwnerObserver
from strata.engines.port import EngineListener, EngineLost
from strata.engines.quarantine import QuarantineRow
from strata.engines.reload import Reload, ReloadError, Successor
from strata.engines.replacer import Replacer
from strata.engines.restart import Decision, Ended, Hold, StartAfter, Stopped
from strata.engines.restart_memory import RestartMemory
from strata.engines.restart_state import RestartView
from strata.engines.signature import signature

STEP_UP_LOOK_S = 60.0  # how often an engine below the top rung is looked at

log = logging.getLogger("strata.engine")


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
        self.view = EngineView(decisions=DecisionLog(setup.clock))
        self._restarts = RestartMemory(
            setup.run_dir,
            setup.clocks,
            lambda: 0.5 + 0.5 * jitter(),
            self.view.decisions,
            is_strict=setup.wanted.is_strict,
        )
        self._course = Course.of(setup, *self._restarts.bounds)
        self._listener = listener
        self._observer = observer
        self._reporter = reporter or NullCrashReporter()
        self._stop = asyncio.Event()
        self._number = newest_epoch(setup.run_dir)
        self._found: Fingerprints = ()  # of the inputs, before the last start read them
        self._ready_at_s: float | None = None  # loop time, of the engine that runs
        self._needed_bytes = 0  # memory that the last engine's plan needed
        self._is_making_room = False  # the engine is being ended for a step up
        self._counted = 0  # finished requests that the policy knows of
        self._saves: set[asyncio.Task[None]] = set()
        self._gate = Gate(listener, is_open=True)  # of the engine that runs
        self._interval = Interval(self.view, listener, observer, self._stop)
        self._replacer = Replacer(self, listener, self._restarts, self.view.decisions)

    def quarantine(self) -> list[QuarantineRow]:
        """What is remembered of modes that ended engines."""
        return self._course.memory.rows()

    def restarts(self) -> RestartView:
        """The restart policy's counters."""
        return self._restarts.view

    def judge(self, mode: str) -> bool:
        """Requests failed in `mode` and were fine alone: whether that takes it out."""
        verdict = self._course.memory.on_doubt(mode)
        if not verdict.taken_out:
            return False
        text = f"Mode {mode} is taken out: requests failed in it and were fine alone."
        self.view.decisions.add("mode.quarantined", text)
        if (epoch := self.view.epoch) is not None:
            epoch.when_idle(lambda: self._make_room(epoch, f"run without {mode}"))
        return True

    async def saved(self) -> None:
        """Waits until nothing of what has happened so far is being written to disk."""
        await asyncio.gather(*self._saves)

    def last_bundle(self) -> str:
        """Id of the crash bundle of the last exit; empty where there is none (yet)."""
        last = self.view.last_exit
        return "" if last is None else self._reporter.bundle_of(last.epoch)

    async def reload(self, wanted: Reload) -> str:
        """Replaces the engine (reload.py); returns a sentence. Raises ReloadError."""
        if self.view.state is not EngineState.READY or self._stop.is_set():
            raise ReloadError(
                f"the engine is {self.view.state.value}, not ready: restart the service instead"
            )
        self._replacer.put(wanted)
        return await wanted.outcome

    async def run(self) -> None:
        """Returns after `stop`, once no engine is left. Raises as
        `end_where_pointless` when the first start is refused."""
        is_first = True
        try:
            while not self._stop.is_set() or self._replacer.successor is not None:
                if self._replacer.successor is not None:
                    if not await self._go_on_with(self._replacer.successor):
                        break
                    continue
                self._found = await asyncio.to_thread(fingerprint, self._course.inputs)
                await self._course.memory.on_start()
                await self._restarts.on_place(self._course.memory.inputs, *self._course.place)
                if is_first:
                    is_first = False
                    first = self._restarts.first_start()
                    last = "that of an earlier run"
                    await self._interval.follow(first, last, self._course, self._found)
                await self._interval.await_memory(self._needed_bytes)
                if self._stop.is_set():
                    break
                await self._restarts.on_started()
                self._gate = Gate(self._listener, is_open=True)
                epoch = self.view.epoch = self.next_epoch(self._course, self._gate)
                if self._replacer.trial is not None:
                    self._replacer.trial.epoch = epoch
                if not await self._live(epoch, epoch.run(), EngineState.LOADING):
                    break
        finally:
            self._replacer.close()
            await self.saved()
            if self._stop.is_set():
                await self._restarts.on_stopped()
            self._interval.show(EngineState.STOPPED)

    def stop(self) -> None:
        """Ends the engine and the owner task."""
        self._stop.set()
        if self._replacer.successor is not None:
            self._replacer.successor.epoch.stop()
        if self.view.epoch is not None:
            self.view.epoch.stop()

    # --- ReplaceHost

    @property
    def course(self) -> Course:
        return self._course

    @property
    def found(self) -> Fingerprints:
        return self._found

    def next_epoch(self, course: Course, gate: Gate, record_name: str = stale.RECORD_NAME) -> Epoch:
        self._number += 1
        decide = self.view.decisions.add
        return Epoch(
            self._number, course.setup, gate, self._epoch_changed, decide, record_name=record_name
        )

    def on_taken_over(self, successor: Successor) -> None:
        self.view.epoch = successor.epoch
        self._observer.on_changed()

    # --- inside

    async def _go_on_with(self, successor: Successor) -> bool:
        """The engine that has taken over, to its exit and what follows."""
        self._replacer.successor = None
        self._course = successor.course.with_rung(*self._restarts.bounds)
        self._gate = successor.gate
        self._found = await asyncio.to_thread(fingerprint, self._course.inputs)
        await asyncio.to_thread(successor.epoch.record.promote)
        await self._restarts.on_place(self._course.memory.inputs, *self._course.place)
        if (choice := successor.epoch.handshake.choice) is not None:
            await self._restarts.take_over(choice)
        return await self._live(successor.epoch, successor.task, EngineState.READY)

    async def _live(self, epoch: Epoch, running: Awaitable[EngineExit], state: EngineState) -> bool:
        """One engine to its exit and what follows; False when the owner is done."""
        exited, decision = await self._run_epoch(epoch, running, state)
        replacer = self._replacer
        if replacer.successor is not None and replacer.successor.is_serving:
            return True
        await replacer.on_ended(f"the old engine {exited.text}")
        trial = replacer.trial
        if (former := replacer.take_former()) is not None:
            self._restarts.on_made_room()
            self._course = former.with_rung(*self._restarts.bounds)
            self._interval.show(EngineState.RESTARTING)
            return True
        if trial is None or decision is not None:
            return await self._carry_out(exited, decision or Stopped())
        self._restarts.on_made_room()
        if trial.epoch is epoch:
            replacer.on_trial_failed(trial, epoch, exited)
        self._course = trial.old if trial.epoch is epoch else trial.new
        self._interval.show(EngineState.RESTARTING)
        return True

    async def _run_epoch(
        self, epoch: Epoch, running: Awaitable[EngineExit], state: EngineState
    ) -> tuple[EngineExit, Decision | None]:
        """Runs one engine; returns its exit and what the policy says about it, None where a reload
        decides what is next."""
        now = asyncio.get_running_loop().time
        gate = self._gate
        self._is_making_room = False
        self._counted = 0
        self._ready_at_s = now() if state is EngineState.READY else None
        self.view.starts += 1
        self.view.next_start_s = None
        self._observer.on_started(epoch.number)
        self._interval.show(state)
        async with asyncio.TaskGroup() as tasks:
            keep = self._course.memory.keep(self._ready_s, lambda: epoch.served)
            tasks.create_task(keep, name="memory")
            looks = tasks.create_task(self._look_up(epoch), name="step up")
            reloads = tasks.create_task(self._replacer.serve(epoch, gate), name="reloads")
            exited = await running
            looks.cancel()
            reloads.cancel()
            ready_s = self._ready_s()
            self._course.memory.stop_keeping()
        self.view.last_exit, self.view.last_exit_s = exited, now()
        for _ in range(epoch.served - self._counted):
            self._restarts.on_request_finished()
        if exited.exit_class is ExitClass.STOP:
            log.info("engine %s", exited.text)
        else:
            self.view.boot_attempts += exited.is_boot_attempt
            self.view.crashes += exited.is_crash and not exited.is_boot_attempt
            # A refusal's reasons are told below; what we ended for it has no fault of its own.
            is_refusal = exited.exit_class is ExitClass.REFUSE
            log.log(logging.INFO if is_refusal else logging.ERROR, "engine %s", exited.text)
        self.view.decisions.add(
            f"engine.exited.{exited.exit_class.value}",
            f"Engine start {exited.epoch}, pid {exited.pid}: {exited.text}.",
        )
        self._observer.on_exited(exited)
        suspects = frozenset[str]()
        if exited.is_crash and epoch.handshake.ready is not None:
            suspects = gate.suspected(suspects_of(exited))
        verdict = self._course.memory.on_exited(
            exited, plan_of(epoch), ready_s, epoch.served, suspects
        )
        if verdict.taken_out:
            out = ", ".join(verdict.taken_out)
            self.view.decisions.add(
                "mode.quarantined", f"Mode {out} is taken out: the crash implicates it."
            )
        if exited.is_crash and not self._stop.is_set():
            view = self.view
            counters = Counters(view.starts, view.crashes, view.boot_attempts)
            self._reporter.on_crashed(
                crash_of(
                    epoch, self._course.setup, exited, verdict, plan_of(epoch), counters=counters
                )
            )
        decision = self._decide(exited, suspects, took_mode_out=bool(verdict.taken_out))
        if epoch.handshake.ready is not None:
            is_stepped = isinstance(decision, StartAfter | Hold) and decision.step is not None
            lost = EngineLost(
                exited.text,
                suspects=suspects_of(exited),
                is_external=exited.exit_class in (ExitClass.EXTERNAL, ExitClass.STOP),
                signature=verdict.signature,
                blamed_mode=", ".join(verdict.taken_out),
                is_planned=self._replacer.trial is not None,
                is_lower=is_stepped,
                is_back=self._replacer.is_back,
                acquitted=verdict.acquitted + self._restarts.freed(decision),
            )
            if convicted := gate.on_lost(lost):
                self._on_convicted(convicted, verdict.signature)
                if isinstance(decision, StartAfter):
                    self._replacer.on_convicted(convicted)
        self._needed_bytes = memory_of(epoch)
        await self._course.memory.save()
        return exited, decision

    def _decide(
        self, exited: EngineExit, suspects: frozenset[str], *, took_mode_out: bool
    ) -> Decision | None:
        """What the policy says about an exit; None where a reload decides."""
        replacer = self._replacer
        if self._stop.is_set():
            self._restarts.on_exited(Ended(ExitClass.STOP))
            return Stopped()
        if replacer.trial is not None:
            return None
        if replacer.successor is not None and replacer.successor.is_serving:
            return None
        if self._is_making_room and exited.exit_class is ExitClass.STOP:
            return self._restarts.on_made_room()
        is_known = self._gate.are_known(suspects)
        if exited.is_crash and replacer.on_crashed(exited, suspects, is_known=is_known):
            return None
        return self._restarts.on_exited(self._ended(exited, took_mode_out))

    def _on_convicted(self, request: str, crash: str) -> None:
        """Serving has found the request that ended engines: nothing else is to blame for it."""
        self._restarts.on_convicted(request, crash)
        if freed := self._course.memory.on_convicted(request):
            self.view.decisions.add(
                "mode.acquitted",
                f"Mode {', '.join(freed)} is offered again: the crashes it was taken out for were a"
                " request's doing, which is refused from now on.",
            )

    def _ready_s(self) -> float:
        at_s = self._ready_at_s
        return 0.0 if at_s is None else asyncio.get_running_loop().time() - at_s

    def _epoch_changed(self) -> None:
        epoch = self.view.epoch
        if epoch is not None and epoch.handshake.caps is not None:
            self._course.memory.on_header(epoch.handshake.caps.model.sha256_head)
        if (
            epoch is not None
            and epoch.handshake.ready is not None
            and self.view.state is EngineState.LOADING
        ):
            self._interval.was_ever_ready = True
            self.view.reasons = []
            self._ready_at_s = asyncio.get_running_loop().time()
            self.view.decisions.add(
                "engine.ready",
                f"Engine start {epoch.number} is ready on rung {self._restarts.view.rung}.",
            )
            save = asyncio.ensure_future(self._restarts.on_ready())
            self._saves.add(save)
            save.add_done_callback(self._saves.discard)
            self._replacer.on_trial_ready()
            self._interval.show(EngineState.READY)
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
                self._make_room(epoch, "try a higher rung")
                return

    def _make_room(self, epoch: Epoch, why: str) -> None:
        self.view.decisions.add(
            "restart.makes_room", f"The engine is idle and starts again to {why}."
        )
        log.info("the engine is idle and starts again to %s", why)
        self._is_making_room = True
        epoch.stop()

    async def _carry_out(self, exited: EngineExit, decision: Decision) -> bool:
        """Does what the policy says about an exit; False when the owner is done."""
        await self._restarts.save()
        self._reporter.on_decided(decision)
        return await self._interval.follow(decision, exited.text, self._course, self._found, exited)

    def _ended(self, exited: EngineExit, took_mode_out: bool) -> Ended:
        """An exit as the policy sees it."""
        epoch = self.view.epoch
        plan = None if epoch is None else plan_of(epoch)
        guilty = blame(exited.exit_class, exited.status, exited.beacon, plan)
        return Ended(
            exited.exit_class,
            signature(exited, plan).id if exited.is_crash else "",
            axis_of(exited.beacon, guilty, plan),
            took_mode_out,
        )
