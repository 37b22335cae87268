"""Model files of architecture qwen4exp for tests."""

from __future__ import annotations

import struct
from pathlib import Path

TOP_K = "qwen4exp.attention.indexer.top_k"
UINT32 = 4  # type of a value in GGUF files


def with_top_k(source: Path, target: Path, top_k: int) -> Path:
    """A copy of a file whose queries choose among `top_k` tokens."""
    data = bytearray(source.read_bytes())
    key = TOP_K.encode() + struct.pack("<I", UINT32)
    at = data.index(key) + len(key)
    data[at : at + 4] = struct.pack("<I", top_k)
    target.write_bytes(data)
    return target
