"""Architectures, sizes, tensors and metadata of the tiny models that synth_model.py writes."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from tools.synth_tokenizer import tokenizer_metadata

MetaValue: TypeAlias = bool | int | float | str | list[int] | list[float] | list[str]

ARCHITECTURES = ("llama", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "qwen4exp")
RECURRENT = ("qwen3next", "qwen35", "qwen35moe")  # gated DeltaNet layers and gated attention
STREAMS = "qwen4exp"  # recurrent, with residual streams in the place of norms, and a table
MOE = ("qwen3moe", "qwen3next", "qwen35moe", STREAMS)  # a mixture of experts in each layer
PRE_TOKENIZERS = {"llama": "smollm"} | dict.fromkeys(("qwen35", "qwen35moe", STREAMS), "qwen35")


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model. `width` must be a multiple of 256 for K-quants, of 32 for other blocks."""

    architecture: str = "llama"
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ff: int = 96
    vocab: int = 320
    context: int = 512
    tied: bool = True  # no output.weight: the embedding table is the head
    biases: bool = False  # biases of q, k and v
    fused_qkv: bool = False  # one attn_qkv tensor
    rope_factors: bool = False  # rope_freqs.weight
    draft_layers: int = 0  # for multi-token prediction, behind the others
    # Of architectures with recurrent layers: every attention_interval-th layer has attention.
    attention_interval: int = 4
    state_size: int = 16
    key_heads: int = 2
    value_heads: int = 4
    taps: int = 4
    fused_ssm_in: bool = False  # one ssm_in tensor, its rows by key head
    rope_dims: int = 0  # 0: the whole head
    # Of architectures with mixtures of experts, whose experts have the place of `ff`.
    experts: int = 8
    experts_used: int = 2
    expert_ff: int = 32
    shared_ff: int = 0  # of the expert that every row has
    fused_gate_up: bool = False  # one ffn_gate_up_exps tensor
    expert_scales: bool = False  # ".scale" of the experts' tensors
    # Of qwen4exp: residual streams, what queries choose among, and the table of n-grams.
    streams: int = 4
    low_rank: int = 32
    index_heads: int = 2
    index_dim: int = 16
    top_k: int = 4096
    ratio: int = 4  # tokens that one index key stands for
    table_layer: int = 1  # negative: no table
    table_tokens: int = 3  # of the longest n-gram
    table_heads: int = 2  # of the n-grams of one length
    table_width: int = 32
    table_size: int = 97  # rows of the first head; each has two more than the one before
    table_taps: int = 4

    @property
    def blocks(self) -> int:
        return self.layers + self.draft_layers

    def is_recurrent(self, layer: int) -> bool:
        if self.architecture not in (*RECURRENT, STREAMS) or layer >= self.layers:
            return False
        return (layer + 1) % self.attention_interval != 0

    @property
    def table_sizes(self) -> list[int]:
        """Rows of each head of the table."""
        heads = (self.table_tokens - 1) * self.table_heads
        return [self.table_size + 2 * head for head in range(heads)]


def delta_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the mixer of a gated DeltaNet layer."""
    values = shape.value_heads * shape.state_size
    channels = 2 * shape.key_heads * shape.state_size + values
    projections = {"attn_qkv.weight": channels, "attn_gate.weight": values}
    if shape.fused_ssm_in:
        projections = {"ssm_in.weight": channels + values}
    if shape.architecture == "qwen3next":
        projections["ssm_ba.weight"] = 2 * shape.value_heads
    else:
        projections["ssm_beta.weight"] = shape.value_heads
        projections["ssm_alpha.weight"] = shape.value_heads
    return {
        **{name: (rows, shape.width) for name, rows in projections.items()},
        "ssm_conv1d.weight": (channels, shape.taps),
        "ssm_a": (shape.value_heads,),
        "ssm_dt.bias": (shape.value_heads,),
        "ssm_norm.weight": (shape.state_size,),
        "ssm_out.weight": (shape.width, values),
    }


def gated_attention_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the mixer of a gated attention layer."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "attn_q.weight": (2 * q, shape.width),
        "attn_k.weight": (kv, shape.width),
        "attn_v.weight": (kv, shape.width),
        "attn_q_norm.weight": (shape.head_dim,),
        "attn_k_norm.weight": (shape.head_dim,),
        "attn_output.weight": (shape.width, q),
    }


def layer_shapes(shape: Shape, layer: int) -> dict[str, tuple[int, ...]]:
    """Names, within their layer, and shapes (rows, columns) of the tensors of one layer."""
    if shape.architecture not in (*RECURRENT, STREAMS):
        return block_shapes(shape)
    mixer = delta_shapes if shape.is_recurrent(layer) else gated_attention_shapes
    if shape.architecture == STREAMS:
        return {
            **connection_shapes(shape, "hc_attn", True),
            **mixer(shape),
            **({} if shape.is_recurrent(layer) else index_shapes(shape)),
            **(table_shapes(shape) if layer == shape.table_layer else {}),
            **connection_shapes(shape, "hc_ffn", True),
            **feed_forward_shapes(shape),
        }
    return {
        "attn_norm.weight": (shape.width,),
        **mixer(shape),
        "post_attention_norm.weight": (shape.width,),
        **feed_forward_shapes(shape),
    }


def connection_shapes(shape: Shape, name: str, has_gates: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a connection of residual streams."""
    wide = shape.streams * shape.width
    tensors: dict[str, tuple[int, ...]] = {
        f"{name}_norm.weight": (wide,),
        f"{name}_down.weight": (shape.low_rank, wide),
        f"{name}_up.weight": (wide, shape.low_rank),
    }
    return tensors | ({f"{name}_inject.weight": (shape.streams, wide)} if has_gates else {})


def index_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what queries of a long context choose by."""
    return {
        "indexer.q_proj.weight": (shape.index_heads * shape.index_dim, shape.width),
        "indexer.k_proj.weight": (shape.index_dim, shape.width),
        "indexer.q_norm.weight": (shape.index_dim,),
        "indexer.k_norm.weight": (shape.index_dim,),
    }


def table_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes, within its layer, of what adds the table of n-grams."""
    wide, read = shape.streams * shape.width, len(shape.table_sizes) * shape.table_width
    return {
        "ple_key.weight": (wide, read),
        "ple_value.weight": (shape.width, read),
        "ple_norm_key.weight": (wide,),
        "ple_norm_query.weight": (wide,),
        "ple_norm_conv.weight": (wide,),
        "ple_conv1d.weight": (wide, shape.table_taps),
    }


def block_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names, within their layer, and shapes (rows, columns) of the tensors of one layer."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    block: dict[str, tuple[int, ...]] = {"attn_norm.weight": (shape.width,)}
    parts = {"attn_q": q, "attn_k": kv, "attn_v": kv}
    if shape.fused_qkv:
        parts = {"attn_qkv": q + 2 * kv}
    for name, rows in parts.items():
        block[f"{name}.weight"] = (rows, shape.width)
        if shape.biases:
            block[f"{name}.bias"] = (rows,)
    if shape.architecture in {"qwen3", "qwen3moe"}:
        block["attn_q_norm.weight"] = (shape.head_dim,)
        block["attn_k_norm.weight"] = (shape.head_dim,)
    block["attn_output.weight"] = (shape.width, q)
    block["ffn_norm.weight"] = (shape.width,)
    return block | feed_forward_shapes(shape)


def feed_forward_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a feed-forward part or of the mixture of experts in its place."""
    if shape.architecture in MOE:
        return moe_shapes(shape)
    return {
        "ffn_gate.weight": (shape.ff, shape.width),
        "ffn_up.weight": (shape.ff, shape.width),
        "ffn_down.weight": (shape.width, shape.ff),
    }


def moe_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes, (experts, rows, columns) of the experts', of a mixture of experts."""
    experts, ff, width = shape.experts, shape.expert_ff, shape.width
    stacks = {"ffn_gate_exps": (experts, ff, width), "ffn_up_exps": (experts, ff, width)}
    if shape.fused_gate_up:
        stacks = {"ffn_gate_up_exps": (experts, 2 * ff, width)}
    stacks["ffn_down_exps"] = (experts, width, ff)
    block: dict[str, tuple[int, ...]] = {"ffn_gate_inp.weight": (experts, width)}
    for name, dims in stacks.items():
        block[f"{name}.weight"] = dims
        if shape.expert_scales:
            block[f"{name}.scale"] = (experts,)
    if shape.shared_ff:
        block["ffn_gate_inp_shexp.weight"] = (width,)
        block["ffn_gate_shexp.weight"] = (shape.shared_ff, width)
        block["ffn_up_shexp.weight"] = (shape.shared_ff, width)
        block["ffn_down_shexp.weight"] = (width, shape.shared_ff)
    return block


def draft_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of the draft layers."""
    has_streams = shape.architecture == STREAMS
    block: dict[str, tuple[int, ...]] = {
        "nextn.eh_proj.weight": (shape.width, 2 * shape.width),
        "nextn.enorm.weight": (shape.width,),
        "nextn.hnorm.weight": (shape.width * (shape.streams if has_streams else 1),),
        **(
            connection_shapes(shape, "nextn.hc_head", False)
            if has_streams
            else {"nextn.shared_head_norm.weight": (shape.width,)}
        ),
        **layer_shapes(shape, shape.layers),
    }
    layers = range(shape.layers, shape.blocks)
    return {f"blk.{i}.{name}": dims for i in layers for name, dims in block.items()}


def tensor_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes (rows, columns) of every tensor of the model, in file order."""
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.vocab, shape.width)}
    if not shape.tied:
        tensors["output.weight"] = (shape.vocab, shape.width)
    if shape.architecture == STREAMS:
        tensors |= connection_shapes(shape, "output_hc", False)
        if shape.table_layer >= 0:
            rows = sum(shape.table_sizes)
            tensors["per_layer_token_embd.weight"] = (rows, shape.table_width)
    else:
        tensors["output_norm.weight"] = (shape.width,)
    if shape.rope_factors:
        tensors["rope_freqs.weight"] = (shape.head_dim // 2,)
    for i in range(shape.layers):
        tensors.update({f"blk.{i}.{name}": dims for name, dims in layer_shapes(shape, i).items()})
    return tensors | draft_shapes(shape)


def sizes_of(shape: Shape) -> dict[str, MetaValue]:
    """Metadata of the model's sizes."""
    a = shape.architecture
    sizes: dict[str, MetaValue] = {
        f"{a}.block_count": shape.blocks,
        f"{a}.context_length": shape.context,
        f"{a}.embedding_length": shape.width,
        f"{a}.feed_forward_length": shape.ff,
        f"{a}.attention.head_count": shape.heads,
        f"{a}.attention.head_count_kv": shape.kv_heads,
        f"{a}.attention.key_length": shape.head_dim,
        f"{a}.attention.value_length": shape.head_dim,
        f"{a}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{a}.rope.freq_base": 10000.0,
        f"{a}.rope.dimension_count": shape.rope_dims or shape.head_dim,
        f"{a}.vocab_size": shape.vocab,
    }
    if a == STREAMS:
        sizes |= stream_sizes_of(shape)
    if a in (*RECURRENT, STREAMS):
        sizes |= {
            f"{a}.full_attention_interval": shape.attention_interval,
            f"{a}.ssm.conv_kernel": shape.taps,
            f"{a}.ssm.state_size": shape.state_size,
            f"{a}.ssm.group_count": shape.key_heads,
            f"{a}.ssm.time_step_rank": shape.value_heads,
            f"{a}.ssm.inner_size": shape.value_heads * shape.state_size,
        }
    if a in MOE:
        sizes[f"{a}.expert_count"] = shape.experts
        sizes[f"{a}.expert_used_count"] = shape.experts_used
        sizes[f"{a}.expert_feed_forward_length"] = shape.expert_ff
        if shape.shared_ff:
            sizes[f"{a}.expert_shared_feed_forward_length"] = shape.shared_ff
    if shape.draft_layers:
        sizes[f"{a}.nextn_predict_layers"] = shape.draft_layers
    return sizes


def stream_sizes_of(shape: Shape) -> dict[str, MetaValue]:
    """Metadata of residual streams, index keys and the table of n-grams."""
    ratios = [0 if shape.is_recurrent(i) else shape.ratio for i in range(shape.layers)]
    sizes: dict[str, MetaValue] = {
        "hyper_connection.count": shape.streams,
        "hyper_connection.low_rank": shape.low_rank,
        "attention.indexer.head_count": shape.index_heads,
        "attention.indexer.key_length": shape.index_dim,
        "attention.indexer.top_k": shape.top_k,
        "attention.compress_ratios": ratios + [0] * shape.draft_layers,
    }
    if shape.table_layer >= 0:
        heads = shape.table_sizes
        sizes |= {
            "ple.layers": [shape.table_layer],
            "ple.ngram_size": shape.table_tokens,
            "ple.heads_per_ngram": shape.table_heads,
            "ple.conv_kernel": shape.table_taps,
            "ple.eos_token_id": shape.vocab - 1,
            "ple.layer_multipliers": [(1 << 44) * 3 + 2 * i + 1 for i in range(shape.table_tokens)],
            "ple.head_offsets": [sum(heads[:i]) for i in range(len(heads))],
            "ple.head_vocab_sizes": heads,
            "embedding_length_per_layer_input": shape.table_width,
        }
    return {f"{shape.architecture}.{name}": value for name, value in sizes.items()}


def metadata_of(shape: Shape) -> dict[str, MetaValue]:
    """Metadata of the model and its tokenizer, without general.architecture."""
    a = shape.architecture
    return {
        "general.name": f"synthetic {a}",
        **sizes_of(shape),
        **tokenizer_metadata(shape.vocab, PRE_TOKENIZERS.get(a, "qwen2")),
    }
