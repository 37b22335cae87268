"""References in f64 for operations of layers whose rows choose what they attend to. Index keys and
block keys lie in pages as engine/plan/index_layout.h says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.ops.reference import PAGE, Arrays, Case, Request, activations, paged_rows, rms_norm

CONTEXT = 200
Place = tuple[int, int]  # sequence, position


def kind_of(r: Request) -> type[np.floating[Any]]:
    return np.float32 if r["kv"] == "f32" else np.float16


def empty(r: Request, pages: int, tokens: int) -> NDArray[Any]:
    """Pages of keys, `tokens` a page, that nothing may read; f16 as raw bits."""
    full = np.full((pages, tokens, r["head_dim"]), np.nan, kind_of(r))
    return full.view(np.float32 if r["kv"] == "f32" else np.uint16)


def page_of(arrays: Arrays, place: Place) -> int:
    return int(arrays["page_tables"][place[0], place[1] // PAGE])


def with_rows_alone(case: Case) -> Case:
    """The case, of which each row can be run alone: what it shows is then that row's."""

    def alone(row: int) -> Case:
        cut = {
            name: np.ascontiguousarray(array[row : row + 1]) if name in case.row_arrays else array
            for name, array in case.arrays.items()
        }

        def view(written: Arrays) -> Arrays:
            assert case.view is not None
            shown = case.view(written)
            return {name: values[row : row + 1] for name, values in shown.items()}

        return replace(case, request=case.request | {"rows": 1}, arrays=cut, view=view, alone=None)

    return replace(case, alone=alone)


def index_append(rng: np.random.Generator, r: Request) -> Case:
    arrays, places = paged_rows(rng, r, CONTEXT)
    pages = int(arrays["page_tables"].size + 2)
    x = activations(rng, r["rows"], r["head_dim"])
    arrays |= {"x": x, "index_keys": empty(r, pages, PAGE)}

    def view(written: Arrays) -> Arrays:
        keys = written["index_keys"].view(kind_of(r))
        return {"keys": np.stack([keys[page_of(arrays, p), p[1] % PAGE] for p in places])}

    case = Case(
        r,
        arrays,
        ("index_keys",),
        lambda: {"keys": x.astype(kind_of(r)).astype(np.float64)},
        row_arrays=("x", "positions", "sequences"),
        view=view,
    )
    return with_rows_alone(case)


def rotated(key: NDArray[np.float64], position: int, r: Request, rope: NDArray[np.float32]) -> Any:
    dims = r["rope_dims"]
    first, second = (
        (slice(0, dims // 2), slice(dims // 2, dims))
        if "rope_neox" in r["features"]
        else (slice(0, dims, 2), slice(1, dims, 2))
    )
    magnitude = float(rope[dims // 2])
    angle = position * rope[: dims // 2].astype(np.float64)
    cos, sin = magnitude * np.cos(angle), magnitude * np.sin(angle)
    out = key.copy()
    out[first] = key[first] * cos - key[second] * sin
    out[second] = key[first] * sin + key[second] * cos
    return out


def index_blocks(rng: np.random.Generator, r: Request) -> Case:
    arrays, places = paged_rows(rng, r, CONTEXT)
    pages, tokens = int(arrays["page_tables"].size + 2), r["block_tokens"]
    raw = rng.standard_normal((pages, PAGE, r["head_dim"])).astype(kind_of(r))
    dims = r["rope_dims"]
    magnitude = 1.27 if "rope_magnitude" in r["features"] else 1.0
    frequencies = 10_000.0 ** (-np.arange(dims // 2) * 2 / dims)
    rope = np.append(frequencies, magnitude).astype(np.float32)
    gain = activations(rng, 1, r["head_dim"])[0]
    arrays |= {
        "index_keys": raw.view(empty(r, 0, PAGE).dtype),
        "index_blocks": empty(r, pages, PAGE // tokens),
        "vector": gain,
        "rope": rope,
    }

    def completes(place: Place) -> bool:
        return bool(place[1] % tokens == tokens - 1)

    def view(written: Arrays) -> Arrays:
        blocks = written["index_blocks"].view(kind_of(r))
        rows = np.zeros((len(places), r["head_dim"]), kind_of(r))
        for row, place in enumerate(places):
            if completes(place):
                rows[row] = blocks[page_of(arrays, place), place[1] % PAGE // tokens]
        return {"blocks": rows}

    def expected() -> Arrays:
        rows = np.zeros((len(places), r["head_dim"]))
        for row, place in enumerate(places):
            if not completes(place):
                continue
            last = place[1] % PAGE
            keys = raw[page_of(arrays, place), last - tokens + 1 : last + 1].astype(np.float64)
            normed = rms_norm(keys.mean(axis=0)[None], gain, r["head_dim"], 1e-5)[0]
            rows[row] = rotated(normed, place[1] + 1 - tokens, r, rope)
        return {"blocks": rows}

    case = Case(
        r,
        arrays,
        ("index_blocks",),
        expected,
        row_arrays=("positions", "sequences"),
        view=view,
    )
    return with_rows_alone(case)


def mask_of(tokens: Sequence[int], words: int) -> NDArray[np.uint32]:
    bits = np.zeros((words, PAGE), np.uint32)
    for token in tokens:
        bits[token // PAGE, token % PAGE] = 1
    return np.asarray((bits << np.arange(PAGE, dtype=np.uint32)).sum(axis=1), np.uint32)


def select_tokens(rng: np.random.Generator, r: Request) -> Case:
    arrays, places = paged_rows(rng, r, CONTEXT)
    pages, tokens = int(arrays["page_tables"].size + 2), r["block_tokens"]
    blocks = rng.standard_normal((pages, PAGE // tokens, r["head_dim"])).astype(kind_of(r))
    blocks[1::3] = blocks[0]  # some are equal
    queries = activations(rng, r["rows"], r["k"])
    arrays |= {
        "x": queries,
        "index_blocks": blocks.view(empty(r, 0, PAGE).dtype),
        "masks": np.zeros((r["rows"], r["mask_words"]), np.uint32),
    }

    def chosen(row: int, sequence: int, position: int) -> list[int]:
        complete = (position + 1) // tokens
        keys = np.concatenate([blocks[page] for page in arrays["page_tables"][sequence]])
        heads = queries[row].astype(np.float64).reshape(r["heads"], -1)
        scores = np.maximum(0, keys[:complete].astype(np.float64) @ heads.T).sum(axis=1)
        scores = np.round(scores, 9)  # equal keys score alike
        best = np.argsort(-scores, kind="stable")[: r["blocks_used"]]
        of_blocks = [b * tokens + t for b in sorted(best.tolist()) for t in range(tokens)]
        return of_blocks + list(range(complete * tokens, position + 1))

    def expected() -> Arrays:
        rows = [mask_of(chosen(row, *place), r["mask_words"]) for row, place in enumerate(places)]
        return {"masks": np.stack(rows).astype(np.float64)}

    return Case(
        r,
        arrays,
        ("masks",),
        expected,
        row_arrays=("x", "masks", "positions", "sequences"),
    )


INDEX_CASES = {
    "index_append": index_append,
    "index_blocks": index_blocks,
    "select_tokens": select_tokens,
}
