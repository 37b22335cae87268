"""Types of GGUF tensors, also those that the `gguf` package does not list or decode yet.

Importing this module lets the package read and write files with them.
"""

from __future__ import annotations

import enum
from typing import Any, TypeAlias, cast

import gguf
import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]

FLOATS = ("f32", "f16", "bf16")
# Block formats of files.
BLOCKS = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs"),
    *("q1_0", "q2_0", "tq1_0", "tq2_0", "mxfp4", "nvfp4"),
)


class LaterType(enum.IntEnum):
    """Types of ggml that the `gguf` package does not list yet."""

    Q2_0 = 42  # f16 scale and 16 bytes of 2-bit codes for 64 weights


# The package looks types up by their number, so that one of another enumeration serves as well.
Q2_0 = cast("gguf.GGMLQuantizationType", LaterType.Q2_0)
gguf.GGML_QUANT_SIZES.setdefault(Q2_0, (64, 18))
gguf.GGMLQuantizationType._value2member_map_.setdefault(LaterType.Q2_0.value, LaterType.Q2_0)


def tensor_type(kind: str) -> gguf.GGMLQuantizationType:
    """The type id of a name as users write it, "iq4_nl". Raises KeyError for no type of files."""
    return Q2_0 if kind == "q2_0" else gguf.GGMLQuantizationType[kind.upper()]


def _decode_codes(bits: int, size: int, data: Bytes) -> Floats:
    """An f16 scale, then codes of 1 or 2 bits, the first in the lowest bits of the first byte.

    Codes of 1 bit are a sign of the scale, minus for 0; of 2 bits -1, 0, 1 or 2 times the scale.
    """
    blocks = data.reshape(*data.shape[:-1], -1, size)
    scales = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float32)
    planes = np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little")
    codes = planes.reshape(*planes.shape[:-1], -1, bits).astype(np.int32) @ (1 << np.arange(bits))
    values = 2 * codes - 1 if bits == 1 else codes - 1
    return (scales * values.astype(np.float32)).reshape(*data.shape[:-1], -1)


def decode(kind: str, data: npt.NDArray[Any]) -> Floats:
    """Values [..., k] of rows of bytes, or of floats, as the file has them.

    By the `gguf` package; q1_0 and q2_0, which it does not decode, from ggml's description of them.
    """
    if kind in {"q1_0", "q2_0"}:
        return _decode_codes(int(kind[1]), gguf.GGML_QUANT_SIZES[tensor_type(kind)][1], data)
    return gguf.quants.dequantize(data, tensor_type(kind))
