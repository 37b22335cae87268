"""Model files of any size that take no disk: a whole header, and a hole for the weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
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


# Sizes as published of Qwen3.8-Flash-Next: some 125 thousand million parameters, and 51 in the
# table of n-grams.
FLASH_NEXT = Shape(
    architecture="qwen4exp",
    layers=48,
    draft_layers=1,
    width=2560,
    heads=24,
    kv_heads=2,
    head_dim=256,
    rope_dims=64,
    vocab=248320,
    context=262144,
    tied=False,
    state_size=128,
    key_heads=16,
    value_heads=48,
    experts=512,
    experts_used=10,
    expert_ff=640,
    shared_ff=640,
    low_rank=320,
    index_heads=4,
    index_dim=128,
    top_k=2048,
    table_heads=8,
    table_width=160,
    table_size=20_000_003,
)
# Types of its tensors in files with 4-bit experts.
FLASH_NEXT_KINDS = {
    "per_layer_token_embd": "iq4_nl",
    "ffn_gate_inp": "f32",
    "inject": "f32",
    "ssm_alpha": "f32",
    "ssm_beta": "f32",
    "indexer": "bf16",
    "ffn_down_exps": "q4_0",
    "_exps": "q4_k",
}


def write_sparse_model(
    path: Path,
    shape: Shape = LARGE,
    kinds: tuple[str, ...] = ("q8_0",),
    kind_of: Mapping[str, str] | None = None,
) -> Path:
    """A model whose weights are a hole; matrices take the `kinds` in turn, or the type of the first
    text of `kind_of` that is in their name; vectors are f32."""
    writer = gguf.GGUFWriter(str(path), shape.architecture)
    for key, value in metadata_of(shape).items():
        add_metadata(writer, key, value)
    total = 0
    for i, (name, dims) in enumerate(tensor_shapes(shape).items()):
        is_matrix = len(dims) > 1 and dims[-1] >= 32  # rows of a convolution are shorter
        own = (kind for part, kind in (kind_of or {}).items() if part in name)
        kind = next(own, kinds[i % len(kinds)]) if is_matrix else "f32"
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
