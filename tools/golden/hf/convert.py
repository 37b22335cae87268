"""Weights and configuration of a class of `transformers` to tensors and metadata of GGUF.

Own implementation of the published conversion rules, as facts: which tensor becomes which, and

- norms: classes whose gains are written 1 + w (all but those of llama, qwen3 and qwen3moe, and the
  gated one of DeltaNet) get the 1 added;
- llama: rows of queries and keys from halves of a head to adjacent pairs, as its rope has them;
- DeltaNet: see convert_delta.py; experts: gate rows before up rows in one tensor become two.

Every weight must find its place: one that is left over is an error, never dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import gguf
import numpy as np

from tools.block_types import Floats
from tools.golden.hf.cases import Config

Tensors: TypeAlias = dict[str, Floats]

ZERO_CENTRED = frozenset({"qwen3next", "qwen35", "qwen35moe", "qwen4exp"})  # gains are 1 + w
KEPT_F32 = ("ffn_gate_inp.weight", "conv1d.weight")  # of the matrices; the others are f16


@dataclass(frozen=True)
class Wide:
    """A list of unsigned numbers of 64 bits."""

    values: list[int]


MetaValue: TypeAlias = bool | int | float | str | list[int] | list[bool] | Wide


class Weights:
    """Named weights, each of which is taken once."""

    def __init__(self, values: Tensors, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def take(self, name: str) -> Floats:
        return self._values.pop(self._prefix + name)

    def has(self, name: str) -> bool:
        return self._prefix + name in self._values

    def within(self, prefix: str) -> Weights:
        return Weights(self._values, self._prefix + prefix)

    def left(self) -> list[str]:
        return sorted(self._values)


@dataclass
class Model:
    """What a GGUF file holds."""

    architecture: str
    metadata: dict[str, MetaValue]
    tensors: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A model of a class: `config` as its dictionary, `weights` without their leading "model.", and
    what it keeps beside its weights."""

    architecture: str
    config: Config
    weights: Weights
    integers: dict[str, list[int]]

    def uint(self, name: str) -> int:
        return int(str(self.config[name]))

    @property
    def head_dim(self) -> int:
        return int(str(self.config.get("head_dim") or self.uint("hidden_size") // self.heads))

    @property
    def heads(self) -> int:
        return self.uint("num_attention_heads")

    def rope_value(self, name: str, fallback: object = None) -> object:
        parameters = self.config["rope_parameters"]
        assert isinstance(parameters, dict)
        return parameters.get(name, fallback)

    def rope_number(self, name: str, fallback: float = 0.0) -> float:
        return float(str(self.rope_value(name, fallback)))

    def gain(self, weights: Weights, name: str) -> Floats:
        """A norm's gain as GGUF has it."""
        values = weights.take(f"{name}.weight")
        return values + np.float32(1) if self.architecture in ZERO_CENTRED else values


Block: TypeAlias = Callable[[Source, Weights], Tensors]
Sizes: TypeAlias = Callable[[Source], dict[str, MetaValue]]


def linear(weights: Weights, name: str, as_name: str) -> Tensors:
    """A projection with the bias that it may have."""
    out = {f"{as_name}.weight": weights.take(f"{name}.weight")}
    if weights.has(f"{name}.bias"):
        out[f"{as_name}.bias"] = weights.take(f"{name}.bias")
    return out


def adjacent_pairs(values: Floats, heads: int) -> Floats:
    """Rows, or elements of a bias, from (i, i + half) to (2i, 2i + 1) within each head."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def attention(source: Source, weights: Weights) -> Tensors:
    """Plain attention: llama, qwen3, qwen3moe."""
    out: Tensors = {}
    for part in "qkv":
        out |= linear(weights, f"{part}_proj", f"attn_{part}")
    out |= linear(weights, "o_proj", "attn_output")
    if source.architecture == "llama":
        heads = {"attn_q": source.heads, "attn_k": source.uint("num_key_value_heads")}
        for name in list(out):
            tensor, _, _ = name.partition(".")
            if tensor in heads:
                out[name] = adjacent_pairs(out[name], heads[tensor])
    for part in "qk":
        if weights.has(f"{part}_norm.weight"):
            out[f"attn_{part}_norm.weight"] = source.gain(weights, f"{part}_norm")
    return out


def dense(_source: Source, weights: Weights) -> Tensors:
    out: Tensors = {}
    for part in ("gate", "up", "down"):
        out |= linear(weights, f"{part}_proj", f"ffn_{part}")
    return out


def mixture(_source: Source, weights: Weights) -> Tensors:
    """Experts, and the one that every row has where the class has one."""
    gate_up = weights.take("experts.gate_up_proj")
    gate, up = np.split(gate_up, 2, axis=1)
    out = {
        "ffn_gate_inp.weight": weights.take("gate.weight"),
        "ffn_gate_exps.weight": gate,
        "ffn_up_exps.weight": up,
        "ffn_down_exps.weight": weights.take("experts.down_proj"),
    }
    if weights.has("shared_expert_gate.weight"):
        out["ffn_gate_inp_shexp.weight"] = weights.take("shared_expert_gate.weight")[0]
        for part in ("gate", "up", "down"):
            out |= linear(weights, f"shared_expert.{part}_proj", f"ffn_{part}_shexp")
    return out


def layer_of(mixer: Block, feed_forward: Block, second_norm: str) -> Block:
    """A layer of a mixer and a feed-forward part, each behind its norm."""

    def layer(source: Source, weights: Weights) -> Tensors:
        return {
            "attn_norm.weight": source.gain(weights, "input_layernorm"),
            **mixer(source, weights),
            second_norm: source.gain(weights, "post_attention_layernorm"),
            **feed_forward(source, weights.within("mlp.")),
        }

    return layer


def final_norm(source: Source, weights: Weights) -> Tensors:
    return {"output_norm.weight": source.gain(weights, "norm")}


def no_sizes(_source: Source) -> dict[str, MetaValue]:
    return {}


@dataclass(frozen=True)
class Conversion:
    """Of an architecture: a layer, what lies behind the layers, and more metadata."""

    layer: Block
    end: Block = final_norm
    sizes: Sizes = no_sizes


def plain_mixer(source: Source, weights: Weights) -> Tensors:
    return attention(source, weights.within("self_attn."))


def sizes_of(source: Source) -> dict[str, MetaValue]:
    """Metadata that every architecture has, without the architecture's prefix."""
    config = source.config
    sizes: dict[str, MetaValue] = {
        "block_count": source.uint("num_hidden_layers"),
        "context_length": source.uint("max_position_embeddings"),
        "embedding_length": source.uint("hidden_size"),
        "attention.head_count": source.heads,
        "attention.head_count_kv": source.uint("num_key_value_heads"),
        "attention.key_length": source.head_dim,
        "attention.value_length": source.head_dim,
        "attention.layer_norm_rms_epsilon": float(str(config["rms_norm_eps"])),
        "rope.freq_base": source.rope_number("rope_theta"),
        "rope.dimension_count": int(
            source.head_dim * source.rope_number("partial_rotary_factor", 1)
        ),
        "vocab_size": source.uint("vocab_size"),
    }
    if source.rope_value("rope_type") == "linear":
        sizes["rope.scaling.type"] = "linear"
        sizes["rope.scaling.factor"] = source.rope_number("factor")
    sections = source.rope_value("mrope_section")
    if isinstance(sections, list):
        sizes["rope.dimension_sections"] = [*sections, 0]
    for name, key in (
        ("intermediate_size", "feed_forward_length"),
        ("num_experts", "expert_count"),
        ("num_local_experts", "expert_count"),  # the same, as some classes keep it
        ("num_experts_per_tok", "expert_used_count"),
        ("moe_intermediate_size", "expert_feed_forward_length"),
        ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ):
        if config.get(name) is not None:
            sizes[key] = source.uint(name)
    return sizes


def llama3_factors(source: Source) -> Floats:
    """Divisors of the rope's frequencies [dims / 2]: 1 for short waves, `factor` for waves longer
    than the context of before, between them a straight line in the number of waves."""
    dims = source.head_dim
    frequencies = source.rope_number("rope_theta") ** (-np.arange(0, dims, 2) / dims)
    waves = source.rope_number("original_max_position_embeddings") * frequencies / (2 * np.pi)
    low, high = source.rope_number("low_freq_factor"), source.rope_number("high_freq_factor")
    kept = np.clip((waves - low) / (high - low), 0, 1)
    return (1 / (kept + (1 - kept) / source.rope_number("factor"))).astype(np.float32)


def convert(source: Source, conversion: Conversion) -> Model:
    weights = source.weights
    tensors: Tensors = {"token_embd.weight": weights.take("embed_tokens.weight")}
    head = weights.take("lm_head.weight")
    if not source.config["tie_word_embeddings"]:
        tensors["output.weight"] = head
    tensors |= conversion.end(source, weights)
    if source.rope_value("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(source)
    for i in range(source.uint("num_hidden_layers")):
        layer = conversion.layer(source, weights.within(f"layers.{i}."))
        tensors |= {f"blk.{i}.{name}": values for name, values in layer.items()}
    if weights.left():
        raise ValueError(f"weights without a place: {weights.left()}")
    return Model(source.architecture, sizes_of(source) | conversion.sizes(source), tensors)


def write(model: Model, path: Path) -> None:
    """Matrices are f16, of which the caller has made the values; vectors are f32."""
    writer = gguf.GGUFWriter(str(path), model.architecture)
    for name, value in model.metadata.items():
        _add(writer, f"{model.architecture}.{name}", value)
    for name, values in model.tensors.items():
        is_f16 = values.ndim > 1 and not name.endswith(KEPT_F32)
        kept = values.astype(np.float16 if is_f16 else np.float32)
        if not np.array_equal(kept.astype(np.float32), values):
            raise ValueError(f"{name} has values that its type cannot hold")
        writer.add_tensor(name, np.ascontiguousarray(kept))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: MetaValue) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case Wide():
            kinds = gguf.GGUFValueType
            writer.add_key_value(key, value.values, kinds.ARRAY, kinds.UINT64)
        case _:
            writer.add_array(key, value)
