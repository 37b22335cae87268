"""Weights of every type of files for the tests of operations: random blocks with scales that keep
values near 1, and their decoders, which are those of the public `gguf` package.

Q1_0 and Q2_0 have no decoder there; tools/block_types.py has one from the formats' description.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray

from tools import block_types

# Byte offsets of the f16 scales in a block, and the size of a scale that gives weights near 1.
SCALES: dict[str, tuple[tuple[int, ...], float]] = {
    "q4_0": ((0,), 0.1),
    "q4_1": ((0, 2), 0.1),
    "q5_0": ((0,), 0.05),
    "q5_1": ((0, 2), 0.05),
    "q8_0": ((0,), 0.01),
    "q2_k": ((80, 82), 0.03),
    "q3_k": ((108,), 0.01),
    "q4_k": ((0, 2), 0.002),
    "q5_k": ((0, 2), 0.001),
    "q6_k": ((208,), 0.0005),
    "iq1_s": ((0,), 0.1),
    "iq2_xxs": ((0,), 0.008),
    "iq2_xs": ((0,), 0.008),
    "iq2_s": ((0,), 0.008),
    "iq3_xxs": ((0,), 0.003),
    "iq3_s": ((0,), 0.003),
    "iq4_nl": ((0,), 0.01),
    "iq4_xs": ((0,), 0.0005),
    "tq1_0": ((52,), 1.0),
    "tq2_0": ((64,), 0.7),
    "q1_0": ((0,), 0.7),
    "q2_0": ((0,), 0.7),
}
# Block formats whose scales lie otherwise.
OTHER_SCALES = ("iq1_m", "mxfp4", "nvfp4")
BLOCK_FORMATS = (*SCALES, *OTHER_SCALES)


def sizes_of(name: str) -> tuple[int, int]:
    """Weights and bytes of a block."""
    elements, size = GGML_QUANT_SIZES[block_types.tensor_type(name)]
    return elements, size


def put_halves(name: str, blocks: NDArray[np.uint8], halves: tuple[NDArray[Any], ...]) -> None:
    """Writes f16 scales, one array of bits [blocks] for each that the format has."""
    if name == "iq1_m":  # a nibble on top of each of the last four u16
        for i in range(4):
            nibble = (halves[0].astype(np.uint16) >> (4 * i)) & 15
            blocks[:, 49 + 2 * i] = (blocks[:, 49 + 2 * i] & 15) | (nibble << 4).astype(np.uint8)
        return
    for offset, bits in zip(SCALES[name][0], halves, strict=False):
        blocks[:, offset : offset + 2] = bits.astype("<u2").view(np.uint8).reshape(-1, 2)


def random_blocks(rng: np.random.Generator, name: str, count: int) -> NDArray[np.uint8]:
    """[count, bytes of a block] of random codes with scales that keep weights near 1."""
    blocks: NDArray[np.uint8] = rng.integers(0, 256, (count, sizes_of(name)[1]), dtype=np.uint8)
    match name:
        case "mxfp4":  # powers of two from 2^-6 to 2^-2, for codes up to 12
            blocks[:, 0] = rng.integers(122, 127, count, dtype=np.uint8)
        case "nvfp4":  # the same in 4 exponent bits, with mantissas
            blocks[:, :4] = rng.integers(0x10, 0x30, (count, 4), dtype=np.uint8)
        case _:
            scale = SCALES[name][1] if name in SCALES else 0.1
            halves = (rng.standard_normal((2, count)) * scale).astype(np.float16).view(np.uint16)
            put_halves(name, blocks, (halves[0], halves[1]))
    return blocks


def random_weight(rng: np.random.Generator, name: str, n: int, k: int) -> bytes:
    """[n, k] with values near 1, in the file's layout."""
    if name in {"f32", "f16"}:
        return rng.standard_normal((n, k)).astype(np.dtype(f"f{int(name[1:]) // 8}")).tobytes()
    if name == "bf16":
        bits = rng.standard_normal((n, k)).astype(np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16).tobytes()
    return random_blocks(rng, name, n * k // sizes_of(name)[0]).tobytes()


def decode_f32(name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[rows, k] f32 of rows of bytes in the file's layout."""
    return block_types.decode(name, raw)


def decode(name: str, data: bytes, rows: int) -> NDArray[np.float64]:
    """[rows, k] f64 of a weight in its file's layout."""
    raw = np.frombuffer(data, dtype=np.uint8).reshape(rows, -1)
    return decode_f32(name, raw).astype(np.float64)
