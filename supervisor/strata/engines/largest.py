"""The largest context and the largest batch that fit, found by asking the engine again.

A value fits when planning with it is ready and no other mode gives anything up for it, so what is
found here can be set as it is. Memory is judged as of now. Where nothing can run for lack of
kernels, the same is found as if they were there (fitting.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec
from strata_protocol.limits import BATCH_MAX
from strata_protocol.messages import Caps, Configuration, ModePlan, Refuse, WantedModes

from strata.engines.modes import AXES, Choice, choose, without_kernel_reasons

Ask = Callable[[WantedModes], Awaitable[Caps | Refuse]]


class Largest(msgspec.Struct, frozen=True):
    """Each with all other modes as they run."""

    max_context: int  # tokens of one sequence
    batch: int  # sequences, which share the KV pool


@dataclass(frozen=True, slots=True)
class Search:
    """`choice` is what runs or, `by_memory`, what would fit, by `plan`; `ask` puts a question to
    the engine."""

    ask: Ask
    explicit: AbstractSet[str]
    choice: Choice
    plan: ModePlan
    by_memory: bool = False

    async def run(self, model_context: int) -> Largest:
        """`model_context`: the most tokens that the model takes; 0: not known."""
        plan = self.plan
        return Largest(
            await self._largest("max_context", plan.max_context, model_context or plan.max_context),
            await self._largest("batch", plan.batch, BATCH_MAX),
        )

    async def _largest(self, axis: str, runs: int, most: int) -> int:
        """Bisects between a value that runs and the most that can be asked."""
        most = max(most, runs)
        is_fitting, guess = await self._try(axis, most)
        if is_fitting:
            return most
        low, high = runs, most  # low fits, high does not
        # What the engine gives instead of too much is mostly the answer itself.
        for value in (guess, guess + 1):
            if low < value < high:
                is_fitting, _ = await self._try(axis, value)
                low, high = (value, high) if is_fitting else (low, value)
        while high - low > 1:
            middle = (low + high) // 2
            is_fitting, _ = await self._try(axis, middle)
            low, high = (middle, high) if is_fitting else (low, middle)
        return low

    async def _try(self, axis: str, value: int) -> tuple[bool, int]:
        """Whether a value fits, and what the engine would run instead."""
        wanted = msgspec.structs.replace(self.choice.offered.wanted, **{axis: value})
        caps = await self.ask(wanted)
        if isinstance(caps, Refuse):
            return False, 0
        configurations: Sequence[Configuration] = caps.configurations
        if self.by_memory:
            configurations = without_kernel_reasons(configurations, caps.reasons)
        choice = choose(
            wanted,
            {*self.explicit, axis},
            configurations,
            caps.reasons,
            quarantine=self.choice.offered.quarantine,
            device=caps.device,
        )
        if choice.plan is None:
            return False, 0
        row = next(row for row in choice.rows if row.name == axis)
        is_fitting = row.is_as_asked and _keeps(choice.plan, self.plan, axis)
        return is_fitting, int(getattr(choice.plan, axis))


def _keeps(plan: ModePlan, base: ModePlan, searched: str) -> bool:
    """Whether all but the searched axis runs as it did; the pool's size follows from both."""
    return all(
        axis.loss(getattr(base, axis.name), getattr(plan, axis.name)) == 0
        for axis in AXES
        if axis.name not in {searched, "kv_tokens"}
    )
