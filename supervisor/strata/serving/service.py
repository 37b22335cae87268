"""The serving layer at work: joins scheduler, handles and the running engine.

All calls happen on one event loop. The scheduler decides; this module only carries out.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import assert_never

from strata_protocol.errors import SendError
from strata_protocol.messages import (
    Cancel,
    Credit,
    Done,
    ErrorKind,
    PromptLogprobs,
    Resume,
    Stats,
    Submit,
    Tokens,
)

from strata.config import Config
from strata.engines.port import EngineLost, EnginePort, EngineReady, RunMessage
from strata.serving.admission import DRAINING, Closure, Reservation, SchedulerLimits
from strata.serving.effects import Deliver, Doubt, Effect, Fault, Send
from strata.serving.handle import RequestHandle
from strata.serving.needs import serving_modes
from strata.serving.recorder import Recorder
from strata.serving.request import CancelReason, EngineFacts, Failed, Finished, RequestSpec
from strata.serving.request_facts import RequestFacts
from strata.serving.scheduler import Scheduler
from strata.serving.shapes import Apart

TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the service is."""

    running: int
    waiting: int
    waiting_tokens: int
    oldest_wait_s: float
    parked: int = 0  # of those that wait: lost their engine and go on with the next
    quarantined: int = 0  # requests, by fingerprint, that are refused because they killed engines
    journal_bytes: int = 0
    eta_s: float = 0.0  # that a request which comes now is expected to wait
    shapes_apart: tuple[Apart, ...] = ()  # kinds of requests that run alone or are refused


class EngineService:
    """Implements `serving.request.Service` and `engines.port.EngineListener`."""

    def __init__(
        self,
        config: Config,
        recorder: Recorder,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        limits = SchedulerLimits(
            config.queue_requests,
            config.queue_tokens,
            config.request_timeout_s,
            config.journal_bytes,
            config.park_s,
            config.key_requests,
        )
        self._scheduler = Scheduler(limits, recorder, jitter)
        self._recorder = recorder
        self._clock = clock
        # Told of a mode in doubt; whether that takes it out (EngineOwner.judge).
        self.judge: Callable[[str], bool] = lambda _: False
        self._handles: dict[int, RequestHandle] = {}
        self._port: EnginePort | None = None
        self._facts: EngineFacts | None = None
        self._stats: Stats | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    # --- Service

    @property
    def facts(self) -> EngineFacts | None:
        return self._facts

    def reserve(self, key: str) -> Reservation:
        return self._scheduler.reserve(key, self._clock())

    async def submit(self, spec: RequestSpec) -> RequestHandle:
        rid, effects = self._scheduler.submit(spec, self._clock())
        handle = RequestHandle(rid, self._consumed, self._cancel)
        self._handles[rid] = handle
        self._idle.clear()
        self._perform(effects)
        return handle

    # --- EngineListener

    def on_ready(self, ready: EngineReady, port: EnginePort) -> None:
        self._port = port
        self._facts = _facts(ready)
        self._perform(self._scheduler.on_ready(self._facts, self._clock()))

    def on_message(self, message: RunMessage) -> None:
        now = self._clock()
        match message:
            case Tokens():
                self._perform(self._scheduler.on_tokens(message, now))
            case Done():
                self._perform(self._scheduler.on_done(message, now))
            case PromptLogprobs():
                self._perform(self._scheduler.on_prompt_logprobs(message))
            case Stats():
                self._recorder.on_stats(message, self._stats)
                self._stats = message
            case _:
                assert_never(message)

    def on_writable(self, is_writable: bool) -> None:
        self._perform(self._scheduler.on_writable(is_writable, self._clock()))

    def suspected(self, suspects: tuple[int, ...]) -> frozenset[str]:
        return self._scheduler.suspected(suspects)

    def are_known(self, prints: frozenset[str]) -> bool:
        return self._scheduler.recovery.are_known(prints)

    def on_lost(self, lost: EngineLost) -> str:
        self._port = None
        self._stats = None
        self._perform(self._scheduler.on_lost(lost, self._clock()))
        return self._scheduler.convicted

    def why_not_move(self, ready: EngineReady) -> str:
        return self._scheduler.why_not_move(_facts(ready))

    def on_down(self, code: str, text: str, retry_after_s: float | None) -> None:
        closure = Closure(code, text, retry_after_s)
        self._perform(self._scheduler.on_closed(closure, self._clock()))

    # --- drain, time, status

    def begin_drain(self) -> None:
        """Refuses new requests from now on."""
        self._scheduler.on_draining(
            Closure(DRAINING, "the service is shutting down and takes no new requests", 5.0)
        )

    async def drain(self, timeout_s: float) -> None:
        """Waits for the accepted requests; whatever is left then gets one typed error."""
        self.begin_drain()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self.end_all()

    def end_all(self) -> None:
        """Answers every open request with one typed error, now."""
        text = "the service was shut down before the request finished"
        failed = Failed(ErrorKind.OVERLOADED, "shutting_down", text)
        self._perform(self._scheduler.end_all(failed, self._clock()))

    async def run(self) -> None:
        """Ends requests that pass their deadline, until cancelled; reports the loop's lag."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self._recorder.on_loop_lag(max(loop.time() - due, 0.0))
            self._perform(self._scheduler.on_tick(self._clock()))

    @property
    def stats(self) -> Stats | None:
        """The running engine's last STATS."""
        return self._stats

    def load(self) -> Load:
        scheduler = self._scheduler
        return Load(
            scheduler.in_flight,
            scheduler.waiting,
            scheduler.waiting_tokens,
            scheduler.oldest_wait_s(self._clock()),
            scheduler.parked,
            scheduler.recovery.quarantine.count(self._clock()),
            scheduler.recovery.journal.bytes,
            scheduler.wait_s(self._clock()),
            tuple(scheduler.recovery.shapes.apart(self._clock())),
        )

    def request_facts(self, suspects: Collection[int]) -> list[RequestFacts]:
        """What may be written down of the requests that the engine has; `suspects` were in the
        step that it died in."""
        return self._scheduler.facts(suspects)

    # --- inside

    def _consumed(self, rid: int, count: int) -> None:
        effects = self._scheduler.on_consumed(rid, count)
        if effects:
            self._perform(effects)

    def _cancel(self, rid: int, why: CancelReason) -> None:
        self._perform(self._scheduler.cancel(rid, self._clock(), why))

    def _send(self, message: Submit | Resume | Cancel | Credit) -> None:
        if self._port is None:
            return
        try:
            self._port.send(message)
        except SendError as error:
            if not isinstance(message, Submit | Resume):
                raise
            self._perform(self._scheduler.on_unsendable(message.rid, error.text, self._clock()))

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Deliver(rid, event):
                    if isinstance(event, Finished | Failed):
                        self._handles.pop(rid).push(event)
                        if not self._handles:
                            self._idle.set()
                    else:
                        self._handles[rid].push(event)
                case Send(message):
                    self._send(message)
                case Fault(text):
                    if self._port is not None:
                        self._port.fault(text)
                case Doubt(mode):
                    if self._port is not None and self.judge(mode):
                        self._scheduler.on_shared_steps_out()
                case _:
                    assert_never(effect)


def _facts(ready: EngineReady) -> EngineFacts:
    plan = ready.ready.plan
    serving = serving_modes(plan, ready.ready.serving)
    return EngineFacts(ready.model, plan, ready.modes, serving, ready.build)
