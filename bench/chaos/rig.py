"""Engine owner and serving in this process, with an engine that comes to harm: what most figures
and all tests of single failures run on. HTTP is not part of it (`served.py` has that).

Every request is watched by a task of its own that takes all its events, so that the count of
terminal events is known for each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strata.config import Config
from strata.engines import restart
from strata.engines.epoch import EngineSetup
from strata.engines.exits import EngineExit
from strata.engines.handshake import Wanted
from strata.engines.modes import wanted_modes
from strata.engines.owner import EngineOwner
from strata.engines.owner_view import EngineState
from strata.engines.process import Launch
from strata.engines.watch import Patience
from strata.errors import StrataError
from strata.serving.recorder import NullRecorder
from strata.serving.request import Failed, Finished, RequestSpec, TokensReady
from strata.serving.service import EngineService
from strata_protocol.messages import SamplingParams

from bench.chaos.chaos_folder import MODEL, ChaosFolder

WAIT_S = 60.0  # for anything that must happen; a busy machine is no failure
LOOK_S = 0.05  # at conditions that nobody tells of

# For failures that a test waits for.
EAGER = Patience(
    ping_s=0.1, silence_s=1.0, reader_s=1.0, step_s=1.0, busy_s=1.0, probe_s=1.0, stall_s=1.0,
    dump_s=0.3, abort_s=0.5, reap_s=0.3, refuse_s=3.0, drain_s=0.5, term_s=0.3,
)  # fmt: skip


@dataclass(eq=False)
class Call:
    """One accepted request and everything that came of it."""

    prompt: Sequence[int]
    params: SamplingParams
    ids: list[int] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)  # when tokens came, loop time
    terminals: list[Finished | Failed] = field(default_factory=list)
    cancel: Callable[[], None] = lambda: None
    on_tokens: Callable[[], None] = lambda: None
    task: asyncio.Task[None] | None = None

    @property
    def end(self) -> Finished | Failed:
        """The one terminal event; AssertionError where there is none or several."""
        assert len(self.terminals) == 1, self.terminals
        return self.terminals[0]

    async def ended(self, within_s: float = WAIT_S) -> Finished | Failed:
        assert self.task is not None
        async with asyncio.timeout(within_s):
            await asyncio.shield(self.task)
        return self.end


class Observer:
    """Implements `OwnerObserver`: times of starts, READYs and exits, and waiting for changes."""

    def __init__(self) -> None:
        self.owner: EngineOwner | None = None
        self.exits: list[EngineExit] = []
        self.exit_s: list[float] = []  # loop time
        self.start_s: list[float] = []
        self.ready_s: list[float] = []
        self._wakers: set[asyncio.Event] = set()

    def on_changed(self) -> None:
        is_ready = self.owner is not None and self.owner.view.state is EngineState.READY
        if is_ready and len(self.ready_s) < len(self.start_s):
            now = asyncio.get_running_loop().time()
            self.ready_s += [now] * (len(self.start_s) - len(self.ready_s))
        self.wake()

    def on_started(self, epoch: int) -> None:
        self.start_s.append(asyncio.get_running_loop().time())

    def on_exited(self, exited: EngineExit) -> None:
        self.exit_s.append(asyncio.get_running_loop().time())
        self.exits.append(exited)
        self.wake()

    def wake(self) -> None:
        for waker in self._wakers:
            waker.set()

    async def until(self, condition: Callable[[], bool], within_s: float = WAIT_S) -> None:
        """Returns once the condition holds. Raises TimeoutError."""
        waker = asyncio.Event()
        self._wakers.add(waker)
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    waker.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await waker.wait()
        finally:
            self._wakers.discard(waker)


@dataclass
class Rig:
    folder: ChaosFolder
    service: EngineService
    owner: EngineOwner
    observer: Observer
    task: asyncio.Task[None]
    calls: list[Call] = field(default_factory=list)
    accepted: int = 0

    async def ready(self, starts: int = 1) -> None:
        await self.observer.until(
            lambda: (
                self.owner.view.state is EngineState.READY and len(self.observer.start_s) >= starts
            )
        )

    async def exited(self, count: int = 1, within_s: float = WAIT_S) -> EngineExit:
        await self.observer.until(lambda: len(self.observer.exits) >= count, within_s)
        return self.observer.exits[count - 1]

    async def engine_said(self, text: str) -> None:
        """Waits for a line of the running engine's output."""
        epoch = self.owner.view.epoch
        assert epoch is not None
        await self.observer.until(lambda: any(text in line for line in epoch.output.lines))

    @property
    def pid(self) -> int:
        epoch = self.owner.view.epoch
        assert epoch is not None
        assert epoch.process is not None
        return epoch.process.pid

    async def submit(self, prompt: Sequence[int], max_tokens: int = 8, **params: float) -> Call:
        """Raises RejectedError."""
        wanted = {"temperature": 0.0, "ignore_eos": True, **params}
        sampling = SamplingParams(max_tokens=max_tokens, **wanted)  # type: ignore[arg-type]
        call = Call(prompt, sampling, on_tokens=self.observer.wake)
        handle = await self.service.submit(RequestSpec(f"call-{self.accepted}", prompt, sampling))
        self.accepted += 1
        call.cancel = handle.cancel
        call.task = asyncio.create_task(self._watch(call, handle))
        self.calls.append(call)
        return call

    async def _watch(self, call: Call, handle: object) -> None:
        async for event in handle:  # type: ignore[attr-defined]
            match event:
                case TokensReady(ids):
                    call.ids += ids
                    call.token_s += [asyncio.get_running_loop().time()] * len(ids)
                case Finished() | Failed():
                    call.terminals.append(event)
            call.on_tokens()

    async def all_ended(self, within_s: float = WAIT_S) -> None:
        async with asyncio.timeout(within_s):
            await asyncio.gather(*(call.task for call in self.calls if call.task is not None))

    def terminal_counts(self) -> tuple[int, int]:
        """Accepted requests, and how many of them got exactly one terminal event."""
        return self.accepted, sum(len(call.terminals) == 1 for call in self.calls)


@contextlib.asynccontextmanager
async def running(
    folder: ChaosFolder,
    *,
    engine: Path | None = None,
    model: Path = MODEL,
    patience: Patience = EAGER,
    is_strict: bool = False,
    explicit: frozenset[str] = frozenset(),
    clock: Callable[[], float] = time.time,
    **settings: object,
) -> AsyncIterator[Rig]:
    """`engine`: another program than the folder's chaos engine, for instance the real one."""
    config = Config(**settings)  # type: ignore[arg-type]
    folder.run_dir.mkdir(exist_ok=True)
    wanted = Wanted("chaos", str(model), wanted_modes(config), explicit, is_strict)
    setup = EngineSetup(
        Launch(engine or folder.executable, []),
        wanted,
        folder.run_dir,
        patience,
        clock=clock,
    )
    service = EngineService(config, NullRecorder())
    observer = Observer()
    owner = EngineOwner(setup, service, observer, jitter=lambda: 0.0)
    service.judge = owner.judge
    observer.owner = owner
    task = asyncio.create_task(owner.run())
    ticker = asyncio.create_task(service.run())
    rig = Rig(folder, service, owner, observer, task)
    try:
        yield rig
    finally:
        service.end_all()
        owner.stop()
        ticker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticker
        async with asyncio.timeout(WAIT_S):
            (fault,) = await asyncio.gather(task, return_exceptions=True)
            if fault is not None and not isinstance(fault, StrataError):
                raise fault
            await rig.all_ended()


@contextlib.contextmanager
def unlimited_restarts() -> Iterator[None]:
    """Restarts at once and without end: for measuring what the policy would otherwise slow down.
    The policy itself is measured under a virtual clock."""
    counts = (
        "SAME_CRASHES_MAX",
        "CRASHES_MAX",
        "BOOT_CRASHES_MAX",
        "STARTS_MAX",
        "UNREADY_STARTS_MAX",
    )
    limits = {"DELAY_MAX_S": 0.0, **dict.fromkeys(counts, 1 << 20)}
    before = {name: getattr(restart, name) for name in limits}
    for name, value in limits.items():
        setattr(restart, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(restart, name, value)
