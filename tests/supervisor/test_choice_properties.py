"""What holds for the choice in every world: random sets of ready and missing configurations,
quarantine, and modes that were set.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from strata.engines.modes import AXES, Choice, ModeRow, ModeState, Policy, choose
from strata.engines.modes.axes import EXACTNESS, Axis, Group
from strata.engines.modes.ladder import is_plainer
from strata.engines.modes.offered import Offered
from strata.engines.modes.quarantined import hides
from strata_protocol.messages import (
    Configuration,
    ModePlan,
    Probe,
    Reason,
    Shortfall,
    WantedModes,
)

from tests.supervisor.worlds import DEVICE, PLAN, Record

REASONS = [Reason(code=f"kernel.missing{i}", text=f"no kernel number {i}") for i in range(4)]

PLANS = st.builds(
    lambda **values: msgspec.structs.replace(PLAN, **values),
    batch=st.sampled_from([1, 2, 4, 8]),
    kv=st.sampled_from(EXACTNESS),
    activations=st.sampled_from(["int8", "f32"]),
    prefill=st.sampled_from([1, 64, 256]),
    max_context=st.sampled_from([1024, 2048, 4096]),
    kv_tokens=st.sampled_from([2048, 8192]),
    threads=st.sampled_from([1, 2]),
    spec=st.sampled_from([0, 2, 4]),
    mtp=st.sampled_from(["off", "model"]),
    batch_mtp=st.booleans(),
    prefix_cache=st.booleans(),
    mmap=st.booleans(),
    mlock=st.booleans(),
    expert_cache=st.sampled_from(["off", "8", "64"]),
    kv_resident=st.sampled_from([0, 1024]),
)
SHORTFALLS = st.builds(
    Shortfall,
    axis=st.sampled_from(["max_context", "threads", "kv_tokens", "batch"]),
    reason=st.integers(0, len(REASONS) - 1),
)
CONFIGURATIONS = st.builds(
    Configuration,
    plan=PLANS,
    missing=st.lists(st.integers(0, len(REASONS) - 1), max_size=2, unique=True),
    shortfalls=st.lists(SHORTFALLS, max_size=2),
)
WANTED = st.builds(
    WantedModes,
    batch=st.sampled_from([1, 4, 8]),
    kv=st.sampled_from(["auto", "f32", "f16", "int8"]),
    activations=st.sampled_from(["auto", "int8", "f32"]),
    max_context=st.sampled_from([0, 2048, 1 << 20]),
    prefill=st.sampled_from([64, 256]),
    threads=st.sampled_from([0, 2, 64]),
    kv_tokens=st.sampled_from([0, 4096]),
    mtp=st.sampled_from(["auto", "off", "drafter.gguf"]),
    spec=st.sampled_from([0, 4]),
    spec_min_p=st.sampled_from([0.0, 0.5]),
    batch_mtp=st.sampled_from(["auto", "on", "off"]),
    prefix_cache=st.booleans(),
    device_memory=st.sampled_from([0, 1 << 30, 1 << 40]),
)
EXPLICIT = st.frozensets(st.sampled_from([f.name for f in msgspec.structs.fields(WantedModes)]))
RECORDS = st.lists(
    st.builds(
        Record,
        mode=st.sampled_from([
            "batch", "batch=4", "kv=f16", "mtp", "spec=4", "batch_mtp", "prefill", "activations",
            "prefix_cache", "max_context=4096", "mlock=on",
        ]),
        text=st.just("it crashed"),
    ),
    max_size=2,
)  # fmt: skip


class Case(msgspec.Struct, frozen=True):
    wanted: WantedModes
    explicit: frozenset[str]
    configurations: list[Configuration]
    records: list[Record]

    def choose(self, policy: Policy = Policy.FALLBACK, *more: Configuration) -> Choice:
        return choose(
            self.wanted,
            self.explicit,
            [*self.configurations, *more],
            REASONS,
            quarantine=self.records,
            policy=policy,
            device=DEVICE,
        )

    @property
    def offered(self) -> Offered:
        return self.choose().offered


CASES = st.builds(
    Case,
    wanted=WANTED,
    explicit=EXPLICIT,
    configurations=st.lists(CONFIGURATIONS, min_size=1, max_size=12),
    records=RECORDS,
)
EACH = settings(max_examples=120, deadline=None)


@EACH
@given(CASES)
def test_a_ready_configuration_or_a_reason_and_always_the_same(case: Case) -> None:
    choice = case.choose()
    assert choice == case.choose()
    if choice.configuration is None:
        assert choice.refusals
        assert all(reason.code and reason.text for reason in choice.refusals)
        return
    assert choice.refusals == ()
    assert choice.configuration in case.configurations
    assert not choice.configuration.missing
    assert not any(hides(record, choice.configuration.plan) for record in case.records)


def is_told(axis: Axis, rows: Mapping[str, ModeRow]) -> bool:
    """That drafts are off is told once, at mtp, where nobody set an axis of theirs."""
    is_follower = axis.group is Group.DRAFTS and not rows[axis.name].is_set
    return bool(rows[axis.name].because or (is_follower and rows["mtp"].because))


@EACH
@given(CASES)
def test_no_axis_is_given_up_without_a_reason(case: Case) -> None:
    choice = case.choose()
    if choice.configuration is None:
        return
    rows = {row.name: row for row in choice.rows}
    assert set(rows) == {f.name for f in msgspec.structs.fields(WantedModes)}
    for row in choice.rows:
        assert (row.state is ModeState.READY) == (not row.because)
        assert row.is_set == (row.name in case.explicit)
    for axis in AXES:
        if choice.offered.is_given_up(axis, choice.configuration):
            assert is_told(axis, rows)


@EACH
@given(CASES)
def test_a_type_that_was_set_is_never_less_exact(case: Case) -> None:
    plan = case.choose().plan
    if plan is None:
        return
    for name in ("kv", "activations"):
        wanted = getattr(case.wanted, name)
        if name in case.explicit and wanted != "auto":
            assert EXACTNESS.index(getattr(plan, name)) <= EXACTNESS.index(wanted)


@EACH
@given(CASES, st.lists(CONFIGURATIONS, max_size=6))
def test_more_that_is_ready_never_makes_it_worse(case: Case, more: list[Configuration]) -> None:
    ready = [msgspec.structs.replace(c, missing=[]) for c in more]
    before, after = case.choose(), case.choose(Policy.FALLBACK, *ready)
    if before.configuration is None:
        return
    assert after.configuration is not None
    rank = after.offered.rank
    assert rank(after.configuration) <= rank(before.configuration)
    given_up = [
        {axis.name for axis in AXES if c.offered.is_given_up(axis, c.configuration)}  # type: ignore[arg-type]
        & case.explicit
        for c in (before, after)
    ]
    groups = [{axis.group for axis in AXES if axis.name in names} for names in given_up]
    assert len(groups[1]) <= len(groups[0])


@EACH
@given(CASES)
def test_strict_accepts_exactly_what_runs_as_set(case: Case) -> None:
    strict, fallback = case.choose(Policy.STRICT), case.choose()
    assert strict.plan == fallback.plan
    assert strict.rows == fallback.rows
    if strict.plan is None:
        assert strict.refusals
        return
    refused = [row for row in strict.rows if row.name in case.explicit and row.because]
    assert (not strict.refusals) == (not refused)
    assert len(strict.refusals) == sum(len(row.because) for row in refused)
    for row in refused:
        assert any(line.startswith(f"{row.name}: ") for line in strict.refusal_lines)
    # It refuses only where no configuration has all that was set.
    axes = [axis for axis in AXES if axis.name in case.explicit]
    device = {"device", "device_memory"}
    if refused and not {row.name for row in refused} <= device:
        assert not any(
            case.offered.is_candidate(c)
            and not any(case.offered.is_given_up(axis, c) for axis in axes)
            for c in case.configurations
        )


@EACH
@given(CASES)
def test_each_rung_is_ready_and_plainer_than_the_one_above(case: Case) -> None:
    choice = case.choose()
    ready = [c.plan for c in case.configurations if case.offered.is_candidate(c)]
    if choice.plan is not None:
        assert choice.ladder[0].plan == choice.plan
    for above, below in itertools.pairwise(choice.ladder):
        assert below.plan in ready
        assert below.name not in ("", "full")
        assert is_plainer(below.plan, above.plan)
        assert below.plan != above.plan
        assert _richness(below.plan) != _richness(above.plan)
    if choice.ladder:  # the last is the plainest that is left below
        bottom = choice.ladder[-1].plan
        features = [_richness(plan) for plan in ready if is_plainer(plan, bottom)]
        assert all(f[:-1] == _richness(bottom)[:-1] for f in features)
        assert min(f[-1] for f in features) == bottom.max_context


def _richness(plan: ModePlan) -> tuple[float, ...]:
    own = [axis.richness(getattr(plan, axis.name)) for axis in AXES if not axis.is_size]
    return (*own, float(plan.max_context))


@EACH
@given(CASES, PLANS, st.lists(st.sampled_from(["batch", "mtp", "max_context", "solo"])))
def test_after_ready_nothing_is_lost_without_a_reason(
    case: Case, runs: ModePlan, failed: list[str]
) -> None:
    probes = [Probe(mode=name, ok=False, ms=1.0) for name in failed]
    choice = case.choose(Policy.STRICT).running(runs, probes)
    if choice.plan is None:
        return
    for axis in AXES:
        if choice.offered.loss(axis, runs) > 0:
            rows = {row.name: row for row in choice.rows}
            row = rows[axis.name]
            assert is_told(axis, rows)
            assert row.runs == axis.shown(getattr(runs, axis.name))
            if row.is_set:
                assert choice.refusals
