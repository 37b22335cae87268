"""Writes tiny GGUF models with random weights: any architecture the engine knows, any tensor type,
a working byte-level tokenizer and a chat template, so that the whole server runs on a file of
a few hundred kilobytes. Also writes broken files on purpose (missing tensors, wrong shapes,
wrong metadata) for tests of refusals.

    python -m tools.synth_model tiny.gguf --arch qwen3 --type q4_1 --layers 2

A model can bring a draft layer for multi-token prediction, and write_drafter() writes one as a file
of its own. Same arguments, same bytes: all weights come from one seed, those of the draft layer
last, so that a model is the same with and without one. Random layers agree on nothing, so a drafter
is never right; `predictable` makes models whose next token the drafter mostly guesses.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import gguf
import numpy as np
import numpy.typing as npt

from tools.random_blocks import Floats, encode, random_weight, tensor_type
from tools.synth_tokenizer import VOCAB_MIN, tokenizer_metadata

MetaValue: TypeAlias = bool | int | float | str | list[int] | list[float] | list[str]

ARCHITECTURES = ("llama", "qwen3", "qwen3moe", "qwen35")
RECURRENT = ("qwen35",)  # with gated DeltaNet layers and gated attention
MOE = frozenset({"qwen3moe"})  # architectures with a mixture of experts in each layer
TYPES = ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")

QUIET = np.float32(0.02)  # what predictable layers are damped by


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
    rope_dims: int = 0  # 0: the whole head
    # Of architectures with mixtures of experts, whose experts have the place of `ff`.
    experts: int = 8
    experts_used: int = 2
    expert_ff: int = 32
    shared_ff: int = 0  # of the expert that every row has
    fused_gate_up: bool = False  # one ffn_gate_up_exps tensor
    expert_scales: bool = False  # ".scale" of the experts' tensors

    @property
    def blocks(self) -> int:
        return self.layers + self.draft_layers

    def is_recurrent(self, layer: int) -> bool:
        if self.architecture not in RECURRENT or layer >= self.layers:
            return False
        return (layer + 1) % self.attention_interval != 0


def delta_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the mixer of a gated DeltaNet layer."""
    values = shape.value_heads * shape.state_size
    channels = 2 * shape.key_heads * shape.state_size + values
    return {
        "attn_qkv.weight": (channels, shape.width),
        "attn_gate.weight": (values, shape.width),
        "ssm_beta.weight": (shape.value_heads, shape.width),
        "ssm_alpha.weight": (shape.value_heads, shape.width),
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
    if shape.architecture not in RECURRENT:
        return block_shapes(shape)
    mixer = delta_shapes if shape.is_recurrent(layer) else gated_attention_shapes
    return {
        "attn_norm.weight": (shape.width,),
        **mixer(shape),
        "post_attention_norm.weight": (shape.width,),
        "ffn_gate.weight": (shape.ff, shape.width),
        "ffn_up.weight": (shape.ff, shape.width),
        "ffn_down.weight": (shape.width, shape.ff),
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
    return block | (moe_shapes(shape) if shape.architecture in MOE else dense_shapes(shape))


def dense_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a dense feed-forward part."""
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
    block: dict[str, tuple[int, ...]] = {
        "nextn.eh_proj.weight": (shape.width, 2 * shape.width),
        "nextn.enorm.weight": (shape.width,),
        "nextn.hnorm.weight": (shape.width,),
        "nextn.shared_head_norm.weight": (shape.width,),
        **layer_shapes(shape, shape.layers),
    }
    layers = range(shape.layers, shape.blocks)
    return {f"blk.{i}.{name}": dims for i in layers for name, dims in block.items()}


def tensor_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes (rows, columns) of every tensor of the model, in file order."""
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.vocab, shape.width)}
    if not shape.tied:
        tensors["output.weight"] = (shape.vocab, shape.width)
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
    if a in RECURRENT:
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


def metadata_of(shape: Shape) -> dict[str, MetaValue]:
    """Metadata of the model and its tokenizer, without general.architecture."""
    a = shape.architecture
    return {
        "general.name": f"synthetic {a}",
        **sizes_of(shape),
        **tokenizer_metadata(shape.vocab, {"llama": "smollm", "qwen35": "qwen35"}.get(a, "qwen2")),
    }


def _weight(
    name: str, dims: tuple[int, ...], kind: str, rng: np.random.Generator, predictable: bool
) -> npt.NDArray[np.generic]:
    if predictable and name.endswith("eh_proj.weight"):
        # The token alone decides: its half of the input passes.
        mixed: Floats = (0.02 * rng.standard_normal(dims)).astype(np.float32)
        mixed[:, : dims[0]] += np.eye(dims[0], dtype=np.float32)
        return encode(mixed, kind)
    if len(dims) > 1:
        scale = 1.0 if name == "token_embd.weight" else dims[-1] ** -0.5
        return random_weight(kind, dims, scale, rng)
    if name.endswith("norm.weight"):
        values: Floats = (1 + 0.2 * rng.standard_normal(dims)).astype(np.float32)
        if predictable and name.endswith(("attn_norm.weight", "ffn_norm.weight")):
            values *= QUIET  # layers add little to the token's embedding
    elif name.endswith("ssm_a"):  # decays between about 0.5 and 0.99 a token
        values = -np.exp(rng.uniform(-4, 0, dims)).astype(np.float32)
    elif name.endswith(".scale"):
        values = rng.uniform(0.5, 1.5, dims).astype(np.float32)
    elif name == "rope_freqs.weight":
        values = np.linspace(1, 4, dims[0], dtype=np.float32)
    else:
        values = (0.1 * rng.standard_normal(dims)).astype(np.float32)
    return encode(values, kind)


def _add_metadata(writer: gguf.GGUFWriter, key: str, value: MetaValue) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int() if value < 0:
            writer.add_int32(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _write(
    path: Path | str,
    *,
    architecture: str,
    metadata: Mapping[str, MetaValue | None],
    shapes: Mapping[str, tuple[int, ...]],
    kind_of: Callable[[str], str],
    seed: int,
    drop: Sequence[str],
    reshape: Mapping[str, tuple[int, ...]],
    predictable: bool,
) -> Path:
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in metadata.items():
        if value is not None:
            _add_metadata(writer, key, value)
    for name, dims in shapes.items():
        # Drawn also when left out, so that the other tensors stay the same.
        data = _weight(name, reshape.get(name, dims), kind_of(name), rng, predictable)
        if name not in drop:
            writer.add_tensor(name, data, raw_dtype=tensor_type(kind_of(name)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def _override(name: str, kinds: Mapping[str, str] | None, otherwise: str) -> str:
    return next((kind for part, kind in (kinds or {}).items() if part in name), otherwise)


def write_model(
    path: Path | str,
    shape: Shape | None = None,
    *,
    kind: str = "f32",
    kinds: Mapping[str, str] | None = None,
    draft_kinds: Mapping[str, str] | None = None,
    vector_kind: str = "f32",
    seed: int = 1,
    drop: Sequence[str] = (),
    reshape: Mapping[str, tuple[int, ...]] | None = None,
    predictable: bool = False,
    extra: Mapping[str, tuple[int, ...]] | None = None,
    metadata: Mapping[str, MetaValue | None] | None = None,
    architecture_name: str | None = None,
) -> Path:
    """Writes a model to `path` and returns it.

    kind: tensor type of every matrix, any type of GGUF files; `kinds` overrides it for names that
    contain the given text ({"ffn_down": "q8_0"}), `draft_kinds` in the draft layers only.
    vector_kind: type of norms and biases.
    predictable: the next token follows from the last one, and the draft layer knows it; eh_proj
    needs a type that the `gguf` package can quantise.
    To make broken files: `drop` leaves tensors out, `reshape` and `extra` give (rows, columns)
    of tensors, `metadata` overrides keys (None leaves one out), and `architecture_name` is what
    general.architecture says.
    """
    shape = shape or Shape()
    if shape.architecture not in ARCHITECTURES:
        raise ValueError(f"architecture {shape.architecture!r} is not one of {ARCHITECTURES}")
    if shape.vocab < VOCAB_MIN:
        raise ValueError(f"vocab {shape.vocab} is less than {VOCAB_MIN}")
    shapes = {**tensor_shapes(shape), **(extra or {})}
    drafts = draft_shapes(shape)

    def kind_of(name: str) -> str:
        chosen = vector_kind if len(shapes[name]) == 1 else kind
        if name.endswith("ssm_conv1d.weight"):  # rows of a few values have no blocks
            return vector_kind
        is_f32 = name == "rope_freqs.weight" or "ffn_gate_inp" in name  # as in all files
        chosen = _override(name, kinds, "f32" if is_f32 else chosen)
        return _override(name, draft_kinds, chosen) if name in drafts else chosen

    return _write(
        path,
        architecture=architecture_name or shape.architecture,
        metadata={**metadata_of(shape), **(metadata or {})},
        shapes=shapes,
        kind_of=kind_of,
        seed=seed,
        drop=drop,
        reshape=reshape or {},
        predictable=predictable,
    )


def write_drafter(
    path: Path | str,
    shape: Shape,
    *,
    kind: str = "f32",
    kinds: Mapping[str, str] | None = None,
    seed: int = 1,
    drop: Sequence[str] = (),
    reshape: Mapping[str, tuple[int, ...]] | None = None,
    predictable: bool = False,
    metadata: Mapping[str, MetaValue | None] | None = None,
) -> Path:
    """Writes a draft layer for a model of `shape` (draft_layers counts as 1) as a file of its own.

    It has no tokenizer and no tensors of the model. Arguments as for write_model.
    """
    shape = dataclasses.replace(shape, draft_layers=1)
    shapes = draft_shapes(shape)
    sizes: dict[str, MetaValue | None] = {"general.name": f"synthetic {shape.architecture} drafter"}

    def kind_of(name: str) -> str:
        return _override(name, kinds, "f32" if len(shapes[name]) == 1 else kind)

    return _write(
        path,
        architecture=shape.architecture,
        metadata={**sizes, **sizes_of(shape), **(metadata or {})},
        shapes=shapes,
        kind_of=kind_of,
        seed=seed,
        drop=drop,
        reshape=reshape or {},
        predictable=predictable,
    )


def main(argv: Sequence[str] | None = None) -> int:
    defaults = Shape()
    parser = argparse.ArgumentParser(description="write a tiny GGUF model with random weights")
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch", choices=ARCHITECTURES, default="llama")
    parser.add_argument("--type", choices=TYPES, default="f32", help="type of the matrices")
    parser.add_argument("--seed", type=int, default=1)
    dense = ("layers", "width", "heads", "kv_heads", "head_dim", "ff", "vocab", "context")
    delta = ("attention_interval", "state_size", "key_heads", "value_heads", "taps", "rope_dims")
    sizes = (*dense, *delta)
    moe = ("experts", "experts_used", "expert_ff", "shared_ff")
    for name in (*sizes, "draft_layers", *moe):
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=int, default=getattr(defaults, name))
    switches = ("biases", "fused_qkv", "rope_factors", "fused_gate_up", "expert_scales")
    for name in switches:
        parser.add_argument("--" + name.replace("_", "-"), action="store_true")
    parser.add_argument("--untied", action="store_true", help="a head of its own")
    args = parser.parse_args(argv)
    options = (*switches, "draft_layers", *sizes, *moe)
    shape = Shape(
        architecture=args.arch,
        tied=not args.untied,
        **{name: getattr(args, name) for name in options},
    )
    write_model(args.out, shape, kind=args.type, seed=args.seed)
    print(f"{args.out}: {args.out.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
