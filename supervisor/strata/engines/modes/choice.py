"""Chooses the configuration that runs from those the engine can run, and says why it is not more.

A pure function of what was asked, what the engine reported, quarantine and policy; `offered.py` has
the order, `because.py` the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import msgspec
from strata_protocol.messages import (
    Configuration,
    DeviceFacts,
    ModePlan,
    Probe,
    Reason,
    WantedModes,
)

from strata.engines.modes.axes import AXES, AXIS
from strata.engines.modes.because import build_rows, why_nothing
from strata.engines.modes.ladder import Rung, build_ladder, rung_name
from strata.engines.modes.offered import Offered, Policy
from strata.engines.modes.quarantined import Quarantined
from strata.engines.modes.rows import ModeRow, ModeState, refusal_lines, refusal_reasons

STEPPED_DOWN = "mode.stepped_down"
OUT_OF_MEMORY = "mem.host"


@dataclass(frozen=True, slots=True)
class Choice:
    """`refusals` not empty: do not start. `configuration` is None where nothing can run."""

    offered: Offered
    configuration: Configuration | None
    rows: tuple[ModeRow, ...] = ()
    ladder: tuple[Rung, ...] = ()  # what runs, then plainer and plainer configurations
    refusals: tuple[Reason, ...] = ()
    refusal_lines: tuple[str, ...] = ()  # the refusals for people
    rung: int = 0  # index in the ladder of what runs
    stepped_down: str = ""  # why it is not the first
    bounds: Mapping[str, int] = field(default_factory=dict)  # of what the engine was asked for

    @property
    def plan(self) -> ModePlan | None:
        return self.configuration.plan if self.configuration is not None else None

    def running(self, plan: ModePlan, probes: Sequence[Probe]) -> Choice:
        """The same after READY: `plan` is what really runs. Refuses where the policy is strict
        and the probes have taken out what the operator set."""
        if self.configuration is None:
            return self
        rows = build_rows(self.offered, self.configuration, plan, probes)
        rows = tuple(self._with_step(row) for row in rows)
        judged = _judged(self.offered, self.configuration, rows, self.ladder)
        return replace(judged, rung=self.rung, stepped_down=self.stepped_down, bounds=self.bounds)

    def within(self, bounds: Mapping[str, int]) -> Choice:
        """The same where the engine was asked for no more than this, by axis (0: no bound), as
        memory ran out before; the table says so."""
        if self.configuration is None:
            return self
        bounded = {name: value for name, value in bounds.items() if value}
        return replace(self, bounds=bounded).running(self.configuration.plan, ())

    def on_rung(self, index: int, why: str) -> Choice:
        """The same with a lower rung of the ladder in place of the first; `why` is a sentence."""
        if index == 0 or self.configuration is None:
            return self
        plan = self.ladder[index].plan
        configuration = next(c for c in self.offered.configurations if c.plan == plan)
        lower = replace(self, configuration=configuration, rung=index, stepped_down=why)
        return lower.running(plan, ())

    def _with_step(self, row: ModeRow) -> ModeRow:
        """A row that runs with less because of the rung says so, and nothing else."""
        axis = AXIS.get(row.name)
        if (bound := self.bounds.get(row.name)) is not None:
            text = f"memory ran out with more: the engine is asked for {bound} at most"
            because = [Reason(code=OUT_OF_MEMORY, text=text)]
            row = msgspec.structs.replace(row, state=ModeState.LIMITED, because=because)
        if not self.rung or self.configuration is None or axis is None:
            return row
        top, plan = self.ladder[0].plan, self.configuration.plan
        if self.offered.loss(axis, plan) <= self.offered.loss(axis, top):
            return row
        reason = Reason(code=STEPPED_DOWN, text=self.stepped_down)
        return msgspec.structs.replace(row, because=[reason])


def choose(
    wanted: WantedModes,
    explicit: AbstractSet[str],
    configurations: Sequence[Configuration],
    reasons: Sequence[Reason],
    *,
    quarantine: Sequence[Quarantined] = (),
    policy: Policy = Policy.FALLBACK,
    device: DeviceFacts | None = None,
) -> Choice:
    """The choice; the same for the same arguments.

    `configurations` begins with what was asked, `explicit` names the axes that the operator set.
    """
    offered = Offered(
        wanted, explicit, configurations, reasons, quarantine, policy, device or DeviceFacts()
    )
    candidates = [c for c in configurations if offered.is_candidate(c)]
    if not candidates:
        why = why_nothing(offered)
        lines = tuple(refusal_lines([], why))
        return Choice(offered, None, refusals=tuple(why), refusal_lines=lines)
    chosen = min(candidates, key=offered.rank)
    top = rung_name(chosen.plan, [axis for axis in AXES if offered.is_given_up(axis, chosen)])
    rows = build_rows(offered, chosen, chosen.plan, ())
    return _judged(offered, chosen, rows, build_ladder(top, chosen.plan, candidates))


def _judged(
    offered: Offered,
    configuration: Configuration,
    rows: tuple[ModeRow, ...],
    ladder: tuple[Rung, ...],
) -> Choice:
    refused = [row for row in rows if row.is_set and not row.is_as_asked]
    if offered.policy is Policy.FALLBACK:
        refused = []
    return Choice(
        offered,
        configuration,
        rows,
        ladder,
        tuple(refusal_reasons(refused)),
        tuple(refusal_lines(refused)),
    )
