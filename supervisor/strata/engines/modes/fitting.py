"""What memory would hold where nothing can run for lack of kernels, and the table for that case.

A plan for a backend whose kernels are not written is still worth its sizes: the same choice is made
from the same configurations, as if the kernels were there. Nothing here lets anything run.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from strata_protocol.messages import Configuration, Reason

from strata.engines.modes.axes import AXES, AXIS, requested_text
from strata.engines.modes.choice import Choice, choose
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
