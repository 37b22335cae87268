"""The time between one engine and the next: waits as the policy decided, holds, or stays down until
an input changes. The owner alone decides and starts; here nothing is decided.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import assert_never

from strata_protocol.messages import Reason

from strata.engines.course import Course
from strata.engines.epoch_facts import Fingerprints, fingerprint
from strata.engines.exits import EngineExit
from strata.engines.memory_wait import wait_for_memory
from strata.engines.modes import sentences
from strata.engines.owner_view import EngineState, EngineView, OwnerObserver
from strata.engines.pointless import end_where_pointless, reasons_of
from strata.engines.port import EngineListener
from strata.engines.restart import Decision, Hold, StartAfter, StayDown, Stopped

INPUT_POLL_S = 2.0  # how often a refused start looks whether its inputs changed

log = logging.getLogger("strata.engine")


class Interval:
    """One owner's. `stop` ends each wait."""

    def __init__(
        self,
        view: EngineView,
        listener: EngineListener,
        observer: OwnerObserver,
        stop: asyncio.Event,
    ) -> None:
        self.was_ever_ready = False  # an engine of this service
        self._view = view
        self._listener = listener
        self._observer = observer
        self._stop = stop

    async def follow(
        self,
        decision: Decision,
        last: str,
        course: Course,
        found: Fingerprints,
        exited: EngineExit | None = None,
    ) -> bool:
        """Waits as decided; False when the owner is done. `last`: what ended the last engine;
        `found`: of the course's inputs, as the last start read them."""
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
                self._view.reasons = [Reason(code="engine.hold", text=text)]
                log.error("the engine is held: %s; next start in %.0f s", text, delay_s)
                self._listener.on_down("engine_hold", f"the engine is held: {text}", delay_s)
                await self._wait(EngineState.HOLD, delay_s)
            case StayDown():
                if exited is not None:
                    await self._stay_down(exited, course, found)
            case _:
                assert_never(decision)
        return not self._stop.is_set()

    async def await_memory(self, needed_bytes: int) -> None:
        """The next engine plans with what is free; `needed_bytes` is what the last one needed."""
        missing = await wait_for_memory(needed_bytes)
        if missing:
            log.warning(
                "%.0f MiB less than the engine needs are free; it plans with what there is",
                missing / (1 << 20),
            )

    def show(self, state: EngineState) -> None:
        self._view.state = state
        self._observer.on_changed()

    # --- inside

    async def _stay_down(self, exited: EngineExit, course: Course, found: Fingerprints) -> None:
        view = self._view
        refused = view.epoch.refused if view.epoch is not None else None
        view.reasons = reasons_of(refused, exited.text)
        text = f"the engine refuses to start: {sentences(view.reasons)}"
        view.decisions.add("engine.refused", f"{text[0].upper()}{text[1:]}.")
        if refused is not None and not self.was_ever_ready:
            end_where_pointless(refused, course.setup.wanted, view.device)
        log.error("%s", text)
        self._listener.on_down("engine_refused", text, None)
        self.show(EngineState.REFUSED)
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INPUT_POLL_S):
                    await self._stop.wait()
            if await asyncio.to_thread(fingerprint, course.inputs) != found:
                log.info("the model file or the engine changed; starting again")
                return

    async def _wait(self, state: EngineState, delay_s: float) -> None:
        self._view.next_start_s = asyncio.get_running_loop().time() + delay_s
        self.show(state)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._stop.wait()
