"""Builds GGUF files byte by byte, so that tests can break any single field of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = (
    range(13)
)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def entry(key: bytes | str, kind: int, value: bytes) -> bytes:
    return text(key) + u32(kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    return u32(kind) + u64(count) + values


def tensor(
    name: bytes | str = "t",
    shape: tuple[int, ...] = (4, 2),
    kind: int = 0,
    offset: int = 0,
    dimensions: int | None = None,
) -> bytes:
    count = len(shape) if dimensions is None else dimensions
    return text(name) + u32(count) + b"".join(map(u64, shape)) + u32(kind) + u64(offset)


@dataclass
class GgufBytes:
    """A small valid file; replace a field to break it."""

    magic: bytes = b"GGUF"
    version: int = 3
    entries: list[bytes] = field(
        default_factory=lambda: [
            entry("general.architecture", STRING, text("llama")),
            entry("llama.block_count", UINT32, u32(2)),
        ]
    )
    tensors: list[bytes] = field(default_factory=lambda: [tensor()])
    entry_count: int | None = None
    tensor_count: int | None = None
    data: bytes = bytes(range(32))
    alignment: int = 32

    def header(self) -> bytes:
        entry_count = len(self.entries) if self.entry_count is None else self.entry_count
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        return (
            self.magic
            + u32(self.version)
            + u64(tensor_count)
            + u64(entry_count)
            + b"".join(self.entries)
            + b"".join(self.tensors)
        )

    def build(self) -> bytes:
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data
