"""A service with a scripted engine: what the tests of this folder share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import strata_protocol
from strata.config import Config
from strata.engines.epoch import EngineSetup
from strata.engines.exits import EngineExit
from strata.engines.handshake import Wanted
from strata.engines.modes import wanted_modes
from strata.engines.owner import EngineOwner
from strata.engines.owner_view import EngineState
from strata.engines.process import Launch
from strata.engines.watch import Patience
from strata.observe.bundle_writer import BundleWriter
from strata.serving.recorder import NullRecorder
from strata.serving.request import Event, Handle, RequestSpec
from strata.serving.service import EngineService
from strata_protocol.messages import SamplingParams

FAKE_ENGINE = Path(__file__).resolve().parent.parent / "fakes" / "fake_engine.py"
SOURCES = [str(Path(strata_protocol.__file__).parent.parent)]


def write_fake(folder: Path, behaviours: list[dict[str, object]]) -> Path:
    """An executable that acts like an engine with the scripted behaviours."""
    script = folder / "script.json"
    script.write_text(json.dumps(behaviours))
    executable = folder / "fake-engine"
    executable.write_text(
        f"#!{sys.executable}\n"
        "import runpy, sys\n"
        f"sys.path[:0] = {SOURCES!r}\n"
        f"sys.argv[1:1] = [{str(script)!r}]\n"
        f"runpy.run_path({str(FAKE_ENGINE)!r}, run_name='__main__')\n"
    )
    executable.chmod(0o755)
    return executable


@dataclass
class Observer:
    """Remembers what the owner reports and wakes whoever waits for a change."""

    exits: list[EngineExit] = field(default_factory=list)
    starts: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _wakers: set[asyncio.Event] = field(default_factory=set)

    def on_changed(self) -> None:
        for waker in self._wakers:
            waker.set()

    def on_started(self, epoch: int) -> None:
        self.starts += 1

    def on_exited(self, exited: EngineExit) -> None:
        self.exits.append(exited)
        self.on_changed()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        waker = asyncio.Event()
        self._wakers.add(waker)
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    waker.clear()
                    await waker.wait()
        finally:
            self._wakers.discard(waker)


@dataclass
class Rig:
    """One running service."""

    service: EngineService
    owner: EngineOwner
    observer: Observer
    task: asyncio.Task[None]

    async def ready(self, starts: int = 1) -> None:
        await self.observer.until(
            lambda: self.owner.view.state is EngineState.READY and self.observer.starts >= starts
        )
        await self.owner.saved()

    async def state(self, state: EngineState) -> None:
        await self.observer.until(lambda: self.owner.view.state is state)

    @property
    def pid(self) -> int:
        epoch = self.owner.view.epoch
        assert epoch is not None
        assert epoch.process is not None
        return epoch.process.pid

    async def submit(
        self, prompt: list[int], max_tokens: int = 4, key: str = "", **params: Any
    ) -> Handle:
        sampling = SamplingParams(max_tokens=max_tokens, **params)
        spec = RequestSpec("test", prompt, sampling, key)
        return await self.service.submit(spec)


async def collect(handle: Handle) -> list[Event]:
    """All events of a request, which must end."""
    async with asyncio.timeout(20):
        return [event async for event in handle]


def tokens_of(events: list[Event]) -> list[int]:
    return [i for event in events for i in getattr(event, "ids", [])]


RigMaker = Callable[..., "contextlib.AbstractAsyncContextManager[Rig]"]

EAGER = Patience(
    ping_s=0.05,
    silence_s=1.0,
    reader_s=1.0,
    step_s=1.0,
    busy_s=1.0,
    probe_s=0.5,
    dump_s=0.3,
    abort_s=0.5,
    stall_s=1.0,
    reap_s=0.3,
    refuse_s=3.0,
    drain_s=2.0,
    term_s=0.3,
)


@pytest.fixture
def make_rig(tmp_path: Path) -> RigMaker:
    @contextlib.asynccontextmanager
    async def make(
        *behaviours: dict[str, object],
        patience: Patience | None = None,
        explicit: frozenset[str] = frozenset(),
        is_strict: bool = False,
        clock: Callable[[], float] = time.time,
        **settings: object,
    ) -> AsyncIterator[Rig]:
        config = Config(**settings)  # type: ignore[arg-type]
        executable = write_fake(tmp_path, list(behaviours) or [{}])
        model = tmp_path / "model.gguf"
        if not model.exists():  # a second service finds the same file
            model.write_bytes(b"GGUF")
        wanted = Wanted("test-run", str(model), wanted_modes(config), explicit, is_strict)
        run_dir = tmp_path / "run"
        run_dir.mkdir(exist_ok=True)
        setup = EngineSetup(
            Launch(executable, []),
            wanted,
            run_dir,
            patience or Patience(),
            quarantine_trial_s=config.quarantine_trial_s,
            clock=clock,
        )
        service = EngineService(config, NullRecorder())
        observer = Observer()
        bundles = BundleWriter(run_dir, service.request_facts, config={"batch": "4"})
        owner = EngineOwner(setup, service, observer, jitter=lambda: 0.0, reporter=bundles)
        service.judge = owner.judge
        task = asyncio.create_task(owner.run())
        ticker = asyncio.create_task(service.run())
        rig = Rig(service, owner, observer, task)
        try:
            yield rig
        finally:
            owner.stop()
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker
            async with asyncio.timeout(15):
                await asyncio.gather(task, return_exceptions=True)
            bundles.close()

    return make
