"""One line of the table, the scale of a run, and what figures share: samples, the tally of terminal
events, and where the engines are.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.chaos.chaos_folder import ChaosFolder
from bench.chaos.rig import Rig
from tests.fakes.chaos_script import EpochScript


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. The defaults are the whole run; `SHORT` is what CI has time for."""

    exits: int = 200
    hangs_eagerly: bool = False  # with short limits instead of those of the product
    calm_s: float = 1800.0  # without a failure: nothing may be taken for one
    orphans: int = 20  # of each kind
    takeovers: int = 60
    streams_fake: int = 1000
    streams_real: int = 100
    soak_s: float = 600.0
    soak_kill_s: tuple[float, float] = (5.0, 20.0)
    gaps: int = 50
    poisons: int = 10
    never_s: float = 30.0
    load_s: float = 10.0
    cancels: int = 200
    cost_s: float = 15.0


SHORT = Scale(
    exits=8, hangs_eagerly=True, calm_s=0.0, orphans=1, takeovers=4, streams_fake=32,
    streams_real=16, soak_s=8.0, soak_kill_s=(1.0, 2.5), gaps=3, poisons=1, never_s=2.0,
    load_s=1.5, cancels=20, cost_s=2.0,
)  # fmt: skip


@dataclass(slots=True)
class Figure:
    name: str
    must: str
    measured: str
    is_met: bool
    facts: dict[str, object] = field(default_factory=dict)
    when: str = ""
    revision: str = ""

    def row(self) -> dict[str, object]:
        return asdict(self)


@dataclass
class Bench:
    """What each figure gets. Accepted requests and terminal events add up over all of them."""

    scale: Scale
    path: Path
    engine: Path | None  # the real one
    faults: Path | None  # the real one whose kernels fail on request
    random: random.Random = field(default_factory=lambda: random.Random(20))
    accepted: int = 0
    ended_once: int = 0
    twins: int = 0
    left: list[int] = field(default_factory=list)
    _made: int = 0  # a folder's name is used once: it holds what its engines left
    _folders: list[ChaosFolder] = field(default_factory=list)

    def folder(self, *epochs: EpochScript) -> ChaosFolder:
        made = ChaosFolder(self.path / f"chaos-{self._made}", epochs or (EpochScript(),))
        self._made += 1
        self._folders.append(made)
        return made

    def count(self, rig: Rig) -> None:
        """To be called once all its requests have ended."""
        accepted, ended_once = rig.terminal_counts()
        self.count_terminals(accepted, ended_once)

    def count_terminals(self, accepted: int, ended_once: int) -> None:
        self.accepted += accepted
        self.ended_once += ended_once

    def close(self) -> None:
        """Ends what is left of every folder, and notes it."""
        for folder in self._folders:
            self.left += folder.end_all(within_s=2.0)
            self.twins += folder.twins
        self._folders.clear()


def percentile(values: list[float], q: int) -> float:
    if len(values) < 2:
        return values[0] if values else float("nan")
    return statistics.quantiles(values, n=100, method="inclusive")[q - 1]


def milliseconds(values_s: list[float]) -> dict[str, object]:
    """Facts of a sample of times."""
    return {
        "count": len(values_s),
        "p50_ms": round(percentile(values_s, 50) * 1e3, 2),
        "p99_ms": round(percentile(values_s, 99) * 1e3, 2),
        "max_ms": round(max(values_s, default=float("nan")) * 1e3, 2),
    }
