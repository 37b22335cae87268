"""Writes the trained layer as a GGUF file that the engine takes with `--mtp`: matrices in Q8_0,
norms in F32, no weights of the base. It names the base by its hash, for people: the engine tells a
wrong pair by its acceptance (docs/drafts.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from tools.train_mtp.base_file import BaseFile, Floats

NEXTN = ("eh_proj", "enorm", "hnorm", "shared_head_norm")
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def as_stored(array: Floats) -> Floats:
    """The values that are left of `array` in the file."""
    if array.ndim == 1:
        return array
    return np.asarray(gguf.dequantize(gguf.quantize(array, Q8_0), Q8_0), np.float32)


def write_drafter(
    base: BaseFile, arrays: Mapping[str, Floats], out: Path, acceptance: Mapping[str, float]
) -> None:
    """`arrays` as of DraftLayer.arrays(); `acceptance` is written under `nextn.acceptance`."""
    sizes = base.sizes
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_type("model")
    writer.add_name(f"draft layer of {base.path.stem}")
    writer.add_block_count(sizes.layers + 1)
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.width)
    writer.add_feed_forward_length(sizes.ff)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_layer_norm_rms_eps(sizes.eps)
    writer.add_rope_freq_base(sizes.rope_base)
    writer.add_rope_dimension_count(sizes.head_dim)
    writer.add_vocab_size(sizes.vocab)
    writer.add_uint32("llama.nextn_predict_layers", 1)
    writer.add_string("nextn.base_file", base.path.name)
    writer.add_string("nextn.base_sha256", base.sha256())
    writer.add_string("nextn.concat_order", "embedding,hidden")
    writer.add_string("nextn.hidden_state", "after output_norm")
    writer.add_string("nextn.recycled_state", "after shared_head_norm")
    for name, value in acceptance.items():
        writer.add_float32(f"nextn.acceptance.{name}", value)
    for name, array in arrays.items():
        full = f"blk.{sizes.layers}.{'nextn.' if name in NEXTN else ''}{name}.weight"
        if array.ndim == 1:
            writer.add_tensor(full, np.ascontiguousarray(array, np.float32))
        else:
            writer.add_tensor(full, gguf.quantize(array, Q8_0), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
