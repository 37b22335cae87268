"""Random weights of any GGUF tensor type: quantised normal values where the `gguf` package has a
quantiser, else random blocks whose scales are finite, so that they decode to ordinary numbers.
"""

from __future__ import annotations

import enum
import math
from typing import TypeAlias, cast

import gguf
import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]


class LaterType(enum.IntEnum):
    """Types of ggml that the `gguf` package does not list yet."""

    Q2_0 = 42  # f16 scale and 16 bytes of 2-bit codes for 64 weights


# The package looks types up by their number, so that one of another enumeration serves as well.
Q2_0 = cast("gguf.GGMLQuantizationType", LaterType.Q2_0)
gguf.GGML_QUANT_SIZES.setdefault(Q2_0, (64, 18))

QUANTISED = frozenset(
    ("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4")
)
INTEGERS = {"i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64}

# Where the f16 scales lie in a block, and what the values' deviation is divided by to get them.
HALF_SCALES: dict[str, dict[int, float]] = {
    "q8_1": {0: 73, 2: 73},
    "q2_k": {80: 8, 82: 8},
    "q3_k": {108: 40},
    "q4_k": {0: 250, 2: 33},
    "q5_k": {0: 500, 2: 32},
    "q6_k": {208: 1350},
    "iq2_xxs": {0: 40},
    "iq2_xs": {0: 40},
    "iq2_s": {0: 40},
    "iq3_xxs": {0: 60},
    "iq3_s": {0: 100},
    "iq1_s": {0: 8},
    "iq4_nl": {0: 70},
    "iq4_xs": {0: 1000},
    "q1_0": {0: 1},
    "q2_0": {0: 1.2},
}


def tensor_type(kind: str) -> gguf.GGMLQuantizationType:
    """The type id of a name as users write it, "iq4_nl". Raises KeyError for no type of files."""
    return Q2_0 if kind == "q2_0" else gguf.GGMLQuantizationType[kind.upper()]


def random_blocks(kind: str, dims: tuple[int, ...], rng: np.random.Generator) -> Bytes:
    """Rows of random blocks, u8 [rows, bytes of a row]. `dims` are (rows, columns), or have more
    axes before them.

    Values have a standard deviation near columns^-0.5 in most formats, and are finite in all.
    """
    columns = dims[-1]
    block, size = gguf.GGML_QUANT_SIZES[tensor_type(kind)]
    if columns % block:
        raise ValueError(f"{columns} columns are no multiple of {block}, the block of {kind}")
    blocks = rng.integers(0, 256, size=(math.prod(dims) // block, size), dtype=np.uint8)
    deviation = float(columns) ** -0.5
    for offset, steps in HALF_SCALES.get(kind, {}).items():
        blocks[:, offset : offset + 2] = np.array([deviation / steps], np.float16).view(np.uint8)
    match kind:
        case "q8_k":  # an f32 scale
            blocks[:, :4] = np.array([deviation / 73], np.float32).view(np.uint8)
        case "iq1_m":  # the f16 scale lies in the high nibbles of the last four u16
            blocks[:, 49::2] &= 0x0F
            blocks[:, 55] |= 0x20
        case "nvfp4":  # four scales of 4 exponent and 3 mantissa bits
            blocks[:, :4] = 0x18
    return blocks.reshape(*dims[:-1], -1)


def random_weight(
    kind: str, dims: tuple[int, ...], scale: float, rng: np.random.Generator
) -> npt.NDArray[np.generic]:
    """A matrix of (rows, columns), or a stack, in the form that GGUFWriter takes: values, or
    bytes of blocks.

    `scale` is the deviation of the values; types without a quantiser have their own.
    """
    if kind in INTEGERS:
        return rng.integers(-3, 4, size=dims).astype(INTEGERS[kind])
    if kind not in QUANTISED and kind not in {"f32", "f64"}:
        return random_blocks(kind, dims, rng)
    values: Floats = (scale * rng.standard_normal(dims)).astype(np.float32)
    return encode(values, kind)


def encode(values: Floats, kind: str) -> npt.NDArray[np.generic]:
    """Values in a type that the `gguf` package can quantise, or in f32 or f64."""
    if kind == "f32":
        return values
    if kind == "f64":
        return values.astype(np.float64)
    return gguf.quants.quantize(values, tensor_type(kind))
