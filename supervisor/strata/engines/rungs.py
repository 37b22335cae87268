"""Which rung of the ladder runs: finding a remembered place on a ladder that each start makes anew,
and the rung to go to from there. Pure.

A ladder's plans are not the same from start to start: sizes follow from the memory that is free,
and a mode in quarantine is on none of them. So a place is remembered as a limit, not as a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from strata_protocol.messages import Configuration, ModePlan

from strata.engines.modes import Rung, is_lower_on, is_plainer

BYTES_SLACK = 1.05  # by how much the planned memory of one rung may differ between two starts


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What may run at most: no feature richer than the plan's."""

    plan: ModePlan
    context: int = 0  # tokens at most; 0: as the features allow
    bytes: int = 0  # planned memory at most; 0: no bound


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs of one start, richest first; `bytes` is the planned memory of each, 0 where it is
    not known. Never empty."""

    rungs: tuple[Rung, ...]
    bytes: tuple[int, ...]

    @classmethod
    def of(cls, rungs: Sequence[Rung], configurations: Sequence[Configuration]) -> Ladder:
        planned = [(c.plan, sum(part.bytes for part in c.memory)) for c in configurations]
        return cls(
            tuple(rungs),
            tuple(next((n for plan, n in planned if plan == rung.plan), 0) for rung in rungs),
        )

    @property
    def top(self) -> Ladder:
        """The first rung alone."""
        return Ladder(self.rungs[:1], self.bytes[:1])

    def find(self, limit: Limit | None) -> int:
        """The richest rung within a limit; the plainest where none is."""
        if limit is None:
            return 0
        for index in range(len(self.rungs)):
            if self._is_within(index, limit):
                return index
        return len(self.rungs) - 1

    def limit(self, index: int, *, for_memory: bool = False) -> Limit:
        """The limit that leads to this rung on this ladder."""
        plan = self.rungs[index].plan
        above = [rung.plan.max_context for rung in self.rungs[:index]]
        return Limit(
            plan=plan,
            context=plan.max_context if any(n > plan.max_context for n in above) else 0,
            bytes=self.bytes[index] if for_memory else 0,
        )

    def below(self, index: int, axis: str = "") -> int | None:
        """The next rung below; of those that have less on `axis` the first, where there is one."""
        lower = range(index + 1, len(self.rungs))
        plan = self.rungs[index].plan
        for other in lower:
            if axis and is_lower_on(axis, self.rungs[other].plan, plan):
                return other
        return lower[0] if lower else None

    def below_in_memory(self, index: int, *, is_last: bool = False) -> int | None:
        """The next rung below that needs less memory; with `is_last` the one that needs least."""
        lower = range(index + 1, len(self.rungs))
        smaller = [other for other in lower if self.bytes[other] < self.bytes[index]]
        if not smaller and not any(self.bytes):  # not known: by what memory is spent on
            here = self.rungs[index].plan
            for other in lower:
                there = self.rungs[other].plan
                if there.batch < here.batch or there.max_context < here.max_context:
                    smaller.append(other)
        if not smaller:
            return None
        return min(smaller, key=lambda other: self.bytes[other]) if is_last else smaller[0]

    def _is_within(self, index: int, limit: Limit) -> bool:
        plan, size = self.rungs[index].plan, self.bytes[index]
        return (
            is_plainer(plan, limit.plan)
            and (not limit.context or plan.max_context <= limit.context)
            and (not limit.bytes or size <= limit.bytes * BYTES_SLACK)
        )


def is_same_rung(plan: ModePlan, other: ModePlan) -> bool:
    """Whether two plans have the same features, and the first no less context."""
    return (
        is_plainer(plan, other)
        and is_plainer(other, plan)
        and plan.max_context >= other.max_context
    )
