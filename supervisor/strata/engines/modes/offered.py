"""What a choice is made from, and the order of configurations: how much of what was asked each
gives up.

1. Only configurations that the engine calls ready, that no quarantine record hides, and that keep
   the exactness of a KV or activation type which the operator set.
2. Fewest axes given up that the operator set, then fewest axes in all.
3. Least given up on the dearest axis, then on the next cheaper one; `_COST` is that order.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from strata_protocol.messages import (
    Configuration,
    DeviceFacts,
    ModePlan,
    Reason,
    WantedModes,
)

from strata.engines.modes.axes import (
    AXES,
    Axis,
    Group,
    Value,
    asked,
    given,
    is_auto,
    is_less_exact,
    loss,
)
from strata.engines.modes.quarantined import Quarantined, hiding


class Policy(enum.StrEnum):
    STRICT = "strict"  # a mode that was set and cannot run as set is a refusal
    FALLBACK = "fallback"


# Dearest first. A type that was left open and becomes more exact costs memory and speed only.
_COST: tuple[tuple[Group, bool], ...] = (
    *((group, False) for group in sorted(Group, reverse=True) if group > Group.BATCH),
    (Group.BATCH, False),
    (Group.KV, True),
    (Group.ACTIVATIONS, True),
    (Group.DRAFTS, False),
)

Rank = tuple[float, ...]  # less is better


@dataclass(frozen=True, slots=True)
class Offered:
    """All that a choice depends on."""

    wanted: WantedModes
    explicit: AbstractSet[str]  # names of the axes that the operator set
    configurations: Sequence[Configuration]  # the first is what was asked, auto resolved
    reasons: Sequence[Reason]  # that configurations refer to
    quarantine: Sequence[Quarantined]
    policy: Policy
    device: DeviceFacts

    def target(self, axis: Axis) -> Value | None:
        """What was asked on an axis; None where any value will do."""
        return asked(axis, self.wanted, self.configurations[0].plan)

    def loss(self, axis: Axis, plan: ModePlan) -> float:
        if axis.name == "batch_mtp" and plan.batch == 1:
            return 0.0  # no sequences share a step, so nothing is lost by drafting alone
        return loss(axis, self.target(axis), given(axis, plan))

    def is_less_exact(self, axis: Axis, plan: ModePlan) -> bool:
        return is_less_exact(axis, self.target(axis), given(axis, plan))

    def shortfalls(self, axis_name: str, configuration: Configuration) -> list[Reason]:
        return [self.reasons[s.reason] for s in configuration.shortfalls if s.axis == axis_name]

    def is_given_up(self, axis: Axis, configuration: Configuration) -> bool:
        if self.loss(axis, configuration.plan) > 0:
            return True
        return axis.name in self.explicit and any(
            shortfall.axis == axis.name for shortfall in configuration.shortfalls
        )

    def keeps_exactness(self, plan: ModePlan) -> bool:
        """Whether no type that the operator set has become less exact."""
        return not any(
            axis.name in self.explicit and self.is_less_exact(axis, plan) for axis in AXES
        )

    def is_runnable(self, configuration: Configuration) -> bool:
        return not configuration.missing and not hiding(self.quarantine, configuration.plan)

    def is_candidate(self, configuration: Configuration) -> bool:
        return self.is_runnable(configuration) and self.keeps_exactness(configuration.plan)

    def rank(self, configuration: Configuration) -> Rank:
        """How much of what was asked a configuration gives up."""
        given_up = [axis for axis in AXES if self.is_given_up(axis, configuration)]
        by_operator = {axis.group for axis in given_up if axis.name in self.explicit}
        lost = dict.fromkeys(_COST, 0.0)
        for axis in given_up:
            is_cheap = (axis.group, True) in lost and self._is_left_more_exact(axis, configuration)
            lost[axis.group, is_cheap] += self.loss(axis, configuration.plan)
        groups = {axis.group for axis in given_up}
        # Of two that give up the same, the longer context.
        context = -float(configuration.plan.max_context)
        return (float(len(by_operator)), float(len(groups)), *lost.values(), context)

    def _is_left_more_exact(self, axis: Axis, configuration: Configuration) -> bool:
        return is_auto(axis, self.wanted) and not self.is_less_exact(axis, configuration.plan)
