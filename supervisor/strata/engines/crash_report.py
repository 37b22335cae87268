"""What the owner knows of one crash, as it hands it to whoever writes it down.

Told in two parts: `on_crashed` while the requests are still as the engine left them, `on_decided`
once it is settled what happens next.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from strata_protocol.messages import Caps, Hello, ModePlan, WantedModes

from strata.engines.crash_memory import Verdict
from strata.engines.epoch import EngineSetup, Epoch
from strata.engines.exits import EngineExit
from strata.engines.frame_ring import FrameNote
from strata.engines.restart import Decision


@dataclass(frozen=True, slots=True)
class Counters:
    """Of this run of the service, the crash included."""

    starts: int
    crashes: int
    boot_attempts: int


@dataclass(frozen=True, slots=True)
class Crash:
    """One abnormal end of an engine."""

    exited: EngineExit
    verdict: Verdict
    plan: ModePlan | None  # what was being proven or ran; None before there was one
    wanted: WantedModes
    hello: Hello | None
    caps: Caps | None
    frames: tuple[FrameNote, ...]
    output: tuple[str, ...]  # the last lines it wrote
    command: tuple[str, ...]  # without the descriptors
    model: Path
    run_dir: Path
    counters: Counters


class CrashReporter(Protocol):
    """Called on the event loop; must not wait."""

    def on_crashed(self, crash: Crash) -> None:
        """Before serving hears of it."""
        ...

    def on_decided(self, decision: Decision) -> None:
        """About the last crash; also called after ends that were none."""
        ...

    def bundle_of(self, epoch: int) -> str:
        """Id of what was written down of the end of an epoch, or empty."""
        ...


class NullCrashReporter:
    """Writes nothing down."""

    def on_crashed(self, crash: Crash) -> None:
        pass

    def on_decided(self, decision: Decision) -> None:
        pass

    def bundle_of(self, epoch: int) -> str:
        return ""


def crash_of(
    epoch: Epoch,
    setup: EngineSetup,
    exited: EngineExit,
    verdict: Verdict,
    plan: ModePlan | None,
    *,
    counters: Counters,
) -> Crash:
    """Collects what the epoch knows."""
    return Crash(
        exited=exited,
        verdict=verdict,
        plan=plan,
        wanted=setup.wanted.modes,
        hello=epoch.handshake.hello,
        caps=epoch.handshake.caps,
        frames=epoch.frames.notes(),
        output=tuple(epoch.output.lines),
        command=(str(setup.launch.executable), *setup.launch.arguments),
        model=Path(setup.wanted.model),
        run_dir=setup.run_dir,
        counters=counters,
    )
