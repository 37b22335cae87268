"""Reduces the logits of the tiny oracle models to what tests/model compares with.

    python tools/golden/oracle_subset.py tiny-llama.npz tests/data/oracle/tiny-llama.npz

Input: arrays `<prompt>.tokens` int32 [T] and `<prompt>.logits_np_f64` f64 [T, vocab] of several
prompts (tests/data/oracle/README.md says where they come from). Output: the same prompts as
`<prompt>.tokens` and `<prompt>.logits`, rounded to f32 (an error below 2e-6 at these sizes); of
models with a draft layer also its rows over the prompt, `<prompt>.draft_rows` [T, vocab], and a
chain of drafts behind it, `<prompt>.draft_logits` [drafts, vocab], from token `draft_first` on;
`.whole` where the hidden state was normed as a whole and not by stream.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

SUFFIX = ".logits_np_f64"
DRAFTS = {
    "mtp_catchup": "draft_rows",
    "mtp_draft_logits": "draft_logits",
    "mtp_catchup.hnorm_whole": "draft_rows.whole",
    "mtp_draft_logits.hnorm_whole": "draft_logits.whole",
}


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
            for name, kept_as in DRAFTS.items():
                if f"{prompt}.{name}" in source:
                    values = source[f"{prompt}.{name}"].astype(np.float32)
                    kept[f"{prompt}.{kept_as}"] = values
        if "t_last" in source:
            kept["draft_first"] = source["t_last"]
    np.savez_compressed(args.out, allow_pickle=False, **kept)
    print(f"{args.out}: {', '.join(sorted(kept))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
