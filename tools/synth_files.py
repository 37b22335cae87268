"""Writes one GGUF model as several files: the parts of a split model, or a tensor in a file of its
own. Metadata and tensors are copied byte for byte, so that what is read from the parts must be what
is read from the whole.

    python -m tools.synth_files tiny.gguf out/tiny --parts 3      out/tiny-00001-of-00003.gguf ...
    python -m tools.synth_files tiny.gguf out/tiny --take token_embd.weight
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import gguf

ALIGNMENT = 32
UINT16, UINT32, INT32, STRING = 2, 4, 5, 8


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: int | str) -> bytes:
    """A key-value pair as a file has it; `kind` is the id of its type."""
    if isinstance(value, str):
        return _text(key) + struct.pack("<I", kind) + _text(value)
    code = {UINT16: "<IH", UINT32: "<II", INT32: "<Ii"}[kind]
    return _text(key) + struct.pack(code, kind, value)


def split_pairs(index: int, count: int, tensors: int) -> list[bytes]:
    """What every part of a split model says of itself; `tensors` are those of all parts."""
    return [
        pair("split.no", UINT16, index),
        pair("split.count", UINT16, count),
        pair("split.tensors.count", INT32, tensors),
    ]


class Source:
    """A whole model that parts are taken from."""

    def __init__(self, path: Path | str) -> None:
        self._bytes = Path(path).read_bytes()
        self._tensors = gguf.GGUFReader(str(path)).tensors
        (self._pairs,) = struct.unpack_from("<Q", self._bytes, 16)
        self.names = [tensor.name for tensor in self._tensors]

    def write(
        self, out: Path, names: Sequence[str], pairs: Sequence[bytes], *, metadata: bool
    ) -> Path:
        """The tensors `names`, in the order of the source, with the source's metadata or without,
        and the pairs behind it."""
        chosen = [tensor for tensor in self._tensors if tensor.name in names]
        own = self._bytes[24 : self._tensors[0].field.offset] if metadata else b""
        index, data = b"", b""
        for tensor in chosen:
            begin = int(tensor.data_offset)
            index += _text(tensor.name) + struct.pack("<I", len(tensor.shape))
            index += b"".join(struct.pack("<Q", int(size)) for size in tensor.shape)
            index += struct.pack("<IQ", int(tensor.tensor_type), len(data))
            data += self._bytes[begin : begin + int(tensor.n_bytes)]
            data += bytes(-len(data) % ALIGNMENT)
        count = len(pairs) + (self._pairs if metadata else 0)
        head = b"GGUF" + struct.pack("<IQQ", 3, len(chosen), count)
        head += own + b"".join(pairs) + index
        out.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)
        return out


def shard_path(base: Path | str, index: int, count: int) -> Path:
    return Path(f"{base}-{index + 1:05d}-of-{count:05d}.gguf")


def split_model(source: Path | str, base: Path | str, count: int) -> list[Path]:
    """Writes `source` in `count` parts named after `base`; the last may hold no tensors."""
    whole = Source(source)
    names = whole.names
    size = -(-len(names) // count)
    return [
        whole.write(
            shard_path(base, i, count),
            names[i * size : (i + 1) * size],
            split_pairs(i, count, len(names)),
            metadata=i == 0,
        )
        for i in range(count)
    ]


def take_tensor(source: Path | str, base: Path | str, name: str) -> tuple[Path, Path]:
    """Writes `source` without the tensor, and a file with it alone: (BASE.gguf, BASE-only.gguf)."""
    whole = Source(source)
    rest = [other for other in whole.names if other != name]
    model = whole.write(Path(f"{base}.gguf"), rest, [], metadata=True)
    return model, whole.write(Path(f"{base}-only.gguf"), [name], [], metadata=False)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="write a GGUF model as several files")
    parser.add_argument("source", type=Path)
    parser.add_argument("base", help="what the names of the files begin with")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--parts", type=int, help="parts of a split model")
    what.add_argument("--take", metavar="TENSOR", help="tensor that gets a file of its own")
    args = parser.parse_args(argv)
    if args.parts:
        paths = split_model(args.source, args.base, args.parts)
    else:
        paths = list(take_tensor(args.source, args.base, args.take))
    for path in paths:
        print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
