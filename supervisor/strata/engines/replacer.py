"""Carries reloads out for the owner, one at a time, while an engine runs. What is decided, and the
engine that takes over, go back to the owner: it alone runs engines.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from strata.engines import stale
from strata.engines.course import Course
from strata.engines.decision_log import DecisionLog
from strata.engines.epoch import Epoch
from strata.engines.epoch_facts import Fingerprints, fingerprint
from strata.engines.exits import EngineExit
from strata.engines.gate import Gate
from strata.engines.handshake import top_rung
from strata.engines.modes import row_summary
from strata.engines.port import EngineListener, EngineLost
from strata.engines.probation import Probation
from strata.engines.reload import (
    Reload,
    ReloadError,
    Room,
    Successor,
    Way,
    await_movable,
    check_same_model,
    failed,
    find_room,
    prove,
)
from strata.engines.restart_memory import RestartMemory
from strata.errors import StrataError

log = logging.getLogger("strata.engine")


@dataclass(slots=True, eq=False)
class Trial:
    """A reload in turn. `epoch` is the new engine, once the old one has ended."""

    reload: Reload
    new: Course
    old: Course
    epoch: Epoch | None = None


class ReplaceHost(Protocol):
    """The owner."""

    @property
    def course(self) -> Course: ...

    @property
    def found(self) -> Fingerprints:
        """Of model file and executable, before the engine that runs read them."""
        ...

    def next_epoch(self, course: Course, gate: Gate, record_name: str) -> Epoch: ...

    def on_taken_over(self, successor: Successor) -> None:
        """It serves from now on; the old engine is being ended."""
        ...


class Replacer:
    """`successor`: an engine beside the one that runs; `trial`: a reload in turn under way."""

    def __init__(
        self,
        host: ReplaceHost,
        listener: EngineListener,
        restarts: RestartMemory,
        decisions: DecisionLog,
    ) -> None:
        self._host = host
        self._listener = listener
        self._restarts = restarts
        self._decisions = decisions
        self._queue: asyncio.Queue[Reload] = asyncio.Queue()
        self._current: Reload | None = None
        self.successor: Successor | None = None
        self.trial: Trial | None = None
        self.probation: Probation[Course] = Probation()
        self._former: Course | None = None  # to go back to, once the engine has ended

    def put(self, wanted: Reload) -> None:
        """Raises ReloadError while another one is under way."""
        if self._current is not None or not self._queue.empty() or self.trial is not None:
            raise ReloadError("another reload is under way")
        self._queue.put_nowait(wanted)

    async def serve(self, epoch: Epoch, gate: Gate) -> None:
        """Beside one engine until it ends, or is to end for a reload."""
        while True:
            wanted = self._current = await self._queue.get()
            try:
                if await self._replace(wanted, epoch, gate):
                    return
            except ReloadError as error:
                await self._fail(wanted, error)
            except StrataError as error:
                # A fault of the new engine (it is none, or breaks the protocol) is none of ours.
                code = error.exit_code if type(error) is not StrataError else ReloadError.exit_code
                await self._fail(wanted, ReloadError(f"the new engine: {error}", exit_code=code))
            self._current = None

    def on_crashed(self, exited: EngineExit, suspects: frozenset[str], *, is_known: bool) -> bool:
        """The engine that runs has crashed by its own doing; whether the settings before the last
        reload come back for that. `suspects` and `is_known` as in Probation."""
        now = asyncio.get_running_loop().time()
        was_on = self.probation.is_on(now)
        self._former = self.probation.on_crash(exited.text, suspects, now, is_known=is_known)
        if self._former is None:
            if was_on and is_known:
                self._decisions.add(
                    "reload.kept",
                    "The reload is kept: a request of this crash ended an engine before, and is"
                    " tried alone.",
                )
            return False
        text = f"The reload is taken back: the new engine {exited.text}. The former settings serve."
        self._decisions.add("reload.rolled_back", text)
        log.error("the reload is taken back: the new engine %s", exited.text)
        return True

    def on_convicted(self, request: str) -> None:
        """A request is convicted of ending engines: what was taken back for it comes forward."""
        now = asyncio.get_running_loop().time()
        course = self.probation.on_convicted(request, self._host.course, now)
        if course is None:
            return
        self._former = course
        text = "a request is convicted of the crash that it was taken back for"
        self._decisions.add("reload.restored", f"The reload is done again: {text}.")
        log.warning("the reload is done again: %s", text)

    @property
    def is_back(self) -> bool:
        """Whether the former settings come back."""
        return self._former is not None

    def take_former(self) -> Course | None:
        """What is started next instead, where `on_crashed` or `on_convicted` said so."""
        former, self._former = self._former, None
        return former

    async def on_ended(self, why: str) -> None:
        """The engine that `serve` stood beside is gone; what has not taken over ends, too."""
        wanted = self._current
        if wanted is not None and self.trial is None:
            await self._end_successor()
            self._report(wanted, ReloadError(f"{why} before the new one was ready"))
        self._current = None

    def close(self) -> None:
        """The owner ends."""
        waiting = [self._current, self.trial.reload if self.trial else None]
        while not self._queue.empty():
            waiting.append(self._queue.get_nowait())
        for wanted in waiting:
            if wanted is not None:
                wanted.fail(ReloadError("the service ends"))
        if self.successor is not None:
            self.successor.task.cancel()
        self.trial = None

    # --- in turn

    def on_trial_ready(self) -> None:
        trial, self.trial = self.trial, None
        if trial is not None and trial.epoch is not None:
            self._begin_probation(trial.old, trial.new)
            self._succeed(trial.reload, trial.epoch)

    def on_trial_failed(self, trial: Trial, epoch: Epoch, exited: EngineExit) -> None:
        """The new engine ended before it was ready: the former settings are next."""
        self.trial = None
        error = failed(epoch, exited)
        text = f"{error}; an engine of the former settings is started again"
        error = ReloadError(text, error.reasons, exit_code=error.exit_code, is_back=True)
        self._report(trial.reload, error)

    # --- inside

    async def _replace(self, wanted: Reload, epoch: Epoch, gate: Gate) -> bool:
        """True when the old engine is to end. Raises StrataError."""
        old = self._host.course
        new = Course.of(wanted.setup, top_rung)
        if new.files != old.files:
            raise ReloadError(
                f"the service has {old.files[0]}; a reload serves the same model file, another"
                " one needs a restart of the service",
                exit_code=78,
            )
        now = await asyncio.to_thread(fingerprint, new.inputs)
        if now[:-1] != self._host.found[:-1]:
            raise ReloadError(
                f"the model file {new.files[0]} has changed since it was loaded; another model"
                " needs a restart of the service",
                exit_code=78,
            )
        wanted.say("the new engine is asked for its plan")
        await new.memory.on_start()
        if (why := self.probation.why_not(new.key)) and not wanted.is_forced:
            raise ReloadError(f"{why}; --force tries it again", exit_code=78)
        is_same_place = (new.memory.inputs, new.place) == (old.memory.inputs, old.place)
        room = await find_room(new)
        if is_same_place:  # another place begins at the top of its ladder
            new = new.with_rung(self._restarts.peek)
        if room.way is Way.IN_TURN:
            return self._begin_trial(wanted, new.with_rung(self._restarts.choose), epoch, room)
        wanted.say(f"there is room for both engines: {room.text}; the new one starts")
        self._decisions.add("reload.started", f"A reload starts a second engine: {room.text}.")
        successor = self._start(new)
        await prove(successor)
        check_same_model(epoch, successor.epoch)
        wanted.say("the new engine is ready and takes over")
        await await_movable(gate, successor)
        self._take_over(successor, epoch, gate)
        self._begin_probation(old, new)
        self._succeed(wanted, successor.epoch)
        self._current = None
        return True

    def _begin_probation(self, old: Course, new: Course) -> None:
        now = asyncio.get_running_loop().time()
        self.probation.begin(old, new, new.key, now, can_return=old.can_return_from(new))

    def _begin_trial(self, wanted: Reload, new: Course, epoch: Epoch, room: Room) -> bool:
        text = f"there is no room for both engines: {room.text}; the old one ends first"
        wanted.say(f"{text}, requests wait")
        self._decisions.add("reload.started", f"A reload: {text}.")
        self.trial = Trial(wanted, new, self._host.course)
        self._current = None
        epoch.stop()
        return True

    def _start(self, course: Course) -> Successor:
        gate = Gate(self._listener, is_open=False)
        epoch = self._host.next_epoch(course, gate, stale.NEXT_NAME)
        task = asyncio.create_task(epoch.run(), name="successor")
        self.successor = Successor(course, epoch, gate, task)
        return self.successor

    def _take_over(self, successor: Successor, epoch: Epoch, gate: Gate) -> None:
        """In one turn of the event loop, between two frames: no request is with both or none."""
        lost = EngineLost("the engine is replaced", is_external=True, is_planned=True)
        self._listener.on_lost(lost)
        gate.close()
        successor.is_serving = True
        self._host.on_taken_over(successor)
        successor.gate.open()
        epoch.stop()

    def _succeed(self, wanted: Reload, epoch: Epoch) -> None:
        text = f"engine start {epoch.number} has taken over"
        lost = [row for row in epoch.handshake.rows if not row.is_as_asked]
        if lost:
            text += f", with less than was asked: {'; '.join(row_summary(row) for row in lost)}"
        self._decisions.add("reload.done", f"The reload is done: {text}.")
        log.log(logging.WARNING if lost else logging.INFO, "reload: %s", text)
        wanted.succeed(text, lost)

    async def _fail(self, wanted: Reload, error: ReloadError) -> None:
        """The old engine serves on; what was started beside it ends before anybody is told."""
        await self._end_successor()
        text = f"{error}; the old engine serves on"
        self._report(wanted, ReloadError(text, error.reasons, exit_code=error.exit_code))

    async def _end_successor(self) -> None:
        if self.successor is not None:
            await self.successor.end()
            self.successor = None

    def _report(self, wanted: Reload, error: ReloadError) -> None:
        why = "".join(f"; {reason}" for reason in error.reasons)
        self._decisions.add("reload.failed", f"The reload failed: {error}{why}.")
        log.error("the reload failed: %s%s", error, why)
        wanted.fail(error)
