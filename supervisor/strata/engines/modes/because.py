"""Why an axis runs with less than was asked: the rows of the table, and the reasons where nothing
can run. Reasons are the engine's and quarantine's own; ours only say how configurations relate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from strata_protocol.messages import Configuration, ModePlan, Probe, Reason

from strata.engines.modes.axes import AXES, AXIS, Axis, Group, Value, given, loss, requested_text
from strata.engines.modes.device_rows import build_device_rows
from strata.engines.modes.offered import Offered
from strata.engines.modes.quarantined import QUARANTINED, Quarantined, hides_value, hiding
from strata.engines.modes.rows import ModeRow, ModeState

NOT_OFFERED = "mode.not_offered"
CONFLICT = "mode.conflict"
EXACTNESS = "mode.exactness"
UNPROVEN = "probe.unproven"


def build_rows(
    offered: Offered, chosen: Configuration, running: ModePlan, probes: Sequence[Probe]
) -> tuple[ModeRow, ...]:
    """One row for every axis. `running` is `chosen`'s plan before READY, and what runs after."""
    failed = [probe for probe in probes if not probe.ok]
    rows = [_row(offered, axis, chosen, running, failed) for axis in AXES]
    return (*rows, *build_device_rows(offered, chosen))


def _row(
    offered: Offered,
    axis: Axis,
    chosen: Configuration,
    running: ModePlan,
    failed: Sequence[Probe],
) -> ModeRow:
    value = given(axis, running)
    because: list[Reason] = []
    is_less = False
    if not _follows_from_mtp(offered, axis, running):  # else the row of mtp says it all
        because = _because(offered, axis, chosen, running, failed)
        is_less = bool(because) or offered.loss(axis, running) > 0
    return ModeRow(
        name=axis.name,
        state=_state(axis, value) if is_less else ModeState.READY,
        requested=requested_text(axis, offered.wanted),
        runs=axis.shown(value),
        because=_distinct(because),
        is_set=axis.name in offered.explicit,
    )


def _because(
    offered: Offered,
    axis: Axis,
    chosen: Configuration,
    running: ModePlan,
    failed: Sequence[Probe],
) -> list[Reason]:
    because: list[Reason] = []
    if offered.loss(axis, chosen.plan) > 0:
        because += _reasons(offered, axis, chosen)
    else:
        because += offered.shortfalls(axis.name, chosen)
        because += _taken_from_auto(offered, axis, chosen)
    is_lower = offered.loss(axis, running) > offered.loss(axis, chosen.plan)
    has_failed = any(probe.mode == axis.name for probe in failed)
    if is_lower or (has_failed and given(axis, running) != given(axis, chosen.plan)):
        because += _probe_reasons(axis, chosen.plan, running, failed)
    return because


def _follows_from_mtp(offered: Offered, axis: Axis, running: ModePlan) -> bool:
    """Whether an axis of drafts that nobody set is off because drafts as a whole are."""
    return (
        axis.group is Group.DRAFTS
        and axis.name != "mtp"
        and axis.name not in offered.explicit
        and running.mtp == "off"
        and offered.loss(AXIS["mtp"], running) > 0
    )


def _taken_from_auto(offered: Offered, axis: Axis, chosen: Configuration) -> list[Reason]:
    """Why a value that was left to the engine is less than it would be without quarantine."""
    would_be = given(axis, offered.configurations[0].plan)
    if offered.target(axis) is not None or given(axis, chosen.plan) == would_be:
        return []
    hiding_it = (r for r in offered.quarantine if hides_value(r, axis, would_be))
    return [_quarantine_reason(record) for record in hiding_it]


def _state(axis: Axis, value: Value) -> ModeState:
    is_off = axis.is_feature and axis.richness(value) == 0
    return ModeState.UNSUPPORTED if is_off else ModeState.LIMITED


def _reasons(offered: Offered, axis: Axis, chosen: Configuration) -> list[Reason]:
    """Everything in the way of the asked value, beside the values that were chosen."""
    target = offered.target(axis)
    found = offered.shortfalls(axis.name, chosen)
    if target is not None:
        found += [
            _quarantine_reason(record)
            for record in offered.quarantine
            if hides_value(record, axis, target)
        ]
    nearest = _nearest(offered, axis, chosen)
    found += offered.shortfalls(axis.name, nearest)
    found += _missing(offered, nearest)
    has_more = loss(axis, target, given(axis, nearest.plan)) < loss(
        axis, target, given(axis, chosen.plan)
    )
    if has_more and offered.is_runnable(nearest):
        found.append(_conflict(offered, axis, nearest, chosen))
    if any(reason.code == QUARANTINED and _is_own(offered, reason) for reason in found):
        found = [r for r in found if r.code != QUARANTINED or _is_own(offered, r)]
    return found or [_not_offered(offered, axis)]


def _is_own(offered: Offered, reason: Reason) -> bool:
    """Whether it is a record's sentence, which says more than the engine's: that knows the name
    of the mode alone."""
    return any(record.text == reason.text for record in offered.quarantine)


def _not_offered(offered: Offered, axis: Axis) -> Reason:
    """The engine has not named the asked value at all."""
    target = offered.target(axis)
    what = f"more {axis.name}" if target is None else f"{axis.name} {axis.shown(target)}"
    return Reason(code=NOT_OFFERED, text=f"no configuration of the engine has {what}")


def _nearest(offered: Offered, axis: Axis, chosen: Configuration) -> Configuration:
    """Of the configurations that come closest to the asked value, the one most like the chosen."""
    return min(
        offered.configurations,
        key=lambda c: (offered.loss(axis, c.plan), _distance(c.plan, chosen.plan, axis)),
    )


def _distance(plan: ModePlan, other: ModePlan, axis: Axis) -> int:
    """Axes on which two plans differ, those that go with `axis` and sizes aside."""
    return sum(
        given(a, plan) != given(a, other)
        for a in AXES
        if not a.is_size
        and a is not axis
        and (a.group is not axis.group or axis.group is not Group.DRAFTS)
    )


def _missing(offered: Offered, configuration: Configuration) -> list[Reason]:
    """What the engine lacks for a configuration and why it is in quarantine."""
    records = hiding(offered.quarantine, configuration.plan)
    own = [_quarantine_reason(record) for record in records]
    engine = [offered.reasons[index] for index in configuration.missing]
    return [*(r for r in engine if not (own and r.code == QUARANTINED)), *own]


def _quarantine_reason(record: Quarantined) -> Reason:
    return Reason(code=QUARANTINED, text=record.text)


def _conflict(
    offered: Offered, axis: Axis, nearest: Configuration, chosen: Configuration
) -> Reason:
    """The asked value would run, at the price of others."""
    price = [
        f"{a.name} {a.shown(given(a, nearest.plan))}"
        for a in AXES
        if offered.loss(a, nearest.plan) > offered.loss(a, chosen.plan)
    ]
    text = f"{axis.name} {axis.shown(given(axis, nearest.plan))} would run only with"
    return Reason(code=CONFLICT, text=f"{text} {', '.join(price) or 'other modes given up'}")


def _probe_reasons(
    axis: Axis, planned: ModePlan, running: ModePlan, failed: Sequence[Probe]
) -> list[Reason]:
    """Why the probes took something out; all that failed where none is about this axis."""
    own = [p for p in failed if _is_about(p, axis)] or list(failed)
    found = [reason for probe in own for reason in probe.reasons]
    found += [
        Reason(code=UNPROVEN, text=f"the probe of {probe.mode} failed")
        for probe in own
        if not probe.reasons
    ]
    if not found:
        was, runs = axis.shown(given(axis, planned)), axis.shown(given(axis, running))
        text = f"the engine was to run {axis.name} {was} and runs {runs} without a word"
        found.append(Reason(code=UNPROVEN, text=text))
    return found


def _is_about(probe: Probe, axis: Axis) -> bool:
    name = probe.mode.partition("=")[0]
    return name == axis.name or any(a.name == name and a.group is axis.group for a in AXES)


def why_nothing(offered: Offered) -> list[Reason]:
    """Why no configuration can run: of the one that lacks least, all that it lacks."""
    if not offered.configurations:
        return [Reason(code=NOT_OFFERED, text="the engine reported no configuration")]
    inexact = [
        c
        for c in offered.configurations
        if offered.is_runnable(c) and not offered.keeps_exactness(c.plan)
    ]
    kept = [c for c in offered.configurations if offered.keeps_exactness(c.plan)]
    if kept and all(_lacks_memory_only(offered, c) for c in kept):
        found = _memory_needs(offered, kept)
        if inexact:
            found.append(_exactness_reason(offered, min(inexact, key=offered.rank)))
        return _distinct(found)
    closest = lacking_least(offered)
    found = _missing(offered, closest)
    if inexact:
        found.append(_exactness_reason(offered, min(inexact, key=offered.rank)))
    elif not kept:
        axes = [a for a in AXES if offered.is_less_exact(a, closest.plan)]
        found += [_not_offered(offered, axis) for axis in axes if axis.name in offered.explicit]
    # What else is in the way of the very thing that was asked. Its kernels are left out: they are
    # those above with other sizes.
    asked = _missing(offered, offered.configurations[0])
    found += [reason for reason in asked if reason.code != "kernel.missing"]
    found = [r for r in found if not r.code.startswith("mem.") or r in _missing(offered, closest)]
    return _distinct(found)


def lacking_least(offered: Offered) -> Configuration:
    """The configuration with the least in its way, of those that keep the types that were set."""
    kept = [c for c in offered.configurations if offered.keeps_exactness(c.plan)]
    return min(
        kept or offered.configurations,
        key=lambda c: (len(_missing(offered, c)), offered.rank(c)),
    )


def _memory_needs(offered: Offered, short: Sequence[Configuration]) -> list[Reason]:
    """Where memory alone is short: what was asked for needs, and how much is needed at the least,
    which is not always the plainest: f32 caches are plainer than f16 and larger."""
    asked = offered.configurations[0]
    least = min(short, key=lambda c: (sum(part.bytes for part in c.memory), offered.rank(c)))
    found = _missing(offered, asked) if asked in short else []
    if least is not asked:
        less = [a for a in AXES if given(a, least.plan) != given(a, asked.plan)]
        what = ", ".join(f"{a.name} {a.shown(given(a, least.plan))}" for a in less)
        found += [
            msgspec.structs.replace(reason, text=f"the least, with {what}: {reason.text}")
            for reason in _missing(offered, least)
        ]
    return found


def _lacks_memory_only(offered: Offered, configuration: Configuration) -> bool:
    found = _missing(offered, configuration)
    return bool(found) and all(reason.code.startswith("mem.") for reason in found)


def _exactness_reason(offered: Offered, configuration: Configuration) -> Reason:
    lower = [
        axis
        for axis in AXES
        if axis.name in offered.explicit and offered.is_less_exact(axis, configuration.plan)
    ]
    runs = ", ".join(f"{a.name} {a.shown(given(a, configuration.plan))}" for a in lower)
    was_set = ", ".join(f"{a.name} {requested_text(a, offered.wanted)}" for a in lower)
    text = f"{runs} would run, but {was_set} was set and is never replaced by a less exact type"
    return Reason(code=EXACTNESS, text=text)


def _distinct(reasons: Iterable[Reason]) -> list[Reason]:
    seen: dict[tuple[str, str], Reason] = {}
    for reason in reasons:
        seen.setdefault((reason.code, reason.text), reason)
    return list(seen.values())
