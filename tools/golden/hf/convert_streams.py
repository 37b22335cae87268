"""Conversion of qwen4exp: residual streams, a table of n-grams, attention that selects.

- Mixers of the streams have the place of all norms between the blocks, and of the last one.
- The queries and the keys of the index are one projection, the queries' rows first; GGUF has two.
- The table of n-grams is one tensor outside the layers; its hash is metadata of 64 bits.
"""

from __future__ import annotations

import numpy as np

from tools.golden.hf import convert_delta
from tools.golden.hf.convert import (
    Conversion,
    MetaValue,
    Source,
    Tensors,
    Weights,
    Wide,
    mixture,
)

TABLE = "per_layer_token_embd.weight"


def mixer_of_streams(source: Source, weights: Weights, name: str) -> Tensors:
    out = {f"{name}_norm.weight": source.gain(weights, "hc_norm")}
    for part in ("down", "up"):
        out[f"{name}_{part}.weight"] = weights.take(f"input_mix_weight_{part}.weight")
    if weights.has("block_inject_weight.weight"):
        out[f"{name}_inject.weight"] = weights.take("block_inject_weight.weight")
    return out


def index(source: Source, weights: Weights) -> Tensors:
    queries = source.uint("indexer_n_heads") * source.uint("indexer_head_dim")
    q, k = np.split(weights.take("index_qk_proj.weight"), [queries])
    return {
        "indexer.q_proj.weight": q,
        "indexer.k_proj.weight": k,
        "indexer.q_norm.weight": source.gain(weights, "q_layernorm"),
        "indexer.k_norm.weight": source.gain(weights, "k_layernorm"),
    }


def table(source: Source, weights: Weights) -> Tensors:
    """What the layer with the table has of its own; the table itself is taken by end()."""
    out = {f"ple_{part}.weight": weights.take(f"{part}_proj.weight") for part in ("key", "value")}
    for part in ("key", "query", "conv"):
        out[f"ple_norm_{part}.weight"] = source.gain(weights, f"norm_{part}")
    out["ple_conv1d.weight"] = weights.take("conv1d.weight")[:, 0]
    return out


def layer(source: Source, weights: Weights) -> Tensors:
    out: Tensors = {}
    if weights.has("ple.key_proj.weight"):
        out |= table(source, weights.within("ple."))
    out |= mixer_of_streams(source, weights.within("attn_hyper_connection."), "hc_attn")
    if weights.has("self_attn.indexer.index_qk_proj.weight"):
        out |= index(source, weights.within("self_attn.indexer."))
    out |= convert_delta.mixer(source, weights)
    out |= mixer_of_streams(source, weights.within("mlp_hyper_connection."), "hc_ffn")
    return out | mixture(source, weights.within("mlp."))


def layer_of_table(source: Source) -> int:
    """Counted from 0."""
    layers = source.config["ple_layer_ids"]
    assert isinstance(layers, list)
    assert len(layers) == 1
    return int(layers[0]) - 1


def end(source: Source, weights: Weights) -> Tensors:
    out = mixer_of_streams(source, weights.within("hyper_connection_mixer."), "output_hc")
    at = f"layers.{layer_of_table(source)}.ple.ple_embedding.ngram_embedding.weight"
    return out | {TABLE: weights.take(at)}


def sizes_of(source: Source) -> dict[str, MetaValue]:
    kinds = source.config["layer_types"]
    assert isinstance(kinds, list)
    block = source.uint("indexer_compress_ratio")
    hash_at = f"layers.{layer_of_table(source)}.ple.ple_embedding."
    heads = (source.uint("ngram_size") - 1) * source.uint("heads_per_ngram")
    return convert_delta.sizes_of(source) | {
        "hyper_connection.count": source.uint("hc_count"),
        "hyper_connection.low_rank": source.uint("hc_lowrank"),
        "attention.indexer.head_count": source.uint("indexer_n_heads"),
        "attention.indexer.key_length": source.uint("indexer_head_dim"),
        "attention.indexer.top_k": source.uint("indexer_budget"),
        "attention.compress_ratios": [0 if k == "linear_attention" else block for k in kinds],
        "embedding_length_per_layer_input": source.uint("ple_embed_dim") // heads,
        "ple.layers": [layer_of_table(source)],
        "ple.ngram_size": source.uint("ngram_size"),
        "ple.heads_per_ngram": source.uint("heads_per_ngram"),
        "ple.conv_kernel": source.uint("ple_conv_kernel_size"),
        "ple.eos_token_id": source.uint("eos_token_id"),
        "ple.layer_multipliers": Wide(source.integers[f"{hash_at}layer_multipliers"]),
        "ple.head_offsets": Wide(source.integers[f"{hash_at}ngram_heads_offsets"]),
        "ple.head_vocab_sizes": Wide(source.integers[f"{hash_at}ngram_heads_vocab_sizes"]),
    }


CONVERSION = Conversion(layer, end, sizes_of)
