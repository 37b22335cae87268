"""Frequencies of rope in float64, as metadata scales them: plain, linear or YaRN. The formula of
YaRN is that of its paper (arXiv 2309.00071); checked against transformers by
tests/data/rope/vectors.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class RopeTable:
    frequencies: npt.NDArray[np.float64]  # [dims / 2]
    magnitude: float = 1.0


def rope_table(meta: Mapping[str, Any], architecture: str, head_dim: int) -> RopeTable:
    """`meta` as in the file. Scaling that is not known raises ValueError."""

    def value(name: str, fallback: float) -> float:
        return float(meta.get(f"{architecture}.rope.{name}", fallback))

    dims = int(value("dimension_count", head_dim))
    base = value("freq_base", 10000.0)
    own = base ** (-2.0 * np.arange(dims // 2) / dims)
    factor = value("scaling.factor", value("scale_linear", 1.0))
    kind = meta.get(f"{architecture}.rope.scaling.type", "linear")
    magnitude = value("scaling.attn_factor", 1.0)
    if kind in {"none", "linear"}:
        return RopeTable(own if kind == "none" else own / factor, magnitude)
    if kind != "yarn":
        raise ValueError(f"rope.scaling.type {kind!r}")
    trained = value(
        "scaling.original_context_length", float(meta[f"{architecture}.context_length"])
    )

    def pair(turns: float) -> float:  # the one that turns so often within the trained context
        return dims * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair(value("scaling.yarn_beta_fast", 32.0))), 0)
    high = min(math.ceil(pair(value("scaling.yarn_beta_slow", 1.0))), dims - 1)
    slope = max(high - low, 0.001)
    kept = 1 - np.clip((np.arange(dims // 2) - low) / slope, 0, 1)
    ext = value("scaling.yarn_ext_factor", -1.0)
    if ext == 0:  # no YaRN at all
        return RopeTable(own / factor, magnitude)
    kept *= 1.0 if ext < 0 else ext
    attention = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return RopeTable(own / factor * (1 - kept) + own * kept, magnitude * attention)
