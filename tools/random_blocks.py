"""Random weights of any GGUF tensor type: quantised normal values where the `gguf` package has a
quantiser, else random blocks whose scales are finite, so that they decode to ordinary numbers.
"""

from __future__ import annotations

import math

import gguf
import numpy as np
import numpy.typing as npt

from tools.block_types import Bytes, Floats, tensor_type

QUANTISED = frozenset(
    ("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4")
)
INTEGERS = {"i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64}

# Where the f16 scales lie in a block, and what the values' deviation is divided by to get them.
HALF_SCALES: dict[str, dict[int, float]] = {
    "q8_1": {0: 73, 2: 73},
    "q2_k": {80: 13, 82: 13},
    "q3_k": {108: 40},
    "q4_k": {0: 250, 2: 33},
    "q5_k": {0: 500, 2: 32},
    "q6_k": {208: 1350},
    "iq2_xxs": {0: 55},
    "iq2_xs": {0: 55},
    "iq2_s": {0: 55},
    "iq3_xxs": {0: 145},
    "iq3_s": {0: 140},
    "iq1_s": {0: 7},
    "iq4_nl": {0: 70},
    "iq4_xs": {0: 1250},
    "q1_0": {0: 1},
    "q2_0": {0: 1.2},
}


def random_blocks(
    kind: str, dims: tuple[int, ...], rng: np.random.Generator, deviation: float = 0.0
) -> Bytes:
    """Rows of random blocks, u8 [rows, bytes of a row]. `dims` are (rows, columns), or have more
    axes before them.

    Values have a standard deviation near `deviation`, columns^-0.5 where it is 0, in most formats,
    and are finite in all.
    """
    columns = dims[-1]
    block, size = gguf.GGML_QUANT_SIZES[tensor_type(kind)]
    if columns % block:
        raise ValueError(f"{columns} columns are no multiple of {block}, the block of {kind}")
    blocks = rng.integers(0, 256, size=(math.prod(dims) // block, size), dtype=np.uint8)
    deviation = deviation or float(columns) ** -0.5
    for offset, steps in HALF_SCALES.get(kind, {}).items():
        blocks[:, offset : offset + 2] = np.array([deviation / steps], np.float16).view(np.uint8)
    match kind:
        case "q8_k":  # an f32 scale
            blocks[:, :4] = np.array([deviation / 73], np.float32).view(np.uint8)
        case "iq1_m":  # the f16 scale lies in the high nibbles of the last four u16
            bits = int(np.float16(deviation / 7).view(np.uint16))
            for i, offset in enumerate(range(49, 57, 2)):
                blocks[:, offset] = blocks[:, offset] & 0x0F | (bits >> 4 * i & 15) << 4
        case "nvfp4":  # four scales of 4 exponent and 3 mantissa bits
            blocks[:, :4] = gguf.quants.NVFP4.fp32_to_ue4m3(np.array([deviation / 2.8]))
    return blocks.reshape(*dims[:-1], -1)


def random_weight(
    kind: str, dims: tuple[int, ...], scale: float, rng: np.random.Generator
) -> npt.NDArray[np.generic]:
    """A matrix of (rows, columns), or a stack, in the form that GGUFWriter takes: values, or
    bytes of blocks.

    `scale` is the deviation of the values, near it in types without a quantiser.
    """
    if kind in INTEGERS:
        return rng.integers(-3, 4, size=dims).astype(INTEGERS[kind])
    if kind not in QUANTISED and kind not in {"f32", "f64"}:
        return random_blocks(kind, dims, rng, scale)
    values: Floats = (scale * rng.standard_normal(dims)).astype(np.float32)
    return encode(values, kind)


def encode(values: Floats, kind: str) -> npt.NDArray[np.generic]:
    """Values in a type that the `gguf` package can quantise, or in f32 or f64.

    Of types without a quantiser, random blocks of the same sizes.
    """
    if kind == "f32":
        return values
    if kind == "f64":
        return values.astype(np.float64)
    if kind not in QUANTISED:
        return random_blocks(kind, values.shape, np.random.default_rng(values.size))
    return gguf.quants.quantize(values, tensor_type(kind))
