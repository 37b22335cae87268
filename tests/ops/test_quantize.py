"""Rounding of activations to int8 at the edges: exact bits on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.ops.reference import Arrays, quant_outputs, quantize

engine = pytest.importorskip("strata_engine_testing", reason="the engine's module is not built")

KERNELS = engine.Kernels()
IDS = [entry["id"] for entry in KERNELS.entries() if entry["kind"] == "quantize"]


def run(kernel: str, x: NDArray[np.float32]) -> Arrays:
    outputs = quant_outputs(*x.shape)
    request = {"kind": "quantize", "rows": x.shape[0], "k": x.shape[1]}
    KERNELS.op(kernel, request).run({"x": x} | outputs, rows=x.shape[0])
    return outputs


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=32, max_size=32)
)
def test_finite_values_round_exactly(values: list[float]) -> None:
    x = np.array([values], np.float32)
    want = quantize(x)
    for kernel in IDS:
        got = run(kernel, x)
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array.reshape(got[name].shape), kernel)


@pytest.mark.parametrize("kernel", IDS)
@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
def test_faults_stay_visible(kernel: str, fault: float) -> None:
    for place in range(32):
        x = np.ones((1, 64), np.float32)
        x[0, place] = fault
        got = run(kernel, x)
        assert np.isnan(got["scales"][0, 0])
        assert got["scales"][0, 1] == np.float32(1) / np.float32(127)
        assert got["values"].min() >= -127  # int8 matmuls rely on it even for faulty rows


@pytest.mark.parametrize("kernel", IDS)
def test_zero_and_tiny_blocks_are_zero(kernel: str) -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, 40] = 1e-38
    got = run(kernel, x)
    assert not got["values"].any()
    assert not got["scales"].any()
    assert not got["sums"].any()
