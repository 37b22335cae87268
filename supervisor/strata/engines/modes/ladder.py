"""The ladder: what may run after the chosen configuration has failed, plainer on each rung.

Computed from the configurations that are ready. Each rung gives up one more group of axes as far
as any of them does: drafts, batch, activations, KV type, prefill, context, prefix cache, memory.
Sizes that follow from memory may be larger on a lower rung; nothing else may.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from strata_protocol.messages import Configuration, ModePlan

from strata.engines.modes.axes import AXES, AXIS, Axis, Group, given

FULL = "full"


class Rung(msgspec.Struct, frozen=True):
    name: str  # what it gives up against the rung above: "no-drafts", "batch-1"
    plan: ModePlan


def is_plainer(plan: ModePlan, than: ModePlan) -> bool:
    """Whether no feature of `plan` is richer than the other's. A plan is plainer than itself."""
    return all(_richness(axis, plan) <= _richness(axis, than) for axis in AXES if not axis.is_size)


def is_lower_on(name: str, plan: ModePlan, than: ModePlan) -> bool:
    """Whether `plan` has less on the axis of that name; False where there is no such axis."""
    axis = AXIS.get(name)
    return axis is not None and _is_lower(axis, plan, than)


def build_ladder(
    top: str, chosen: ModePlan, candidates: Sequence[Configuration]
) -> tuple[Rung, ...]:
    """The rungs from `chosen` (named `top`) down to the plainest candidate below it."""
    rungs = [Rung(top, chosen)]
    for group in Group:
        while (plan := _step_down(group, rungs[-1].plan, candidates)) is not None:
            lost = [axis for axis in AXES if _is_lower(axis, plan, rungs[-1].plan)]
            if group is not Group.CONTEXT:  # else a smaller context is only memory's doing
                lost = [axis for axis in lost if not axis.is_size]
            rungs.append(Rung(rung_name(plan, lost), plan))
    return tuple(rungs)


def rung_name(plan: ModePlan, given_up: Iterable[Axis]) -> str:
    """ "full", "no-drafts", "batch-1+kv-f32": what `plan` has less of."""
    names = []
    for axis in given_up:
        if axis.group is Group.DRAFTS:
            name = _drafts_name(plan)
        else:
            shown = axis.shown(given(axis, plan))
            name = f"no-{axis.name}" if shown == "off" else f"{axis.name}-{shown}"
        names.append(name.replace("_", "-"))
    # Drafts are given up first, so they are named first.
    ordered = sorted(dict.fromkeys(names), key=lambda name: "drafts" not in name)
    return "+".join(ordered) or FULL


def _drafts_name(plan: ModePlan) -> str:
    if plan.spec == 0 or plan.mtp == "off":
        return "no-drafts"
    return f"drafts-{plan.spec}" if plan.batch_mtp else "solo-drafts"


def _step_down(
    group: Group, above: ModePlan, candidates: Sequence[Configuration]
) -> ModePlan | None:
    """The plan that gives up most of a group and least of the others; None where none does."""
    axes = [AXIS["max_context"]] if group is Group.CONTEXT else _features(group)
    below = [
        c.plan
        for c in candidates
        if is_plainer(c.plan, above) and any(_is_lower(axis, c.plan, above) for axis in axes)
    ]
    if not below:
        return None

    def order(plan: ModePlan) -> tuple[float, ...]:
        own = [_richness(axis, plan) for axis in axes]
        if group is Group.CONTEXT:  # a context is not given up but shortened, step by step
            own = [-value for value in own]
        others = [
            axis for axis in AXES if not axis.is_size and axis.group is not group
            and _is_lower(axis, plan, above)
        ]  # fmt: skip
        kept = [-_richness(axis, plan) for axis in reversed(AXES) if axis not in axes]
        return (*own, float(len(others)), *kept)

    return min(below, key=order)


def _features(group: Group) -> list[Axis]:
    return [axis for axis in AXES if axis.group is group and not axis.is_size]


def _is_lower(axis: Axis, plan: ModePlan, than: ModePlan) -> bool:
    return _richness(axis, plan) < _richness(axis, than)


def _richness(axis: Axis, plan: ModePlan) -> float:
    return axis.richness(given(axis, plan))
