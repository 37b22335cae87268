"""The report of `plan`, as `plan --json` prints it, and how it follows from what the engine said
and what was chosen.
"""

from __future__ import annotations

import msgspec
from strata_protocol.messages import (
    Caps,
    DeviceFacts,
    Hello,
    HostFacts,
    MemoryPart,
    ModelFacts,
    ModePlan,
    Reason,
    Refuse,
    ServingMode,
)

from strata.engines.largest import Largest
from strata.engines.modes import (
    Choice,
    MissingKernel,
    ModeRow,
    Rung,
    all_refusals,
    kernels_of_nothing,
    missing_kernels,
    unsupported_rows,
    usable_bytes,
)
from strata.engines.quarantine import QuarantineRow


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """What the device's memory would hold, had the backend the kernels that are missing."""

    plan: ModePlan
    modes: list[ModeRow]  # `runs`: what would fit; `because`: why it is not what was asked


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `plan` prints, and `plan --json` as it is."""

    model: ModelFacts
    host: HostFacts
    device: DeviceFacts  # memory_available_bytes 0: not known, limits nothing
    build: str
    modes: list[ModeRow]  # where nothing can run, all are unsupported; empty: see `refusals`
    plan: ModePlan | None  # what would run
    serving: list[ServingMode]  # of it: what requests may ask for, the preferred way first
    fits: Fits | None  # where nothing can run for lack of kernels alone
    ladder: list[Rung]  # what would run, then plainer and plainer configurations
    memory: list[MemoryPart]  # of `plan`, of `fits`, or of what was asked
    memory_total_bytes: int
    memory_available_bytes: int  # and may be used
    missing: list[MissingKernel]
    kv_types: list[str]  # that the backend's kernels serve for this model
    largest: Largest | None  # with `plan`; with `fits` by memory alone
    notes: list[Reason]  # what of the command had no effect
    refusals: list[Reason]  # why nothing runs, or why --strict refuses
    quarantine: list[QuarantineRow]  # of the run directory, that keep modes from being offered
    quarantine_problem: str  # why it could not be read; empty where it could


def make_report(
    hello: Hello, caps: Caps, choice: Choice, fits: Choice, largest: Largest | None
) -> PlanReport:
    """`fits` is `choice` where something can run, else `fitting(choice)`."""
    # Where nothing can run, what would fit or was asked for still has a size.
    memory = (fits.configuration or caps.configurations[0]).memory
    device = caps.device
    if not device.name:
        device = msgspec.structs.replace(device, name=hello.device)
    is_running = choice.plan is not None
    refusals = list(choice.refusals) if is_running else all_refusals(choice, fits)
    return PlanReport(
        model=caps.model,
        host=caps.host,
        device=device,
        build=hello.build,
        modes=list(choice.rows) if is_running else unsupported_rows(choice, fits),
        plan=choice.plan,
        serving=[caps.serving[i] for i in choice.configuration.serving]
        if choice.configuration
        else [],
        fits=None
        if is_running or fits.plan is None
        else Fits(plan=fits.plan, modes=list(fits.rows)),
        ladder=list(choice.ladder),
        memory=memory,
        memory_total_bytes=sum(part.bytes for part in memory),
        memory_available_bytes=usable_bytes(choice.offered.wanted, device),
        missing=missing_kernels(choice.rows) if is_running else kernels_of_nothing(choice, fits),
        kv_types=caps.kv_types,
        largest=largest,
        notes=caps.notes,
        refusals=refusals,
        quarantine=[],
        quarantine_problem="",
    )


def refused_report(hello: Hello, refuse: Refuse) -> PlanReport:
    """The engine says itself that nothing can run, and nothing else."""
    return PlanReport(
        model=ModelFacts(),
        host=HostFacts(),
        device=DeviceFacts(name=hello.device, backend=hello.backend),
        build=hello.build,
        modes=[],
        plan=None,
        serving=[],
        fits=None,
        ladder=[],
        memory=[],
        memory_total_bytes=0,
        memory_available_bytes=0,
        missing=missing_kernels([], refuse.reasons),
        kv_types=[],
        largest=None,
        notes=[],
        refusals=refuse.reasons,
        quarantine=[],
        quarantine_problem="",
    )
