"""Chooses the configuration to run from what the engine can do, and says why it differs.

The engine's own plan is the best it can run; it is taken as it is. With `--strict` a mode that
the operator set and that cannot run as set is a refusal, with the whole list.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec
from strata_protocol.messages import (
    Caps,
    ModePlan,
    ModeReport,
    ModeState,
    Probe,
    Ready,
    Reason,
    WantedModes,
)

from strata.config import Config

MODE_KEYS = frozenset(f.name for f in msgspec.structs.fields(WantedModes))


@dataclass(frozen=True, slots=True)
class ModeChoice:
    plan: ModePlan
    refusals: tuple[Reason, ...]  # not empty: do not start


class ModeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table that every place shows: requested, runs, because."""

    name: str
    state: ModeState
    requested: str
    runs: str
    because: list[Reason] = []


def wanted_modes(config: Config) -> WantedModes:
    """The modes of the configuration, in the protocol's terms: keys of the same name."""
    return msgspec.convert(config, WantedModes, from_attributes=True)


def choose(caps: Caps, explicit: AbstractSet[str], *, is_strict: bool) -> ModeChoice:
    refusals = tuple(
        Reason(code="strict." + report.name, text=refusal_text(report))
        for report in caps.modes
        if is_strict and report.state is not ModeState.READY and report.name in explicit
    )
    return ModeChoice(caps.plan, refusals)


def refusal_text(report: ModeReport) -> str:
    """ "batch: requested 64, available 8 (limited): KV for ... needs 61 GiB, 38 free"."""
    because = "; ".join(r.text for r in report.reasons) or "the engine gave no reason"
    return (
        f"{report.name}: requested {report.requested}, available {report.available}"
        f" ({report.state.value}): {because}"
    )


def mode_rows(caps: Caps, ready: Ready | None, probes: Sequence[Probe]) -> list[ModeRow]:
    """The table of modes; before READY it shows what is going to run."""
    plan = ready.plan if ready is not None else caps.plan
    failed = {p.mode: p for p in probes if not p.ok}
    rows = []
    for report in caps.modes:
        runs, because, state = report.available, list(report.reasons), report.state
        planned, actual = getattr(caps.plan, report.name, None), getattr(plan, report.name, None)
        if planned != actual:
            runs = _shown(actual)
            state = ModeState.LIMITED
        probe = failed.get(report.name)
        if probe is not None:
            because += probe.reasons
            state = ModeState.LIMITED
        rows.append(
            ModeRow(
                name=report.name,
                state=state,
                requested=report.requested,
                runs=runs,
                because=because,
            )
        )
    return rows


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
