"""References for tables addressed by n-grams of token ids: the hash with whole numbers of Python,
and the decoded rows. Rows and token ids are 32-bit words in arrays of f32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.ops.block_weights import decode, random_weight
from tests.ops.recurrent_cases import run_array, runs_of
from tests.ops.reference import Arrays, Case, Request

EOS = 7
WORD_BITS = 64


def words(values: NDArray[np.uint32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(values).view(np.float32)


def context_of(tokens: list[int], at: int, length: int) -> list[int]:
    """The token at `at` and those before it; nothing is seen behind an EOS."""
    out = [tokens[at]]
    for back in range(1, length):
        is_cut = at < back or (back > 1 and out[-1] == EOS)
        out.append(EOS if is_cut else tokens[at - back])
    return out


def hash_rows(
    context: list[int], multipliers: list[int], sizes: list[int], offsets: list[int]
) -> list[int]:
    per_length = len(sizes) // (len(context) - 1)
    mask, rows = (1 << WORD_BITS) - 1, []
    for head, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
        value = 0
        for token, multiplier in zip(context[: 2 + head // per_length], multipliers, strict=False):
            value ^= token * multiplier & mask
        rows.append(value % size + offset)
    return rows


def ngram_rows(rng: np.random.Generator, r: Request) -> Case:
    heads, length = r["heads"], r["taps"]
    multipliers = [int(rng.integers(1 << 40, 1 << 50)) | 1 for _ in range(length)]
    sizes = [int(rng.integers(5, 40)) for _ in range(heads)]
    offsets = np.cumsum([0, *sizes[:-1]]).tolist()
    ring = length - 1 + r["undo"]
    runs = runs_of(rng, r)
    state: NDArray[np.uint32] = np.full((len(runs) + 1, 16), 99, np.uint32)
    tokens = np.asarray(rng.integers(0, 12, r["rows"]), np.int32)
    tokens[rng.random(r["rows"]) < 0.2] = EOS
    histories = []
    for run in runs:  # what came before the run, of which the state holds the last
        before = [int(rng.integers(5, 9)) for _ in range(run["position"])]  # some are EOS
        histories.append(before)
        for position in range(max(0, run["position"] - ring), run["position"]):
            state[run["slot"], position % ring] = before[position]
    start = state.copy()

    def expected() -> Arrays:
        out = np.zeros((r["rows"], heads), np.uint32)
        after = start.copy()
        for run, before in zip(runs, histories, strict=True):
            end = run["row"] + run["rows"]
            all_tokens = [*before, *tokens[run["row"] : end].tolist()]
            for row in range(run["rows"]):
                at = run["position"] + row
                context = context_of(all_tokens, at, length)
                out[run["row"] + row] = hash_rows(context, multipliers, sizes, offsets)
                after[run["slot"], at % ring] = all_tokens[at]
        return {"out": words(out), "state": words(after)}

    return Case(
        r,
        {
            "tokens": tokens,
            "out": words(np.zeros((r["rows"], heads), np.uint32)),
            "state": words(state),
            "runs": run_array(runs),
            "ngram": np.array([*multipliers, *sizes, *offsets, EOS], np.uint64),
        },
        ("out", "state"),
        expected,
        row_arrays=("tokens", "out"),
    )


def table_rows(rng: np.random.Generator, r: Request) -> Case:
    weight = random_weight(rng, r["weight"], r["k"], r["head_dim"])
    shape = (r["rows"], r["heads"])
    rows = np.asarray(rng.integers(0, r["k"], shape), np.uint32)
    table = decode(r["weight"], weight, r["k"])
    return Case(
        r,
        {"x": words(rows), "out": np.zeros((r["rows"], r["n"]), np.float32)},
        ("out",),
        lambda: {"out": table[rows].reshape(r["rows"], r["n"])},
        weight=weight,
        row_arrays=("x", "out"),
    )


def fetch_rows(rng: np.random.Generator, r: Request) -> Case:
    """Writes nothing: what it asks for comes later, or is there."""
    rows = np.asarray(rng.integers(0, r["k"], (r["rows"], r["heads"])), np.uint32)
    weight = random_weight(rng, r["weight"], r["k"], r["head_dim"])
    return Case(r, {"x": words(rows)}, (), dict, weight=weight, is_of_step=True)


TABLE_CASES = {"ngram_rows": ngram_rows, "fetch_rows": fetch_rows, "table_rows": table_rows}
