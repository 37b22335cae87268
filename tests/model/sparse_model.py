"""Model files of any size that take no disk: a whole header, and a hole for the weights."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np

from tools.synth_model import add_metadata
from tools.synth_shapes import Shape, metadata_of, tensor_shapes

ALIGNMENT = 32
# Sizes as of a dense model of some 70 thousand million parameters: 80 layers and a draft layer,
# more than 700 tensors.
LARGE = Shape(
    layers=80,
    width=8192,
    heads=64,
    kv_heads=8,
    head_dim=128,
    ff=28672,
    vocab=128256,
    context=131072,
    tied=False,
    draft_layers=1,
)


def padded(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def write_sparse_model(
    path: Path, shape: Shape = LARGE, kinds: tuple[str, ...] = ("q8_0",)
) -> Path:
    """A model whose weights are a hole; matrices take the `kinds` in turn, vectors are f32."""
    writer = gguf.GGUFWriter(str(path), shape.architecture)
    for key, value in metadata_of(shape).items():
        add_metadata(writer, key, value)
    total = 0
    for i, (name, dims) in enumerate(tensor_shapes(shape).items()):
        is_matrix = len(dims) > 1 and dims[-1] >= 32  # rows of a convolution are shorter
        kind = kinds[i % len(kinds)] if is_matrix else "f32"
        qtype = gguf.GGMLQuantizationType[kind.upper()]
        block, size = gguf.GGML_QUANT_SIZES[qtype]
        nbytes = int(np.prod(dims)) // block * size
        byte_dims = (*dims[:-1], dims[-1] // block * size)
        is_bytes = kind not in {"f32", "f16"}
        writer.add_tensor_info(
            name,
            byte_dims if is_bytes else dims,
            np.dtype(np.uint8 if is_bytes else kind.replace("f", "float")),
            nbytes,
            qtype,
        )
        total += padded(nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, padded(path.stat().st_size) + total)
    return path
