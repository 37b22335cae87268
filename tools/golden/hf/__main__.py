"""Writes the models and their logits.

python -m tools.golden.hf tests/data/transformers          # all of them
python -m tools.golden.hf OUT qwen35-ratio2 llama-tied     # some
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tools.golden.hf.build import MARGIN_MIN, NOISE_MAX, build
from tools.golden.hf.cases import CASES, Case
from tools.golden.hf.convert import write

BYTES_MAX = 300_000  # of a file that is committed


def write_golden(case: Case, folder: Path) -> None:
    golden = build(case)
    if golden.noise > NOISE_MAX:
        raise ValueError(f"{case.name}: the class differs from itself by {golden.noise:.1e}")
    if golden.margin < MARGIN_MIN:
        raise ValueError(f"{case.name}: a choice of blocks is as close as {golden.margin:.1e}")
    path = folder / f"{case.name}.gguf"
    write(golden.model, path)
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    arrays |= {f"{name}.tokens": ids for name, ids in golden.tokens.items()}
    arrays |= {f"{name}.logits": values for name, values in golden.logits.items()}
    np.savez_compressed(path.with_suffix(".npz"), allow_pickle=False, **arrays)
    if path.stat().st_size > BYTES_MAX:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; allowed are {BYTES_MAX}")
    size = path.stat().st_size + path.with_suffix(".npz").stat().st_size
    largest = max(float(np.abs(values).max()) for values in golden.logits.values())
    found = f"noise {golden.noise:.1e}, margin {golden.margin:.1e}"
    print(f"{case.name}: {size} bytes, logits to {largest:.1f}, {found}")


def main() -> int:
    parser = argparse.ArgumentParser(description="golden logits from classes of transformers")
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="cases; none: all")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if not args.names or case.name in args.names:
            write_golden(case, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
