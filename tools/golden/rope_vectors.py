"""Writes tests/data/rope/vectors.json: frequencies and magnitudes of rope as transformers computes
them (5.23.0, torch 2.13.0), for metadata that says the same.

    python -m tools.golden.rope_vectors tests/data/rope/vectors.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CASES: list[dict[str, Any]] = [
    {"kind": "linear", "dims": 32, "base": 10000.0, "factor": 4.0, "trained": 512},
    {"kind": "yarn", "dims": 128, "base": 1e6, "factor": 4.0, "trained": 32768},
    {"kind": "yarn", "dims": 64, "base": 1e7, "factor": 4.0, "trained": 262144},
    {"kind": "yarn", "dims": 32, "base": 10000.0, "factor": 16.0, "trained": 256},
    {"kind": "yarn", "dims": 64, "base": 500000.0, "factor": 40.0, "trained": 4096,
     "beta_fast": 16.0, "beta_slow": 2.0},
    {"kind": "yarn", "dims": 16, "base": 10000.0, "factor": 2.0, "trained": 64},
]  # fmt: skip


def vector(case: dict[str, Any]) -> dict[str, Any]:
    from transformers import LlamaConfig  # noqa: PLC0415
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: PLC0415

    parameters = {"rope_type": case["kind"], "rope_theta": case["base"], "factor": case["factor"]}
    if case["kind"] == "yarn":
        parameters["original_max_position_embeddings"] = case["trained"]
    parameters |= {key: case[key] for key in ("beta_fast", "beta_slow") if key in case}
    config = LlamaConfig(
        hidden_size=4 * case["dims"],
        num_attention_heads=4,
        head_dim=case["dims"],
        max_position_embeddings=int(case["trained"] * case["factor"]),
        rope_parameters=parameters,
    )
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[case["kind"]](config, "cpu")
    return {**case, "frequencies": frequencies.tolist(), "magnitude": float(magnitude)}


def main() -> int:
    out = Path(sys.argv[1])
    out.write_text(json.dumps([vector(case) for case in CASES], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
