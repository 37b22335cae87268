"""Every entry of the kernel table against its f64 reference, at the shapes the entry names.

The parameters come from the table itself, for each instruction set that this processor can run, so
a kernel without a test cannot exist.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.ops.cases import CASES, make_case
from tests.ops.recurrent_cases import one_row_runs
from tests.ops.reference import Arrays, Case, Request

engine = pytest.importorskip("strata_engine_testing", reason="the engine's module is not built")

KERNELS = engine.Kernels()
ENTRIES: list[dict[str, Any]] = KERNELS.entries()
SENTINEL = 0x5A
GUARD_BYTES = 256


def label(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    if "id" in value:
        return str(value["id"])
    parts = [f"{k}{v}" for k, v in value.items() if isinstance(v, int) and v]
    return "-".join([*parts, value["kv"], *value["features"]])


LAUNCHES = [(entry, request) for entry in ENTRIES for request in entry["requests"]]
launches = pytest.mark.parametrize(("entry", "request_"), LAUNCHES, ids=label)


def guarded(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """A copy of an array between two runs of sentinel bytes, and all of those bytes."""
    raw = np.full(array.nbytes + 2 * GUARD_BYTES, SENTINEL, np.uint8)
    inner = raw[GUARD_BYTES : GUARD_BYTES + array.nbytes].view(array.dtype).reshape(array.shape)
    inner[...] = array
    return inner, raw


def launch(entry: dict[str, Any], case: Case, threads: int = 1, chunk: int = 1) -> Arrays:
    """Runs a case on copies of its arrays; checks the sentinels; returns what it wrote."""
    arrays = {}
    guards = []
    for name, array in case.arrays.items():
        arrays[name], raw = guarded(array)
        guards.append((name, raw))
    op = KERNELS.op(entry["id"], case.request, case.weight, threads)
    rows = case.request["rows"]
    op.run(arrays, rows=rows, eps=case.eps, scale=case.scale, chunk=chunk)
    for name, raw in guards:
        ends = np.concatenate([raw[:GUARD_BYTES], raw[-GUARD_BYTES:]])
        assert (ends == SENTINEL).all(), f"{entry['id']} wrote outside {name}"
    for name, array in case.arrays.items():
        if name not in case.outputs:
            np.testing.assert_array_equal(
                arrays[name].view(np.uint8), array.view(np.uint8), err_msg=f"input {name} changed"
            )
    return {name: arrays[name] for name in case.outputs}


def viewed(case: Case, written: Arrays) -> Arrays:
    return written if case.view is None else case.view(written)


def row_of(case: Case, row: int) -> Case:
    """The same launch with one of its rows alone."""
    if case.alone is not None:
        return case.alone(row)
    arrays = {
        name: np.ascontiguousarray(array[row : row + 1]) if name in case.row_arrays else array
        for name, array in case.arrays.items()
    }
    return replace(case, request=case.request | {"rows": 1}, arrays=arrays)


@pytest.mark.parametrize("entry", ENTRIES, ids=label)
def test_entry_names_its_tests(entry: dict[str, Any]) -> None:
    assert entry["requests"], f"{entry['id']} names no shapes to test"
    assert entry["kind"] in CASES, f"{entry['id']} has no reference"
    assert entry["is_row_invariant"], "kernels of this backend promise row invariance"
    assert entry["id"].endswith("." + entry["isa"])


def test_ids_are_unique() -> None:
    ids = [entry["id"] for entry in ENTRIES]
    assert len(ids) == len(set(ids))


def assert_close(entry: dict[str, Any], got: NDArray[Any], want: NDArray[Any]) -> None:
    got, want = got.astype(np.float64), want.astype(np.float64)
    error = np.abs(got - want)
    allowed = entry["abs"] + entry["rel"] * np.abs(want)
    assert np.isfinite(got).all()
    assert (error <= allowed).all(), f"off by up to {(error - allowed).max():.3g} over tolerance"
    power = (want**2).sum()
    nmse = (error**2).sum() / power if power else 0.0
    assert nmse <= entry["nmse"], f"nmse {nmse:.3g}"


@launches
def test_parity(entry: dict[str, Any], request_: Request) -> None:
    case = make_case(request_)
    got = viewed(case, launch(entry, case))
    want = case.expected()
    if "dequantized" in want:
        wide = got["values"].astype(np.float64) * np.repeat(got["scales"], 32, axis=-1)
        # Half a step of the block's own scale, and a little for the norm before it.
        bound = np.repeat(got["scales"], 32, axis=-1) * (0.5 + 1e-3)
        assert (np.abs(wide - want["dequantized"]) <= bound).all()
        assert_close(entry, wide, want["dequantized"])
        halves = got["values"].reshape(-1, 2, 16).astype(np.int64).sum(axis=-1)
        sums = (halves[:, 0] & 0xFFFF) | (halves[:, 1] << 16)
        np.testing.assert_array_equal(got["sums"].ravel(), sums)
        return
    for name, expected in want.items():
        if name.endswith("_pages"):
            np.testing.assert_array_equal(got[name].view(np.uint8), expected.view(np.uint8))
        else:
            assert_close(entry, got[name], expected)


@launches
def test_row_alone_has_the_same_bits(entry: dict[str, Any], request_: Request) -> None:
    case = make_case(request_)
    together = launch(entry, case)
    if request_["kind"] == "kv_append":
        # Rows change shared pages: append them one by one to the same pages.
        alone = case
        for row in range(request_["rows"]):
            written = launch(entry, row_of(alone, row))
            alone = replace(case, arrays=case.arrays | written)
        for name in case.outputs:
            np.testing.assert_array_equal(alone.arrays[name], together[name])
        return
    if "runs" in case.arrays:
        state = case.arrays["state"]
        for row, run in one_row_runs(case):
            alone = row_of(case, row)
            arrays = alone.arrays | {"state": state, "runs": run}
            written = launch(entry, replace(alone, arrays=arrays))
            state = written["state"]
            np.testing.assert_array_equal(written["out"][0], together["out"][row])
        if request_["undo"] == 0:
            np.testing.assert_array_equal(state, together["state"])
        return
    if case.is_of_step:
        return
    together = viewed(case, together)
    for row in range(len(next(iter(together.values())))):
        alone = row_of(case, row)
        single = viewed(alone, launch(entry, alone))
        for name in together:
            np.testing.assert_array_equal(
                single[name][0].view(np.uint8), together[name][row].view(np.uint8)
            )


@launches
def test_threads_and_chunks_do_not_matter(entry: dict[str, Any], request_: Request) -> None:
    case = make_case(request_)
    once = launch(entry, case)
    for threads, chunk in ((2, 1), (3, 2), (4, 1000)):
        split = launch(entry, case, threads, chunk)
        for name in case.outputs:
            np.testing.assert_array_equal(split[name].view(np.uint8), once[name].view(np.uint8))


@pytest.mark.parametrize(
    ("entry", "request_"),
    [(e, r) for e, r in LAUNCHES if e["kind"] == "rms_norm_quantize"],
    ids=label,
)
def test_fused_norm_equals_its_composition(entry: dict[str, Any], request_: Request) -> None:
    case = make_case(request_)
    fused = launch(entry, case)
    isa = entry["isa"]
    norm = KERNELS.op(f"rms_norm.row.f32.{isa}", request_ | {"kind": "rms_norm"})
    x = case.arrays["x"]
    normed = np.zeros_like(x)
    norm.run({"x": x, "vector": case.arrays["vector"], "out": normed}, rows=len(x), eps=case.eps)
    rounding = {"kind": "quantize", "rows": len(x), "k": request_["k"]}
    outputs = {name: np.zeros_like(case.arrays[name]) for name in case.outputs}
    KERNELS.op(f"quantize.row.f32_to_i8.{isa}", rounding).run({"x": normed} | outputs, rows=len(x))
    for name in case.outputs:
        np.testing.assert_array_equal(outputs[name], fused[name])


def test_instruction_sets_with_fused_multiply_add_agree() -> None:
    """Int8 matmuls of AVX-512 and AVX2 are one arithmetic, so their bits are equal."""
    by_id = {entry["id"]: entry for entry in ENTRIES}
    pairs = [
        (entry, by_id[entry["id"].replace("avx512vnni", "avx2")])
        for entry in ENTRIES
        if ".rows16." in entry["id"] and entry["isa"] == "avx512vnni"
    ]
    if not pairs:
        pytest.skip("needs a processor with AVX-512 VNNI")
    for wide, narrow in pairs:
        for request in wide["requests"]:
            case = make_case(request)
            np.testing.assert_array_equal(launch(wide, case)["out"], launch(narrow, case)["out"])
