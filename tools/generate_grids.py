"""Writes engine/quant/grids.h: the codebooks of GGML's IQ formats as the `gguf` package holds them.

The codebooks were found by search when the formats were made, so no formula gives them.

    python -m tools.generate_grids          # rewrites the file
    python -m tools.generate_grids --check  # status 1 if it would change
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import quants

PATH = Path(__file__).resolve().parents[1] / "engine/quant/grids.h"
PER_LINE = 12

HEAD = """\
// Codebooks of the IQ formats, written by tools/generate_grids.py from the `gguf` package. An entry
// holds the places of its weights' magnitudes in ascending order of magnitude, the first weight in
// the lowest bits: 8 weights of 2 bits (IQ1, IQ2) or 4 weights of 4 bits (IQ3).
#pragma once

#include "engine/quant/block_group.h"

namespace strata {
namespace blocks {

// clang-format off
"""
TAIL = """\
// clang-format on

}  // namespace blocks
}  // namespace strata
"""
GRIDS = {
    "kIq1Grid": quants.IQ1_S,
    "kIq2XxsGrid": quants.IQ2_XXS,
    "kIq2XsGrid": quants.IQ2_XS,
    "kIq2SGrid": quants.IQ2_S,
    "kIq3XxsGrid": quants.IQ3_XXS,
    "kIq3SGrid": quants.IQ3_S,
}


def entries(source: type) -> npt.NDArray[np.uint16]:
    """The codebook of one of the package's formats, one number for an entry."""
    source.init_grid()  # type: ignore[attr-defined]
    rows, columns = source.grid_shape  # type: ignore[attr-defined]
    values = source.grid.reshape(rows, columns)  # type: ignore[attr-defined]
    places = np.searchsorted(source.grid_map, values)  # type: ignore[attr-defined]
    shifts = 16 // columns * np.arange(columns)
    packed: npt.NDArray[np.uint16] = (places << shifts).sum(axis=1).astype(np.uint16)
    return packed


def lines() -> Iterator[str]:
    for name, source in GRIDS.items():
        numbers = entries(source)
        yield f"STRATA_BLOCK_TABLE uint16_t {name}[{len(numbers)}] = {{"
        for begin in range(0, len(numbers), PER_LINE):
            yield "    " + " ".join(f"0x{n:04x}," for n in numbers[begin : begin + PER_LINE])
        yield "};"


def text() -> str:
    return HEAD + "\n".join(lines()) + "\n" + TAIL


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if it is stale")
    args = parser.parse_args(arguments)
    if args.check:
        return int(PATH.read_text() != text())
    PATH.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
