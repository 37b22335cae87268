"""References in f64 for the operations of recurrent layers, with states that hold something before
the launch: one run begins a sequence in a slot full of leftovers, others go on from a state, with
logged rows to take in first where the request lets rows be taken back.

States are laid out as engine/plan/state_layout.h says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.ops.block_weights import decode, random_weight
from tests.ops.reference import Arrays, Case, Request, activations

COLUMNS = 16  # values of a block of a delta rule's state
LEFTOVER = 100.0
RUN_FIELDS = ("slot", "row", "rows", "position", "replay", "commit", "log_read", "log_write")


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    out: NDArray[np.float64] = 1 / (1 + np.exp(-x))
    return out


def runs_of(rng: np.random.Generator, r: Request) -> list[dict[str, int]]:
    """Up to 3 runs, in slots not in order nor all used; the first begins a sequence."""
    count = min(3, r["rows"])
    lengths = [r["rows"] // count + (i < r["rows"] % count) for i in range(count)]
    slots = rng.permutation(count + 1)[:count]
    runs, row = [], 0
    for i, rows in enumerate(lengths):
        replay = int(rng.integers(0, r["undo"] + 1)) if i else 0
        commit = rows - min(rows, r["undo"])
        position = int(rng.integers(20, 90)) if i else 0
        log = int(rng.integers(0, 2))
        runs.append(
            dict(
                zip(
                    RUN_FIELDS,
                    (int(slots[i]), row, rows, position, replay, commit, log, 1 - log),
                    strict=True,
                )
            )
        )
        row += rows
    return runs


def run_array(runs: list[dict[str, int]]) -> NDArray[np.uint32]:
    return np.array([[run[name] for name in RUN_FIELDS] for run in runs], np.uint32)


def one_row_runs(case: Case) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """The launch row by row: each row of the step, and the run of that row alone.

    With rows that may be taken back, each is logged and taken in by the next."""
    commit = 1 - min(1, case.request["undo"])
    for slot, row, rows, position, logged, _, read, _ in case.arrays["runs"]:
        replay, log = logged, read
        for i in range(rows):
            fields = (slot, 0, 1, position + i, replay, commit, log, 1 - log)
            yield int(row) + i, np.array([fields], np.uint32)
            replay, log = 1 - commit, 1 - log


def rounded_floats(floats: int) -> int:
    return (floats + 15) // 16 * 16


def short_conv(rng: np.random.Generator, r: Request) -> Case:
    rows, n, taps = r["rows"], r["n"], r["taps"]
    apart = r["dilation"] if "dilated" in r["features"] else 1
    reach = (taps - 1) * apart
    ring = reach + r["undo"]
    weight = random_weight(rng, r["weight"], n, taps)
    table = decode(r["weight"], weight, n)
    runs = runs_of(rng, r)
    x = activations(rng, rows, n)
    floats = max(rounded_floats(ring * n), 16)
    state = np.full((len(runs) + 1, floats), LEFTOVER, np.float32)
    for run in runs[1:]:
        state[run["slot"], : ring * n] = activations(rng, ring, n).ravel()
    start = state.copy()

    def expected() -> Arrays:
        out = np.zeros((rows, n))
        after = start.astype(np.float64)
        for run in runs:
            history = after[run["slot"], : ring * n].reshape(ring, n)
            inputs = {
                q: history[q % ring].copy()
                for q in range(max(0, run["position"] - reach), run["position"])
            }
            for i in range(run["rows"]):
                p = run["position"] + i
                inputs[p] = x[run["row"] + i].astype(np.float64)
                total = np.zeros(n)
                for tap in range(taps):
                    q = p - (taps - 1 - tap) * apart
                    if q >= 0:
                        total += table[:, tap] * inputs[q]
                out[run["row"] + i] = total * sigmoid(total)
            for i in range(max(0, run["rows"] - ring), run["rows"]):
                history[(run["position"] + i) % ring] = x[run["row"] + i]
        return {"out": out, "state": after}

    return Case(
        r,
        {"x": x, "out": np.zeros((rows, n), np.float32), "state": state, "runs": run_array(runs)},
        ("out", "state"),
        expected,
        weight=weight,
        row_arrays=("x", "out"),
    )


def blocked(matrix: NDArray[Any]) -> NDArray[Any]:
    """[heads, key, value] in the blocks of a state, flat."""
    heads, keys, values = matrix.shape
    blocks = matrix.reshape(heads, keys, values // COLUMNS, COLUMNS)
    return blocks.transpose(0, 2, 1, 3).reshape(-1)


def unblocked(flat: NDArray[Any], heads: int, dim: int) -> NDArray[Any]:
    blocks = flat.reshape(heads, dim // COLUMNS, dim, COLUMNS)
    return blocks.transpose(0, 2, 1, 3).reshape(heads, dim, dim)


def unit(x: NDArray[np.float32]) -> NDArray[np.float32]:
    out: NDArray[np.float32] = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return out


def delta_rule(rng: np.random.Generator, r: Request) -> Case:
    rows, heads, kv_heads, dim = r["rows"], r["heads"], r["kv_heads"], r["head_dim"]
    tiled = "tiled_heads" in r["features"]
    key_of = np.arange(heads) % kv_heads if tiled else np.arange(heads) // (heads // kv_heads)
    matrix, log_row = heads * dim * dim, (kv_heads + heads) * dim + heads
    runs = runs_of(rng, r)
    keys = unit(activations(rng, rows * 2 * kv_heads, dim)).reshape(rows, -1)
    x = np.concatenate([keys, activations(rng, rows, heads * dim)], axis=-1).astype(np.float32)
    gates = rng.uniform(0.3, 1, (rows, 2 * heads)).astype(np.float32)
    floats = rounded_floats(matrix + 2 * r["undo"] * log_row)
    state = np.full((len(runs) + 1, floats), LEFTOVER, np.float32)
    for run in runs[1:]:
        state[run["slot"]] = rng.uniform(-0.5, 0.5, floats)
    start = state.copy()
    scale = dim**-0.5

    def log_of(flat: NDArray[Any], log: int, row: int) -> NDArray[Any]:
        at = matrix + (log * r["undo"] + row) * log_row
        return flat[at : at + log_row]

    def expected() -> Arrays:
        out = np.zeros((rows, heads, dim))
        after = start.astype(np.float64)
        for run in runs:
            flat = after[run["slot"]]
            s = unblocked(flat[:matrix].copy(), heads, dim)
            if run["position"] == 0:
                s[:] = 0
            for i in range(run["replay"]):
                logged = log_of(flat, run["log_read"], i)
                k = logged[: kv_heads * dim].reshape(kv_heads, dim)[key_of]
                d = logged[kv_heads * dim : -heads].reshape(heads, dim)
                s = logged[-heads:, None, None] * s + k[:, :, None] * d[:, None, :]
            kept = s.copy()
            for i in range(run["rows"]):
                row = x[run["row"] + i].astype(np.float64)
                q = row[: kv_heads * dim].reshape(kv_heads, dim)[key_of] * scale
                all_k = row[kv_heads * dim : 2 * kv_heads * dim]
                k = all_k.reshape(kv_heads, dim)[key_of]
                v = row[2 * kv_heads * dim :].reshape(heads, dim)
                decay, step = gates[run["row"] + i].astype(np.float64).reshape(2, heads)
                s = decay[:, None, None] * s
                d = step[:, None] * (v - np.einsum("hkv,hk->hv", s, k))
                s = s + k[:, :, None] * d[:, None, :]
                out[run["row"] + i] = np.einsum("hkv,hk->hv", s, q)
                if i < run["commit"]:
                    kept = s.copy()
                else:
                    to = log_of(flat, run["log_write"], i - run["commit"])
                    to[:] = np.concatenate([all_k, d.ravel(), decay])
            flat[:matrix] = blocked(kept)
        return {"out": out.reshape(rows, -1), "state": after}

    return Case(
        r,
        {
            "x": x,
            "y": gates,
            "out": np.zeros((rows, heads * dim), np.float32),
            "state": state,
            "runs": run_array(runs),
        },
        ("out", "state"),
        expected,
        scale=scale,
        row_arrays=("x", "y", "out"),
    )


def l2_norm(rng: np.random.Generator, r: Request) -> Case:
    out = activations(rng, r["rows"], r["k"])
    out[0, : r["head_dim"]] = 0  # stays zero
    start = out.astype(np.float64)

    def expected() -> Arrays:
        after = start.copy()
        width = r["heads"] * r["head_dim"]
        groups = start[:, :width].reshape(-1, r["heads"], r["head_dim"])
        lengths = np.sqrt((groups**2).sum(axis=-1, keepdims=True) + 1e-6)
        after[:, :width] = (groups / lengths).reshape(-1, width)
        return {"out": after}

    return Case(r, {"out": out}, ("out",), expected, row_arrays=("out",))


def sigmoid_gate(rng: np.random.Generator, r: Request) -> Case:
    x = activations(rng, r["rows"], r["k"])
    gate = activations(rng, r["rows"], r["k"]) * np.float32(4)
    gate.flat[:3] = (-200.0, 0.0, 200.0)

    def expected() -> Arrays:
        with np.errstate(over="ignore"):
            return {"out": x * sigmoid(gate.astype(np.float64))}

    return Case(
        r,
        {"x": x, "y": gate, "out": np.zeros_like(x)},
        ("out",),
        expected,
        row_arrays=("x", "y", "out"),
    )


def delta_gates(rng: np.random.Generator, r: Request) -> Case:
    alpha = activations(rng, r["rows"], r["heads"]) * np.float32(8)
    beta = activations(rng, r["rows"], r["heads"]) * np.float32(4)
    alpha.flat[0] = 200.0
    bias = activations(rng, 1, r["heads"])[0]
    rate = -np.exp(activations(rng, 1, r["heads"])[0])

    def expected() -> Arrays:
        wide = alpha.astype(np.float64) + bias
        decay = np.exp(rate * np.logaddexp(0, wide))
        return {"out": np.concatenate([decay, sigmoid(beta.astype(np.float64))], axis=-1)}

    return Case(
        r,
        {
            "x": alpha,
            "y": beta,
            "vector": bias,
            "vector2": rate,
            "out": np.zeros((r["rows"], r["n"]), np.float32),
        },
        ("out",),
        expected,
        row_arrays=("x", "y", "out"),
    )


def slice_case(rng: np.random.Generator, r: Request) -> Case:
    x = activations(rng, r["rows"], r["k"])

    def expected() -> Arrays:
        groups = x.reshape(r["rows"], r["heads"], -1)
        part = groups[..., r["offset"] : r["offset"] + r["n"] // r["heads"]]
        return {"out": part.reshape(r["rows"], -1)}

    return Case(
        r,
        {"x": x, "out": np.zeros((r["rows"], r["n"]), np.float32)},
        ("out",),
        expected,
        row_arrays=("x", "out"),
    )


RECURRENT_CASES = {
    "short_conv": short_conv,
    "delta_rule": delta_rule,
    "l2_norm": l2_norm,
    "sigmoid_gate": sigmoid_gate,
    "delta_gates": delta_gates,
    "slice": slice_case,
}
