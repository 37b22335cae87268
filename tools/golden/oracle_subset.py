"""Reduces the logits of the tiny oracle models to what tests/model compares with.

    python tools/golden/oracle_subset.py tiny-llama.npz tests/data/oracle/tiny-llama.npz

Input: arrays `<prompt>.tokens` int32 [T] and `<prompt>.logits_np_f64` f64 [T, vocab] of several
prompts (tests/data/oracle/README.md says where they come from). Output: the same prompts as
`<prompt>.tokens` and `<prompt>.logits`, rounded to f32 (an error below 2e-6 at these sizes).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

SUFFIX = ".logits_np_f64"


def main() -> int:
    parser = argparse.ArgumentParser(description="reduce oracle logits to what tests compare with")
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    kept: dict[str, np.ndarray] = {}
    with np.load(args.source) as source:
        prompts = [name.removesuffix(SUFFIX) for name in source if name.endswith(SUFFIX)]
        for prompt in prompts:
            if f"{prompt}.tokens" not in source:  # continuations without their prompt
                continue
            kept[f"{prompt}.tokens"] = source[f"{prompt}.tokens"]
            kept[f"{prompt}.logits"] = source[prompt + SUFFIX].astype(np.float32)
    np.savez_compressed(args.out, allow_pickle=False, **kept)
    print(f"{args.out}: {', '.join(sorted(kept))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
