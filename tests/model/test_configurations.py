"""The list of configurations: what is in it, in which order, and that each is planned as itself."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest
import strata_engine_testing as engine

from tools.synth_model import Shape, write_drafter, write_model

SHAPE = Shape(width=256, heads=8, kv_heads=2, head_dim=32, ff=512, context=2048)
GIB = 1 << 30
# Axes of the list, in the order in which they are given up.
AXES = ("kv", "activations", "drafts", "batch", "kv_resident", "max_context", "prefill")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return write_model(folder / "plain.gguf", SHAPE, kind="q4_1")


@pytest.fixture(scope="module")
def drafting(folder: Path) -> Path:
    """A model with a draft layer of its own."""
    shape = dataclasses.replace(SHAPE, draft_layers=1)
    return write_model(folder / "drafting.gguf", shape, kind="q4_1")


def negotiate(path: Path, **options: object) -> dict:
    names = ("without_kernels", "quarantine", "memory_available", "memory_lockable", "cores")
    outer = {"memory_available": 8 * GIB, "cores": 4}
    outer |= {name: options.pop(name) for name in names if name in options}
    return engine.negotiate(str(path), engine.WantedModes(**options), **outer)


def plans(result: dict) -> list[dict]:
    return [configuration["plan"] for configuration in result["configurations"]]


def drafts_of(plan: dict) -> tuple[str, int, bool]:
    return plan["mtp"], plan["spec"], plan["batch_mtp"]


def codes(reasons: Iterable[dict]) -> list[str]:
    return [reason["code"] for reason in reasons]


def find(result: dict, **values: object) -> dict:
    """The one configuration with these values, which differs from the first in nothing else."""
    first = result["configurations"][0]["plan"]
    fixed = {k: v for k, v in (first | values).items() if k not in {"kv_tokens", "max_context"}}
    (found,) = (
        c
        for c in result["configurations"]
        if all(c["plan"][name] == value for name, value in fixed.items())
    )
    return found


def test_all_combinations_are_there_once(drafting: Path) -> None:
    result = negotiate(drafting, batch=4, spec=2, kv="int8", batch_mtp="on")
    seen = [(p["batch"], drafts_of(p), p["kv"], p["activations"]) for p in plans(result)]
    drafts = {
        batch: [
            ("model", spec, shared)
            for spec in (2, 1)
            for shared in ((True, False) if batch > 1 else (False,))
        ]
        + [("off", 0, False)]
        for batch in (4, 2, 1)
    }
    expected = {
        (batch, draft, kv, activations)
        for batch in (4, 2, 1)
        for draft in drafts[batch]
        for kv in ("int8", "f16", "f32")
        for activations in ("int8", "f32")
    }
    assert set(seen) == expected
    assert len(seen) == len(expected)
    assert {plan["prefill"] for plan in plans(result)} == {256}  # it never stands in the way


def test_what_was_asked_is_first_and_fewer_axes_come_before_more(drafting: Path) -> None:
    result = negotiate(drafting, batch=4, kv="q4_0", kv_resident=64)
    first = plans(result)[0]
    assert (first["batch"], drafts_of(first), first["kv"]) == (4, ("model", 3, True), "q4_0")
    assert (first["activations"], first["kv_resident"]) == ("int8", 64)

    def given_up(plan: dict) -> int:
        is_off = plan["mtp"] == "off"
        return (
            sum(plan[axis] != first[axis] for axis in ("batch", "kv", "activations", "kv_resident"))
            + is_off
            + (not is_off and plan["spec"] != first["spec"])
            # One sequence has none to share a step with: nothing is given up by that.
            + (not is_off and plan["batch"] > 1 and not plan["batch_mtp"])
        )

    order = [given_up(plan) for plan in plans(result)]
    assert order == sorted(order)
    assert order.count(0) == 1
    assert set(order) >= {0, 1, 2, 3, 4, 5}


def test_batch_is_halved_down_to_one(path: Path) -> None:
    result = negotiate(path, batch=100, kv="f32", activations="f32")
    assert [plan["batch"] for plan in plans(result)] == [100, 50, 25, 12, 6, 3, 1]


def test_plainest_is_named(path: Path) -> None:
    result = negotiate(path)
    plan = plans(result)[result["plainest"]]
    assert (plan["batch"], plan["kv"], plan["activations"]) == (1, "f32", "f32")
    assert plan["prefill"] == 256


def test_int8_and_f32_are_one_where_nothing_is_quantised(folder: Path) -> None:
    path = write_model(folder / "f16.gguf", SHAPE, kind="f16")
    result = negotiate(path, activations="int8")
    assert {plan["activations"] for plan in plans(result)} == {"f32"}
    keys = [(plan["batch"], plan["kv"]) for plan in plans(result)]
    assert sorted(keys) == sorted(itertools.product((8, 4, 2, 1), ("f16", "f32")))
    (reason,) = result["configurations"][0]["shortfalls"]["activations"]
    assert reason["code"] == "model.no_quantized_weights"


def test_prefill_falls_back_to_the_largest_halving_that_runs(path: Path) -> None:
    result = negotiate(path, without_kernels=["*:rows>100"], kv="f32", activations="f32")
    found: dict[int, list[int]] = {}
    for configuration in result["configurations"]:
        plan = configuration["plan"]
        found.setdefault(plan["batch"], []).append(plan["prefill"])
        assert (configuration["missing"] == []) == (plan["prefill"] == 64)
    assert found == {8: [256, 64], 4: [256, 64], 2: [256, 64], 1: [256, 64]}


def test_prefill_falls_back_where_kernels_are_missing_for_few_rows_as_well(path: Path) -> None:
    """Neither the wanted nor the smallest prefill runs; the ones between are found all the same."""
    result = negotiate(
        path, batch=1, without_kernels=["*:rows>100", "*:rows<20"], kv="f32", activations="f32"
    )
    runs = [c["plan"]["prefill"] for c in result["configurations"] if not c["missing"]]
    assert runs == [64]


def test_no_prefill_is_tried_where_none_can_help(path: Path) -> None:
    result = negotiate(path, without_kernels=["*:sequences>1"])
    shared = [c for c in result["configurations"] if c["plan"]["batch"] > 1]
    assert {c["plan"]["prefill"] for c in shared} == {256}
    assert all(set(codes(c["missing"])) == {"kernel.missing"} for c in shared)


@pytest.mark.parametrize("mask", ["*:sequences>1", "attention*:kv=f16", "*:rows>100", "swiglu*"])
def test_what_can_run_has_a_kernel_for_everything_and_what_cannot_has_not(
    drafting: Path, mask: str
) -> None:
    result = negotiate(drafting, batch=4, without_kernels=[mask])
    for configuration in result["configurations"]:
        plan = configuration["plan"]
        resolved = engine.plan_mode(str(drafting), engine.ModePlan(**plan), without_kernels=[mask])
        kernels = [r for r in configuration["missing"] if r["code"] == "kernel.missing"]
        assert [(r["code"], r["text"]) for r in kernels] == resolved["missing"]
        if not configuration["missing"]:
            assert configuration["memory"] == resolved["memory"]


def test_drafts_are_planned_with_their_own_rows(drafting: Path) -> None:
    """Batch with drafts has more rows than either alone: what it lacks, they need not lack."""
    result = negotiate(drafting, without_kernels=["attention*:rows>260"])
    first = result["configurations"][0]
    assert first["plan"]["batch_mtp"]
    assert set(codes(first["missing"])) == {"kernel.missing"}
    assert "drafter.kv" in first["memory"]
    ready = [c["plan"] for c in result["configurations"] if not c["missing"]]
    assert any(plan["spec"] > 0 and not plan["batch_mtp"] for plan in ready)


def test_a_drafter_file_is_what_the_plans_name(path: Path, tmp_path: Path) -> None:
    drafter = str(write_drafter(tmp_path / "d.gguf", SHAPE))
    result = negotiate(path, mtp=drafter, spec=1, batch=2)
    assert {drafts_of(plan) for plan in plans(result)} == {
        (drafter, 1, True),
        (drafter, 1, False),
        ("off", 0, False),
    }
    assert codes(result["configurations"][0]["missing"]) == []


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: None, "gguf.open"),
        (lambda path: path.write_bytes(b"no model at all"), "gguf.magic"),
        (
            lambda path: write_drafter(path, dataclasses.replace(SHAPE, width=512)),
            "drafter.shape",
        ),
    ],
)
def test_a_drafter_that_does_not_open_is_a_reason_not_an_end(
    path: Path, tmp_path: Path, make: object, code: str
) -> None:
    drafter = tmp_path / "d.gguf"
    make(drafter)  # type: ignore[operator]
    result = negotiate(path, mtp=str(drafter))
    for configuration in result["configurations"]:
        has_drafts = configuration["plan"]["spec"] > 0
        assert codes(configuration["missing"]) == ([code] if has_drafts else [])
    assert result["plan"]["mtp"] == "off"


def test_own_draft_layers_that_are_not_there(path: Path) -> None:
    result = negotiate(path, mtp="model")
    assert codes(result["configurations"][0]["missing"])[0] == "drafter.none"
    assert result["plan"]["mtp"] == "off"


def test_refusal_names_the_plainest_first_and_nothing_twice(path: Path) -> None:
    result = negotiate(path, without_kernels=["swiglu*", "matmul*:act=i8block"])
    assert result["plan"] is None
    texts = [reason["text"] for reason in result["refused"]]
    assert len(texts) == len(set(texts))
    plainest = result["configurations"][result["plainest"]]
    assert plainest["plan"]["prefill"] == 1
    assert texts[: len(plainest["missing"])] == [r["text"] for r in plainest["missing"]]
    assert sum("no kernel for swiglu" in text for text in texts) == 1  # rows aside, it is one
    assert any("matmul" in text and "act=i8block" in text for text in texts[1:])


def test_memory_is_of_each_configuration(path: Path) -> None:
    result = negotiate(path)
    wide, narrow = find(result)["memory"], find(result, batch=1)["memory"]
    assert wide["kv"] == 8 * narrow["kv"]
    assert wide["activations"] > narrow["activations"]
    assert find(result, kv="f32")["memory"]["kv"] == 2 * wide["kv"]


def test_missing_kernels_and_missing_memory_are_both_listed(path: Path) -> None:
    result = negotiate(path, without_kernels=["attention*:kv=f16"], memory_available=1 << 16)
    first = result["configurations"][0]
    expected = {"kernel.kv_type", "kernel.missing", "mem.insufficient"}
    assert set(codes(first["missing"])) == expected
    assert first["memory"]["weights.mapped"] > 0  # as in the file: no kernel says otherwise
