"""Conversion of layers of gated DeltaNet and gated attention: qwen3next, qwen35, qwen35moe.

- Decay rates are stored as -e^A_log, the kernel of the convolution without its middle axis.
- qwen3next has one projection of queries, keys, values and z, its rows by key head; GGUF has all
  queries, all keys and all values in one tensor and z in another. That of beta and alpha stays.
- The others have value heads by key head (head g * ratio + j is the j-th of key head g); GGUF has
  them tiled, that head at j * key heads + g, in every tensor that has them on an axis.
"""

from __future__ import annotations

import numpy as np

from tools.block_types import Floats
from tools.golden.hf.convert import (
    Conversion,
    MetaValue,
    Source,
    Tensors,
    Weights,
    attention,
    dense,
    layer_of,
    mixture,
)


def tiled(values: Floats, key_heads: int, value_heads: int, axis: int = 0) -> Floats:
    """Value heads along `axis`, of any number of elements each, from by-key-head to tiled."""
    shape = values.shape
    ratio = value_heads // key_heads
    heads = values.reshape(*shape[:axis], key_heads, ratio, -1, *shape[axis + 1 :])
    return np.ascontiguousarray(heads.swapaxes(axis, axis + 1)).reshape(shape)


def delta_net(source: Source, weights: Weights) -> Tensors:
    key_heads = source.uint("linear_num_key_heads")
    value_heads = source.uint("linear_num_value_heads")
    dim = source.uint("linear_key_head_dim")
    keys = 2 * key_heads * dim  # queries and keys

    def order(values: Floats, axis: int = 0) -> Floats:
        is_grouped = source.architecture == "qwen3next"
        return values if is_grouped else tiled(values, key_heads, value_heads, axis)

    def order_behind_keys(values: Floats) -> Floats:
        return np.concatenate([values[:keys], order(values[keys:])])

    out: Tensors = {}
    if source.architecture == "qwen3next":
        per_head = weights.take("in_proj_qkvz.weight").reshape(
            key_heads, -1, source.uint("hidden_size")
        )
        values = value_heads // key_heads * dim
        parts = np.split(per_head, np.cumsum([dim, dim, values]), axis=1)
        q, k, v, z = (part.reshape(-1, part.shape[-1]) for part in parts)
        out["attn_qkv.weight"] = np.concatenate([q, k, v])
        out["attn_gate.weight"] = z
        out["ssm_ba.weight"] = weights.take("in_proj_ba.weight")
    else:
        out["attn_qkv.weight"] = order_behind_keys(weights.take("in_proj_qkv.weight"))
        out["attn_gate.weight"] = order(weights.take("in_proj_z.weight"))
        out["ssm_beta.weight"] = order(weights.take("in_proj_b.weight"))
        out["ssm_alpha.weight"] = order(weights.take("in_proj_a.weight"))
    return out | {
        "ssm_conv1d.weight": order_behind_keys(weights.take("conv1d.weight")[:, 0]),
        "ssm_a": order(-np.exp(weights.take("A_log"))),
        "ssm_dt.bias": order(weights.take("dt_bias")),
        "ssm_norm.weight": weights.take("norm.weight"),
        "ssm_out.weight": order(weights.take("out_proj.weight"), axis=1),
    }


def mixer(source: Source, weights: Weights) -> Tensors:
    if weights.has("self_attn.q_proj.weight"):
        return attention(source, weights.within("self_attn."))
    return delta_net(source, weights.within("linear_attn."))


def sizes_of(source: Source) -> dict[str, MetaValue]:
    """Metadata of the recurrent layers, without the architecture's prefix."""
    kinds = source.config["layer_types"]
    assert isinstance(kinds, list)
    is_recurrent = [kind == "linear_attention" for kind in kinds]
    dim = source.uint("linear_key_head_dim")
    sizes: dict[str, MetaValue] = {
        "ssm.conv_kernel": source.uint("linear_conv_kernel_dim"),
        "ssm.state_size": dim,
        "ssm.group_count": source.uint("linear_num_key_heads"),
        "ssm.time_step_rank": source.uint("linear_num_value_heads"),
        "ssm.inner_size": source.uint("linear_num_value_heads") * dim,
    }
    interval = is_recurrent.index(False) + 1
    if is_recurrent == [(i + 1) % interval != 0 for i in range(len(kinds))]:
        sizes["full_attention_interval"] = interval
    else:
        sizes["attention.recurrent_layers"] = is_recurrent
    return sizes


SECOND_NORM = "post_attention_norm.weight"
CONVERSIONS = {
    "qwen3next": Conversion(layer_of(mixer, mixture, SECOND_NORM), sizes=sizes_of),
    "qwen35": Conversion(layer_of(mixer, dense, SECOND_NORM), sizes=sizes_of),
    "qwen35moe": Conversion(layer_of(mixer, mixture, SECOND_NORM), sizes=sizes_of),
}
