"""The choice of modes: what is given up first, what every row says, strict, quarantine, ladder."""

from __future__ import annotations

import msgspec
import pytest
from strata.engines.modes import AXES, ModeState, Policy, choose
from strata.engines.modes.because import CONFLICT, EXACTNESS, NOT_OFFERED, UNPROVEN
from strata_protocol.messages import (
    Configuration,
    DeviceFacts,
    ModePlan,
    Probe,
    Reason,
    WantedModes,
)

from tests.supervisor.worlds import DEVICE, PLAN, Record, World, because, missing, row

BATCHES = (8, 4, 2, 1)
TYPES: dict[str, tuple[object, ...]] = {"kv": ("f16", "f32"), "activations": ("int8", "f32")}
DRAFTS: dict[str, tuple[object, ...]] = {
    "mtp": ("model",),
    "spec": (4, 0),
    "batch_mtp": (True, False),
}
ROWS = missing("no kernel for matmul weight=q4_1 act=int8 rows=8 (blk.0.attn_q.weight)")


def test_nothing_missing_runs_as_asked_with_a_row_for_every_mode() -> None:
    choice = World({"batch": BATCHES, **TYPES}).choose()
    assert choice.plan == PLAN
    assert choice.refusals == ()
    assert {r.name for r in choice.rows} == {f.name for f in msgspec.structs.fields(WantedModes)}
    assert {r.state for r in choice.rows} == {ModeState.READY}
    assert not any(r.because for r in choice.rows)
    assert choice.ladder[0].name == "full"


@pytest.mark.parametrize(
    ("lacks", "runs"),
    [
        # one axis is enough: the one that costs least
        (lambda p: p.batch > 1 and p.spec > 0, {"batch": 8, "spec": 0}),
        (lambda p: p.batch > 1 and p.batch_mtp, {"batch": 8, "spec": 4, "batch_mtp": False}),
        (lambda p: p.batch > 2, {"batch": 2, "spec": 4}),
        # a type that was left open gets more exact before sequences are given up
        (lambda p: p.batch > 1 and p.kv == "f16", {"batch": 8, "kv": "f32"}),
        (lambda p: p.batch > 1 and p.prefill > 1, {"batch": 1, "prefill": 256}),
        # fewest axes first, whatever they cost
        (lambda p: p.prefill > 1 and (p.spec > 0 or p.batch > 1 or p.kv == "f16"),
         {"prefill": 1, "batch": 8, "spec": 4, "kv": "f16"}),
    ],
)  # fmt: skip
def test_the_cheapest_is_given_up(lacks: object, runs: dict[str, object]) -> None:
    world = World({"batch": BATCHES, "prefill": (256, 1), **TYPES, **DRAFTS}, [(ROWS, lacks)])  # type: ignore[list-item]
    choice = world.choose()
    assert {name: getattr(choice.plan, name) for name in runs} == runs
    for name, value in runs.items():
        if value != getattr(world.configurations()[0].plan, name):
            # that drafts are off is told once, at mtp, where nobody set an axis of theirs
            assert because(choice, "mtp" if name == "spec" and value == 0 else name)


def test_what_was_set_outweighs_what_was_not() -> None:
    world = World(
        {"batch": BATCHES, "prefill": (256, 1), **TYPES},
        [(ROWS, lambda p: p.batch > 1 and (p.kv == "f16" or p.prefill > 1))],
    )
    assert world.choose().plan == msgspec.structs.replace(PLAN, batch=1)
    choice = world.choose(explicit={"batch"}, policy=Policy.STRICT)
    assert choice.refusals == ()
    assert choice.plan == msgspec.structs.replace(PLAN, kv="f32", prefill=1)
    assert choice.ladder[0].name == "kv-f32+prefill-1"


def test_a_type_that_was_set_never_becomes_less_exact() -> None:
    axes: dict[str, tuple[object, ...]] = {"batch": BATCHES, "kv": ("f32", "f16", "int8")}
    world = World(axes, [(ROWS, lambda p: p.kv == "f32")])
    wanted = WantedModes(kv="f32")
    choice = world.choose(wanted, {"kv"})
    assert choice.plan is None
    codes = [reason.code for reason in choice.refusals]
    assert codes == ["kernel.missing", EXACTNESS]
    assert "kv f16 would run, but kv f32 was set" in choice.refusals[1].text
    # Left open, the least loss of exactness is taken rather than nothing.
    open_choice = world.choose(WantedModes(), frozenset())
    assert open_choice.plan is not None
    assert open_choice.plan.kv == "f16"


def test_a_row_has_all_reasons_of_the_closest_configuration_and_its_shortfalls() -> None:
    other = missing("no kernel for attention kv=f16 sequences=8")
    budget = Reason(code="mem.kv_budget", text="8 GiB are free")
    world = World(
        {"batch": BATCHES},
        [(ROWS, lambda p: p.batch > 1), (other, lambda p: p.batch > 4)],
        [("max_context", budget, lambda p: True)],
        msgspec.structs.replace(PLAN, max_context=2048),
    )
    choice = world.choose(WantedModes(max_context=8192), {"batch"})
    assert row(choice, "batch").state is ModeState.LIMITED
    assert because(choice, "batch") == [(ROWS.code, ROWS.text), (other.code, other.text)]
    context = row(choice, "max_context")
    assert (context.requested, context.runs, context.state) == ("8192", "2048", ModeState.LIMITED)
    assert because(choice, "max_context") == [(budget.code, budget.text)]


def test_what_is_left_open_and_falls_short_is_limited_and_not_set() -> None:
    budget = Reason(code="mem.kv_budget", text="8 GiB are free")
    world = World({"batch": (8,)}, [], [("max_context", budget, lambda p: True)])
    context = row(world.choose(), "max_context")
    assert (context.requested, context.runs) == ("auto", "4096")
    assert (context.state, context.is_set) == (ModeState.LIMITED, False)


def test_a_feature_that_is_off_is_unsupported() -> None:
    world = World({"batch": (8,), **DRAFTS}, [(ROWS, lambda p: p.spec > 0)])
    choice = world.choose()
    assert row(choice, "mtp").state is ModeState.UNSUPPORTED
    assert row(choice, "mtp").requested == "auto"
    assert because(choice, "mtp") == [(ROWS.code, ROWS.text)]
    assert because(choice, "spec") == because(choice, "batch_mtp") == [], "told once"
    choice = world.choose(WantedModes(spec=4), {"spec"})
    assert row(choice, "spec").state is ModeState.UNSUPPORTED
    assert because(choice, "spec") == [(ROWS.code, ROWS.text)]
    assert choice.ladder[0].name == "no-drafts"


def test_what_was_asked_together_is_said_first() -> None:
    def configured(lacks: list[int], **values: object) -> Configuration:
        return Configuration(plan=msgspec.structs.replace(PLAN, **values), missing=lacks)

    configurations = [
        configured([0]),
        configured([], batch=1, kv="f32"),
        configured([], kv="f32", prefill=1, spec=0, max_context=1024),
    ]
    choice = choose(WantedModes(), frozenset(), configurations, [ROWS])
    assert choice.plan == configurations[1].plan
    assert because(choice, "batch") == [(ROWS.code, ROWS.text)]


def test_a_context_that_was_left_open_moves_nothing_else() -> None:
    world = World({"batch": (8, 1), "activations": ("int8", "f32")})
    configurations = [
        msgspec.structs.replace(
            c,
            plan=msgspec.structs.replace(
                c.plan, max_context=4096 if c.plan.activations == "f32" else 1024
            ),
        )
        for c in world.configurations()
    ]
    choice = choose(WantedModes(), frozenset(), configurations, [])
    assert choice.plan == configurations[0].plan
    wanted = WantedModes(max_context=4096)
    choice = choose(wanted, {"max_context"}, configurations, [])
    assert choice.plan is not None
    assert (choice.plan.max_context, choice.plan.activations) == (4096, "f32")
    conflict = (CONFLICT, "activations int8 would run only with max_context 1024")
    assert because(choice, "activations") == [conflict]


def test_a_value_that_the_engine_never_names_is_said_to_be_missing() -> None:
    choice = World({"batch": (8,)}).choose(WantedModes(spec=4), {"spec"})
    spec = row(choice, "spec")
    assert (spec.requested, spec.runs, spec.state) == ("4", "0", ModeState.UNSUPPORTED)
    assert because(choice, "spec") == [(NOT_OFFERED, "no configuration of the engine has spec 4")]


def test_strict_lists_each_mode_that_was_set_with_each_reason() -> None:
    other = missing("no kernel for attention kv=f16 sequences=8")
    rows = missing("no kernel for prefill rows=256")
    world = World(
        {"batch": BATCHES, "prefill": (256, 1), "kv": ("f16", "f32")},
        [
            (ROWS, lambda p: p.batch > 1),
            (other, lambda p: p.batch > 4),
            (rows, lambda p: p.prefill > 1),
            (missing("nobody asked"), lambda p: p.kv == "f16"),
        ],
    )
    choice = world.choose(explicit={"batch", "prefill", "activations"}, policy=Policy.STRICT)
    assert [reason.code for reason in choice.refusals] == ["kernel.missing"] * 3
    assert list(choice.refusal_lines) == [
        "batch: requested 8, available 1 (limited)",
        f"  - {ROWS.text} [kernel.missing]",
        f"  - {other.text} [kernel.missing]",
        "prefill: requested 256, available 1 (limited)",
        f"  - {rows.text} [kernel.missing]",
    ]
    assert world.choose(explicit={"batch", "prefill"}).refusals == ()


def test_quarantine_takes_out_and_its_own_sentence_says_why() -> None:
    world = World({"batch": BATCHES, **DRAFTS})
    records = [Record("batch=4", "the engine was killed by SIGSEGV in a step of 4 sequences")]
    choice = world.choose(quarantine=records)
    assert choice.plan is not None
    assert choice.plan.batch == 2
    assert because(choice, "batch") == [("mode.quarantined", records[0].text)]
    choice = world.choose(quarantine=[Record("mtp", "no draft was accepted")])
    assert choice.plan is not None
    assert (choice.plan.mtp, choice.plan.batch) == ("off", 8)
    assert ("mode.quarantined", "no draft was accepted") in because(choice, "mtp")


def test_the_engines_word_on_quarantine_gives_way_to_the_record() -> None:
    engine = Reason(code="mode.quarantined", text="batch 8 is in quarantine (batch)")
    world = World({"batch": (8, 1)}, [(engine, lambda p: p.batch > 1)])
    record = Record("batch", "it crashed at noon")
    assert because(world.choose(quarantine=[record]), "batch") == [(engine.code, record.text)]
    assert because(world.choose(), "batch") == [(engine.code, engine.text)]


def test_a_switch_that_quarantine_turns_off_has_the_records_sentence() -> None:
    engine = Reason(code="mode.quarantined", text="prefix_cache is in quarantine (prefix_cache)")
    world = World({"prefix_cache": (False,)}, [], [("prefix_cache", engine, lambda p: True)])
    record = Record("prefix_cache", "a page was read after it was freed")
    choice = world.choose(quarantine=[record])
    assert row(choice, "prefix_cache").state is ModeState.UNSUPPORTED
    assert because(choice, "prefix_cache") == [(engine.code, record.text)]


def test_drafts_in_a_batch_of_one_give_nothing_up() -> None:
    world = World({"batch": (8, 1), **DRAFTS}, [(ROWS, lambda p: p.batch > 1)])
    choice = world.choose()
    assert choice.plan is not None
    assert (choice.plan.batch, choice.plan.spec) == (1, 4)
    assert because(choice, "batch") == [(ROWS.code, ROWS.text)]
    assert row(choice, "spec").state is ModeState.READY


def test_all_in_quarantine_is_a_refusal_with_the_sentence() -> None:
    choice = World({"batch": (8, 4)}).choose(quarantine=[Record("batch", "it crashed")])
    assert choice.plan is None
    assert [(r.code, r.text) for r in choice.refusals] == [("mode.quarantined", "it crashed")]
    nothing = choose(WantedModes(), frozenset(), [], [])
    assert [reason.code for reason in nothing.refusals] == [NOT_OFFERED]


def test_the_ladder_gives_up_one_more_at_a_time() -> None:
    world = World({"batch": BATCHES, "prefill": (256, 1), **TYPES, **DRAFTS})
    choice = world.choose()
    assert [rung.name for rung in choice.ladder] == [
        "full", "no-drafts", "batch-1", "activations-f32", "kv-f32", "prefill-1",
    ]  # fmt: skip
    bottom = choice.ladder[-1].plan
    assert (bottom.spec, bottom.batch, bottom.activations, bottom.kv, bottom.prefill) == (
        0, 1, "f32", "f32", 1,
    )  # fmt: skip


def test_the_ladder_steps_over_what_is_not_ready() -> None:
    world = World({"batch": (8, 1), **TYPES}, [(ROWS, lambda p: p.batch == 1 and p.kv == "f16")])
    names = [rung.name for rung in world.choose().ladder]
    assert names == ["full", "batch-1+kv-f32", "activations-f32"]


def test_the_ladder_shortens_the_context_last() -> None:
    world = World({"batch": (8, 1), "max_context": (4096, 2048, 1024)})
    ladder = world.choose().ladder
    assert [rung.name for rung in ladder] == [
        "full", "batch-1", "max-context-2048", "max-context-1024",
    ]  # fmt: skip


def test_ready_with_less_than_planned_says_what_the_probe_said() -> None:
    world = World({"batch": BATCHES, **DRAFTS})
    choice = world.choose(explicit={"batch"})
    assert choice.plan is not None
    runs = msgspec.structs.replace(choice.plan, batch=1, kv_tokens=4096)
    said = Reason(code="probe.differs", text="row 1 differs from the plain path")
    probes = [
        Probe(mode="batch", ok=False, ms=1.0, reasons=[said]),
        Probe(mode="mtp", ok=True, ms=1),
    ]
    after = choice.running(runs, probes)
    assert after.refusals == ()
    assert (row(after, "batch").runs, row(after, "batch").state) == ("1", ModeState.LIMITED)
    assert because(after, "batch") == [(said.code, said.text)]
    assert row(after, "kv_tokens").state is ModeState.READY
    silent = choice.running(runs, [])
    assert [code for code, _ in because(silent, "batch")] == [UNPROVEN]
    strict = world.choose(explicit={"batch"}, policy=Policy.STRICT).running(runs, probes)
    assert list(strict.refusal_lines) == [
        "batch: requested 8, available 1 (limited)",
        "  - row 1 differs from the plain path [probe.differs]",
    ]


def test_device_rows_have_the_devices_own_name() -> None:
    choice = World({"batch": (8,)}).choose(WantedModes(device_memory=16 << 30), {"device_memory"})
    assert row(choice, "device").runs == DEVICE.name
    memory = row(choice, "device_memory")
    assert (memory.requested, memory.runs) == ("16.0 GiB", "8.0 GiB")
    assert memory.state is ModeState.LIMITED
    assert "Some Processor 9 has 8.0 GiB" in memory.because[0].text
    plain = choose(WantedModes(), frozenset(), World({"batch": (8,)}).configurations(), [],
                   device=DeviceFacts())  # fmt: skip
    assert row(plain, "device_memory").state is ModeState.READY


@pytest.mark.parametrize(
    ("name", "asked", "given", "is_less"),
    [
        ("batch", 8, 4, True), ("batch", 4, 8, False),
        ("kv", "f16", "f32", True), ("kv", "f32", "q4_0", True), ("kv", "int8", "int8", False),
        ("mtp", "off", "off", False), ("mtp", "a.gguf", "off", True),
        ("mtp", "a.gguf", "model", True),
        ("batch_mtp", False, False, False), ("batch_mtp", True, False, True),
        ("mmap", False, True, True), ("mlock", True, False, True), ("mlock", False, False, False),
        ("expert_cache", "32", "16", True), ("expert_cache", "off", "16", True),
        ("kv_resident", 0, 4096, True), ("kv_resident", 4096, 0, True),
        ("spec_min_p", 0.5, 0.0, True),
    ],
)  # fmt: skip
def test_what_is_less_on_each_axis(name: str, asked: object, given: object, is_less: bool) -> None:
    axis = next(axis for axis in AXES if axis.name == name)
    assert (axis.loss(asked, given) > 0) is is_less  # type: ignore[arg-type]


def test_every_axis_of_a_plan_is_compared() -> None:
    assert {axis.name for axis in AXES} == {f.name for f in msgspec.structs.fields(ModePlan)}
