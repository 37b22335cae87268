"""Independent NumPy references in f64 for every operation, and inputs for their tests.

Weights are decoded by the public `gguf` package (block_weights.py), never by the engine. For int8
activations the reference multiplies the same rounded activations, which `quantize` makes after
engine/cpu/quantize.h without looking at the engine's code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.ops.block_weights import decode, random_weight

Request = dict[str, Any]
Arrays = dict[str, NDArray[Any]]
PAGE = 32


def quantize(x: NDArray[np.float32]) -> Arrays:
    """Rows rounded to int8 in blocks of 32: values, scales and packed pairs of sums."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    most: NDArray[np.float32] = np.abs(blocks).max(axis=-1)
    is_zero = most < np.float32(1e-35)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.asarray(np.where(is_zero, 0, np.float32(127) / most), np.float32)
        values: NDArray[np.int8] = np.rint(blocks * inverse[..., None]).astype(np.int8)
    scales = np.asarray(np.where(is_zero, 0, most / np.float32(127)), np.float32)
    halves = values.reshape(*values.shape[:-1], 2, 16).astype(np.int32).sum(axis=-1)
    sums: NDArray[np.int32] = (halves[..., 0] & 0xFFFF) | (halves[..., 1] << 16)
    return {
        "values": values.reshape(x.shape),
        "scales": scales,
        "sums": sums.astype(np.int32),
    }


def rms_norm(x: NDArray[Any], gain: NDArray[Any], group: int, eps: float) -> NDArray[np.float64]:
    wide = x.astype(np.float64).reshape(-1, x.shape[-1] // group, group)
    mean = (wide**2).mean(axis=-1, keepdims=True)
    gains = gain.astype(np.float64).reshape(-1, group)  # one for all groups, or each its own
    out: NDArray[np.float64] = (wide / np.sqrt(mean + eps) * gains).reshape(x.shape)
    return out


@dataclass
class Case:
    """Inputs of one launch: `arrays` as the kernel takes them, `outputs` the names it writes."""

    request: Request
    arrays: Arrays
    outputs: tuple[str, ...]
    expected: Callable[[], Arrays]
    weight: bytes = b""
    eps: float = 1e-5
    scale: float = 1.0
    # Per-row arrays: what to slice in order to run one row alone.
    row_arrays: tuple[str, ...] = field(default=())
    # Where rows do not lie one behind the other: what was written as arrays of `expected` with a
    # first axis of rows, and the launch with one row alone.
    view: Callable[[Arrays], Arrays] | None = None
    alone: Callable[[int], Case] | None = None
    is_of_step: bool = False  # speaks of all rows together: no row of it can be run alone


def activations(rng: np.random.Generator, rows: int, k: int) -> NDArray[np.float32]:
    return rng.standard_normal((rows, k)).astype(np.float32)


def embed(rng: np.random.Generator, r: Request) -> Case:
    n, vocab = r["n"], r["k"]
    weight = random_weight(rng, r["weight"], vocab, n)
    tokens = np.asarray(rng.integers(0, vocab, r["rows"]), np.int32)
    tokens[0] = vocab - 1
    out = np.zeros((r["rows"], n), np.float32)
    table = decode(r["weight"], weight, vocab)
    return Case(
        r,
        {"tokens": tokens, "out": out},
        ("out",),
        lambda: {"out": table[tokens]},
        weight=weight,
        row_arrays=("tokens", "out"),
    )


def norm_inputs(rng: np.random.Generator, r: Request) -> tuple[Arrays, int]:
    group = r["head_dim"] if "grouped" in r["features"] else r["k"]
    x = activations(rng, r["rows"], r["k"])
    gain = activations(rng, 1, r["k"] if "group_gain" in r["features"] else group)[0]
    return {"x": x, "vector": gain}, group


def rms_norm_case(rng: np.random.Generator, r: Request) -> Case:
    arrays, group = norm_inputs(rng, r)
    x, gain = arrays["x"], arrays["vector"]
    arrays["out"] = np.zeros_like(x)
    return Case(
        r,
        arrays,
        ("out",),
        lambda: {"out": rms_norm(x, gain, group, 1e-5)},
        row_arrays=("x", "out"),
    )


def quant_outputs(rows: int, k: int) -> Arrays:
    return {
        "values": np.zeros((rows, k), np.int8),
        "scales": np.zeros((rows, k // 32), np.float32),
        "sums": np.zeros((rows, k // 32), np.int32),
    }


def rms_norm_quantize(rng: np.random.Generator, r: Request) -> Case:
    arrays, group = norm_inputs(rng, r)
    x, gain = arrays["x"], arrays["vector"]
    arrays |= quant_outputs(r["rows"], r["k"])
    return Case(
        r,
        arrays,
        ("values", "scales", "sums"),
        lambda: {"dequantized": rms_norm(x, gain, group, 1e-5)},
        row_arrays=("x", "values", "scales", "sums"),
    )


def quantize_case(rng: np.random.Generator, r: Request) -> Case:
    x = activations(rng, r["rows"], r["k"])
    return Case(
        r,
        {"x": x} | quant_outputs(r["rows"], r["k"]),
        ("values", "scales", "sums"),
        lambda: {"dequantized": x.astype(np.float64)},
        row_arrays=("x", "values", "scales", "sums"),
    )


def matmul(rng: np.random.Generator, r: Request) -> Case:
    rows, n, k = r["rows"], r["n"], r["k"]
    weight = random_weight(rng, r["weight"], n, k)
    arrays: Arrays = {"out": np.zeros((rows, n), np.float32)}
    x = activations(rng, rows, k)
    # k^-1/2 keeps outputs near 1, so that absolute tolerances mean something.
    x *= np.float32(k**-0.5)
    if r["act"] == "i8block":
        arrays |= quantize(x)
        wide = arrays["values"].astype(np.float64) * np.repeat(
            arrays["scales"].astype(np.float64), 32, axis=-1
        )
        row_arrays: tuple[str, ...] = ("values", "scales", "sums", "out")
    else:
        arrays["x"] = x
        wide = x.astype(np.float64)
        row_arrays = ("x", "out")
    bias = np.zeros(n, np.float32)
    if "bias" in r["features"]:
        bias = activations(rng, 1, n)[0]
        arrays["vector"] = bias
    table = decode(r["weight"], weight, n)
    return Case(
        r,
        arrays,
        ("out",),
        lambda: {"out": wide @ table.T + bias},
        weight=weight,
        row_arrays=row_arrays,
    )


def scale(rng: np.random.Generator, r: Request) -> Case:
    x = activations(rng, r["rows"], r["k"])
    factor = np.array([0.37], np.float32)
    start = x.astype(np.float64)
    return Case(
        r,
        {"out": x, "vector": factor},
        ("out",),
        lambda: {"out": start * factor},
        row_arrays=("out",),
    )


def rope(rng: np.random.Generator, r: Request) -> Case:
    rows, heads, dim, dims = r["rows"], r["heads"], r["head_dim"], r["rope_dims"]
    x = activations(rng, rows, heads * dim)
    positions = np.array([0, 1, 31, 4095, 131_071, 1_000_003][:rows], np.uint32)
    frequencies = (10_000.0 ** (-np.arange(dims // 2) * 2 / dims)).astype(np.float32)
    start = x.copy()
    magnitude = np.float32(1.27) if "rope_magnitude" in r["features"] else np.float32(1)

    def expected() -> Arrays:
        angle = positions[:, None, None] * frequencies.astype(np.float64)
        cos, sin = magnitude * np.cos(angle), magnitude * np.sin(angle)
        y = start.astype(np.float64).reshape(rows, heads, dim)
        turned = y.copy()
        first, second = (
            (slice(0, dims // 2), slice(dims // 2, dims))
            if "rope_neox" in r["features"]
            else (slice(0, dims, 2), slice(1, dims, 2))
        )
        turned[..., first] = y[..., first] * cos - y[..., second] * sin
        turned[..., second] = y[..., first] * sin + y[..., second] * cos
        return {"out": turned.reshape(rows, -1)}

    return Case(
        r,
        {"out": x, "positions": positions, "rope": np.append(frequencies, magnitude)},
        ("out",),
        expected,
        row_arrays=("out", "positions"),
    )


def paged_rows(
    rng: np.random.Generator, r: Request, context: int
) -> tuple[Arrays, list[tuple[int, int]]]:
    """Rows of up to 3 sequences with their page tables; (sequence, position) of each row."""
    rows, sequences = r["rows"], min(3, r["rows"])
    lengths = [rows // sequences + (s < rows % sequences) for s in range(sequences)]
    places: list[tuple[int, int]] = []
    for s, length in enumerate(lengths):
        start = int(rng.integers(0, context - length))
        places += [(s, start + i) for i in range(length)]
    per_sequence = (context + PAGE - 1) // PAGE
    tables = rng.permutation(sequences * per_sequence + 2)[: sequences * per_sequence]
    return {
        "positions": np.array([p for _, p in places], np.uint32),
        "sequences": np.array([s for s, _ in places], np.uint32),
        "page_tables": tables.reshape(sequences, per_sequence).astype(np.uint32),
    }, places


def empty_pages(r: Request, arrays: Arrays, fill: float) -> Arrays:
    """KV pages full of `fill`, f16 as raw bits."""
    pages = int(arrays["page_tables"].size + 2)
    shape = (pages, r["kv_heads"], r["head_dim"] * PAGE)
    kind = np.float32 if r["kv"] == "f32" else np.float16
    bits = np.float32 if r["kv"] == "f32" else np.uint16
    return {name: np.full(shape, fill, kind).view(bits) for name in ("k_pages", "v_pages")}


def write_pages(
    r: Request, arrays: Arrays, place: tuple[int, int], k: NDArray[Any], v: NDArray[Any]
) -> None:
    """Stores k and v [kv_heads, head_dim] of one position, as KvView describes."""
    sequence, position = place
    page = arrays["page_tables"][sequence, position // PAGE]
    kind = np.float32 if r["kv"] == "f32" else np.float16
    keys = arrays["k_pages"].view(kind)[page].reshape(r["kv_heads"], r["head_dim"], PAGE)
    values = arrays["v_pages"].view(kind)[page].reshape(r["kv_heads"], PAGE, r["head_dim"])
    keys[:, :, position % PAGE] = k
    values[:, position % PAGE, :] = v


def kv_append(rng: np.random.Generator, r: Request) -> Case:
    arrays, places = paged_rows(rng, r, 100)
    arrays |= empty_pages(r, arrays, -7.0)
    arrays["x"] = activations(rng, r["rows"], r["k"])
    arrays["y"] = activations(rng, r["rows"], r["k"])

    def expected() -> Arrays:
        wanted = arrays | empty_pages(r, arrays, -7.0)
        for row, place in enumerate(places):
            shape = (r["kv_heads"], r["head_dim"])
            write_pages(
                r, wanted, place, arrays["x"][row].reshape(shape), arrays["y"][row].reshape(shape)
            )
        return {name: wanted[name] for name in ("k_pages", "v_pages")}

    return Case(
        r,
        arrays,
        ("k_pages", "v_pages"),
        expected,
        row_arrays=("x", "y", "positions", "sequences"),
    )


def attention(rng: np.random.Generator, r: Request) -> Case:
    dim, heads, kv_heads = r["head_dim"], r["heads"], r["kv_heads"]
    arrays, places = paged_rows(rng, r, 150)
    # What no row may look at is NaN, so that reading past a position shows.
    arrays |= empty_pages(r, arrays, np.nan)
    sequences = int(arrays["page_tables"].shape[0])
    longest = [max(p for s, p in places if s == i) + 1 for i in range(sequences)]
    kind = np.float32 if r["kv"] == "f32" else np.float16
    keys: list[NDArray[Any]] = []
    values: list[NDArray[Any]] = []
    for sequence, length in enumerate(longest):
        keys.append(rng.standard_normal((length, kv_heads, dim)).astype(kind))
        values.append(rng.standard_normal((length, kv_heads, dim)).astype(kind))
        for position in range(length):
            write_pages(r, arrays, (sequence, position), keys[-1][position], values[-1][position])
    q = activations(rng, r["rows"], heads * dim) * np.float32(2)
    arrays |= {"x": q, "out": np.zeros_like(q)}
    scale = dim**-0.5
    seen = [np.arange(position + 1) for _, position in places]
    if "selected" in r["features"]:  # some tokens of some pages, the last of all
        bits = rng.random((r["rows"], r["mask_words"], PAGE)) < 0.3
        bits[:, ::3] = False
        for row, (_, position) in enumerate(places):
            bits[row, position // PAGE, position % PAGE] = True
            seen[row] = np.flatnonzero(bits[row].ravel()[: position + 1])
        words = bits.astype(np.uint32) << np.arange(PAGE, dtype=np.uint32)
        arrays["masks"] = words.sum(axis=2).astype(np.uint32)

    def expected() -> Arrays:
        out = np.zeros((r["rows"], heads, dim))
        for row, (sequence, _) in enumerate(places):
            for head in range(heads):
                kv = head // (heads // kv_heads)
                k = keys[sequence][seen[row], kv].astype(np.float64)
                v = values[sequence][seen[row], kv].astype(np.float64)
                scores = k @ q[row].reshape(heads, dim)[head].astype(np.float64) * scale
                weights = np.exp(scores - scores.max())
                out[row, head] = weights @ v / weights.sum()
        return {"out": out.reshape(r["rows"], -1)}

    return Case(
        r,
        arrays,
        ("out",),
        expected,
        scale=scale,
        row_arrays=("x", "out", "positions", "sequences", "masks"),
    )


def swiglu(rng: np.random.Generator, r: Request) -> Case:
    gate = activations(rng, r["rows"], r["k"]) * np.float32(4)
    gate.flat[:3] = (-200.0, 0.0, 200.0)
    up = activations(rng, r["rows"], r["k"])

    def expected() -> Arrays:
        wide = gate.astype(np.float64)
        return {"out": wide / (1 + np.exp(-wide)) * up}

    return Case(
        r,
        {"x": gate, "y": up, "out": np.zeros_like(up)},
        ("out",),
        expected,
        row_arrays=("x", "y", "out"),
    )


def add(rng: np.random.Generator, r: Request) -> Case:
    out = activations(rng, r["rows"], r["k"])
    y = activations(rng, r["rows"], r["k"])
    start = out.astype(np.float64)
    return Case(
        r,
        {"y": y, "out": out},
        ("out",),
        lambda: {"out": start + y},
        row_arrays=("y", "out"),
    )


def gather_rows(rng: np.random.Generator, r: Request) -> Case:
    x = activations(rng, 3 * r["rows"], r["k"])
    gather = np.sort(rng.permutation(len(x))[: r["rows"]]).astype(np.uint32)
    return Case(
        r,
        {"x": x, "gather": gather, "out": np.zeros((r["rows"], r["k"]), np.float32)},
        ("out",),
        lambda: {"out": x[gather]},
        row_arrays=("gather", "out"),
    )


def concat(rng: np.random.Generator, r: Request) -> Case:
    rows, n, k = r["rows"], r["n"], r["k"]
    x, y = activations(rng, rows, k), activations(rng, rows, n - k)
    return Case(
        r,
        {"x": x, "y": y, "out": np.zeros((rows, n), np.float32)},
        ("out",),
        lambda: {"out": np.concatenate([x, y], axis=-1)},
        row_arrays=("x", "y", "out"),
    )
