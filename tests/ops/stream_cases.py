"""References in f64 for operations on residual streams: rows of `heads` vectors side by side."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.ops.recurrent_cases import sigmoid
from tests.ops.reference import Case, Request, activations


def by_stream(x: NDArray[np.float32], streams: int) -> NDArray[np.float64]:
    return x.astype(np.float64).reshape(len(x), streams, -1)


def row_case(
    r: Request, arrays: dict[str, NDArray[np.float32]], out: NDArray[np.float64], start: str = ""
) -> Case:
    """A case of rows; `start` names an operand that is changed in place."""
    outs = {} if start else {"out": np.zeros(out.shape, np.float32)}
    arrays = arrays | outs
    return Case(r, arrays, ("out",), lambda: {"out": out}, row_arrays=tuple(arrays))


def spread(rng: np.random.Generator, r: Request) -> Case:
    x = activations(rng, r["rows"], r["k"])
    return row_case(r, {"x": x}, np.tile(x.astype(np.float64), (1, r["heads"])))


def silu(rng: np.random.Generator, r: Request) -> Case:
    x = activations(rng, r["rows"], r["k"])
    wide = x.astype(np.float64) / r["heads"]
    return row_case(r, {"x": x}, wide * sigmoid(wide))


def mix(rng: np.random.Generator, r: Request) -> Case:
    x, y = (activations(rng, r["rows"], r["k"]) for _ in range(2))
    gates = sigmoid(by_stream(y, r["heads"]))
    return row_case(r, {"x": x, "y": y}, (gates * by_stream(x, r["heads"])).mean(axis=1))


def add(rng: np.random.Generator, r: Request) -> Case:
    x, out = activations(rng, r["rows"], r["k"]), activations(rng, r["rows"], r["n"])
    y = activations(rng, r["rows"], r["heads"])
    gates = 2 * sigmoid(y.astype(np.float64) / r["heads"])
    added = by_stream(out, r["heads"]) + gates[..., None] * x.astype(np.float64)[:, None]
    return row_case(r, {"x": x, "y": y, "out": out}, added.reshape(out.shape), start="out")


def scores(rng: np.random.Generator, r: Request) -> Case:
    x, y = (activations(rng, r["rows"], r["k"]) for _ in range(2))
    x[0] = 0  # nothing has no sign
    y[-1] *= np.float32(1e-9)  # roots are bounded from below
    width = r["k"] // r["heads"]
    dots = (by_stream(x, r["heads"]) * by_stream(y, r["heads"])).sum(axis=-1) / np.sqrt(width)
    roots = np.sign(dots) * np.sqrt(np.maximum(np.abs(dots), 1e-6))
    return row_case(r, {"x": x, "y": y}, sigmoid(roots))


def scale(rng: np.random.Generator, r: Request) -> Case:
    x, y = activations(rng, r["rows"], r["k"]), activations(rng, r["rows"], r["heads"])
    wide = y.astype(np.float64)[..., None] * x.astype(np.float64)[:, None]
    return row_case(r, {"x": x, "y": y}, wide.reshape(r["rows"], r["n"]))


STREAM_CASES = {
    "stream_spread": spread,
    "silu": silu,
    "stream_mix": mix,
    "stream_add": add,
    "stream_scores": scores,
    "stream_scale": scale,
}
