"""Configurations as an engine would report them, for tests of the choice: all combinations of the
values of a few axes, and rules that say which of them lack what.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import msgspec
from strata.engines.modes import Choice, ModeRow, Policy, choose
from strata_protocol.messages import (
    Configuration,
    DeviceFacts,
    MemoryPart,
    ModePlan,
    Reason,
    Shortfall,
    WantedModes,
)

PLAN = ModePlan(
    batch=8, max_context=4096, kv="f16", prefill=256, activations="int8", threads=2, kv_tokens=8192
)
DEVICE = DeviceFacts(name="Some Processor 9", backend="cpu", memory_available_bytes=8 << 30)

Test = Callable[[ModePlan], bool]


@dataclass(frozen=True)
class Record:
    """A record of quarantine, as the choice sees one."""

    mode: str
    text: str


@dataclass
class World:
    """`axes`: the values near what was asked; the first of each is what was asked."""

    axes: dict[str, Sequence[object]]
    missing: list[tuple[Reason, Test]] = field(default_factory=list)
    shortfalls: list[tuple[str, Reason, Test]] = field(default_factory=list)
    base: ModePlan = PLAN

    @property
    def reasons(self) -> list[Reason]:
        return [m[0] for m in self.missing] + [s[1] for s in self.shortfalls]

    def configurations(self) -> list[Configuration]:
        found = []
        for values in itertools.product(*self.axes.values()):
            plan = msgspec.structs.replace(self.base, **dict(zip(self.axes, values, strict=True)))
            if plan.spec == 0:
                plan = msgspec.structs.replace(plan, mtp="off", batch_mtp=False)
            found.append(
                Configuration(
                    plan=plan,
                    missing=[i for i, (_, lacks) in enumerate(self.missing) if lacks(plan)],
                    shortfalls=[
                        Shortfall(axis=axis, reason=len(self.missing) + i)
                        for i, (axis, _, lacks) in enumerate(self.shortfalls)
                        if lacks(plan)
                    ],
                    memory=[MemoryPart(name="kv", bytes=plan.kv_tokens * 64)],
                )
            )
        return found

    def choose(
        self,
        wanted: WantedModes | None = None,
        explicit: AbstractSet[str] = frozenset(),
        quarantine: Sequence[Record] = (),
        policy: Policy = Policy.FALLBACK,
    ) -> Choice:
        return choose(
            wanted or WantedModes(),
            explicit,
            self.configurations(),
            self.reasons,
            quarantine=quarantine,
            policy=policy,
            device=DEVICE,
        )


def missing(text: str) -> Reason:
    return Reason(code="kernel.missing", text=text)


def row(choice: Choice, name: str) -> ModeRow:
    return next(row for row in choice.rows if row.name == name)


def because(choice: Choice, name: str) -> list[tuple[str, str]]:
    return [(reason.code, reason.text) for reason in row(choice, name).because]
