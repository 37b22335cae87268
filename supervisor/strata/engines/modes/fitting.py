"""What memory would hold where nothing can run for lack of kernels, and the table for that case.

A plan for a backend whose kernels are not written is still worth its sizes: the same choice is made
from the same configurations, as if the kernels were there. Nothing here lets anything run.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from strata_protocol.messages import Configuration, ModePlan, Reason

from strata.engines.modes.axes import AXES, AXIS, Axis, given, requested_text
from strata.engines.modes.because import lacking_least
from strata.engines.modes.checklist import MissingKernel, either_kernels, missing_kernels
from strata.engines.modes.choice import Choice, choose
from strata.engines.modes.offered import Offered
from strata.engines.modes.rows import ModeRow, ModeState

NOTHING = "nothing"  # what runs
MISSING = "kernel.missing"
NONE = "kernel.none"
_KERNELS = "kernel."


def without_kernel_reasons(
    configurations: Sequence[Configuration], reasons: Sequence[Reason]
) -> list[Configuration]:
    """The configurations as if every kernel were there."""
    return [
        msgspec.structs.replace(
            c, missing=[i for i in c.missing if not reasons[i].code.startswith(_KERNELS)]
        )
        for c in configurations
    ]


def fitting(choice: Choice) -> Choice:
    """The choice that memory and everything but kernels would leave; its `plan` is None where
    kernels are not all that is in the way."""
    offered = choice.offered
    return choose(
        offered.wanted,
        offered.explicit,
        without_kernel_reasons(offered.configurations, offered.reasons),
        offered.reasons,
        quarantine=offered.quarantine,
        device=offered.device,
    )


def all_refusals(choice: Choice, fits: Choice) -> list[Reason]:
    """Why nothing runs: kernels, and what else memory or the file has against it. Told of the
    plainest configuration where even that does not fit."""
    if fits.plan is not None:
        return list(choice.refusals)
    kernels = [r for r in choice.refusals if r.code.startswith(_KERNELS)]
    others = [r for r in fits.refusals if not r.code.startswith(_KERNELS)]
    return [
        *(r for r in kernels if r.code == NONE),
        *others,
        *(r for r in kernels if r.code != NONE),
    ]


def kernels_of_nothing(choice: Choice, fits: Choice) -> list[MissingKernel]:
    """The list of missing kernels where nothing runs: those of what would fit, which is the table's
    configuration, and those of the one that lacks fewest, told apart."""
    offered = choice.offered
    if fits.configuration is None:
        return missing_kernels([], choice.refusals)
    asked, least = _as_offered(offered, fits.configuration), lacking_least(offered)
    if len(least.missing) >= len(asked.missing):
        least = asked
    lower = [
        axis
        for axis in AXES
        if not axis.is_size and given(axis, asked.plan) != given(axis, least.plan)
    ]
    return either_kernels(
        [offered.reasons[i] for i in asked.missing],
        [offered.reasons[i] for i in least.missing],
        _values(lower, asked.plan),
        _values(lower, least.plan),
    )


def _as_offered(offered: Offered, configuration: Configuration) -> Configuration:
    """With the kernels that it lacks, which `fitting` has taken from it."""
    return next(c for c in offered.configurations if c.plan == configuration.plan)


def _values(axes: Sequence[Axis], plan: ModePlan) -> str:
    return " ".join(f"{axis.name}={axis.shown(given(axis, plan))}" for axis in axes)


def shortened(reasons: Sequence[Reason]) -> list[Reason]:
    """With missing kernels counted in one sentence, where a list beside it has them one by one."""
    count = sum(reason.code == MISSING for reason in reasons)
    others = [reason for reason in reasons if reason.code != MISSING]
    if count and not any(reason.code == NONE for reason in others):
        what = (
            "1 operation of the plan has" if count == 1 else f"{count} operations of the plan have"
        )
        text = f"{what} no kernel: see the list of missing kernels"
        others.append(Reason(code=MISSING, text=text))
    return others


def unsupported_rows(choice: Choice, fits: Choice) -> list[ModeRow]:
    """The table where nothing runs (`choice` has no plan): each mode with what stands against it
    beside kernels, then what stands against all, kernels counted."""
    shared = shortened(all_refusals(choice, fits))
    if fits.plan is None:
        wanted, explicit = choice.offered.wanted, choice.offered.explicit
        return [
            ModeRow(
                name=axis.name,
                state=ModeState.UNSUPPORTED,
                requested=requested_text(axis, wanted),
                runs=NOTHING,
                because=shared,
                is_set=axis.name in explicit,
            )
            for axis in AXES
        ]
    shared = [reason for reason in shared if reason.code.startswith(_KERNELS)]
    return [
        msgspec.structs.replace(
            row, state=ModeState.UNSUPPORTED, runs=NOTHING, because=[*row.because, *shared]
        )
        if row.name in AXIS
        else row  # of the device, which is there or assumed
        for row in fits.rows
    ]
