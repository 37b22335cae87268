"""The models: sizes that differ from those of tests/data/oracle and from each other where an error
would hide in equal ones. Configuration values are those of the classes of `transformers`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Config: TypeAlias = dict[str, object]

VOCAB = 96
EOS = 1
PROMPTS = {"short": 11, "long": 71}  # tokens of each


@dataclass(frozen=True, slots=True)
class Case:
    """`config` is set over BASE and what the architecture has in DEFAULTS."""

    name: str
    architecture: str  # of GGUF
    seed: int
    config: Config = field(default_factory=dict)
    eos_at: tuple[int, ...] = ()  # positions of the long prompt that hold EOS

    @property
    def values(self) -> Config:
        return {**BASE, **DEFAULTS.get(self.architecture, {}), **self.config}


BASE: Config = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": EOS,
    "pad_token_id": None,
}


def rope(base: float, **more: object) -> Config:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base, **more}}


def sections(base: float, part: float, *sizes: int) -> Config:
    """Rope of which each frequency has the position of time, height or width, by turns."""
    return rope(base, partial_rotary_factor=part, mrope_interleaved=True, mrope_section=list(sizes))


def attention(heads: int, kv_heads: int, head_dim: int) -> Config:
    return {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}


def delta(key_heads: int, value_heads: int, head_dim: int, taps: int = 4) -> Config:
    return {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": head_dim,
        "linear_value_head_dim": head_dim,
        "linear_conv_kernel_dim": taps,
    }


def every_third_attends(layers: int) -> Config:
    kinds = ["linear_attention", "linear_attention", "full_attention"]
    return {"num_hidden_layers": layers, "layer_types": [kinds[i % 3] for i in range(layers)]}


def experts(count: int, used: int, ff: int, shared_ff: int = 0) -> Config:
    config: Config = {
        "num_experts": count,
        "num_experts_per_tok": used,
        "moe_intermediate_size": ff,
    }
    return config | ({"shared_expert_intermediate_size": shared_ff} if shared_ff else {})


DEFAULTS: dict[str, Config] = {
    "llama": {"num_hidden_layers": 3, **rope(1e4)},
    "qwen3": {"num_hidden_layers": 3, **rope(1e6)},
    "qwen3moe": {"num_hidden_layers": 2, "norm_topk_prob": True, **rope(1e6)},
    "qwen3next": {
        **every_third_attends(3),
        "norm_topk_prob": True,
        **rope(1e7, partial_rotary_factor=0.25),
    },
    "qwen35": {"num_hidden_layers": 4, "intermediate_size": 56, **sections(1e7, 0.5, 3, 3, 2)},
    "qwen4exp": {
        **every_third_attends(3),
        **sections(1e7, 0.5, 3, 3, 2),
        "norm_topk_prob": True,
        "output_gate_type": "sigmoid",
        "ple_conv_kernel_size": 4,
        "ngram_vocab_size_base": 40,
        "make_ngram_vocab_size_divisible_by": 16,
        "split_ngram_parts": 2,
    },
    "qwen35moe": {**every_third_attends(3), **sections(1e7, 0.5, 3, 3, 2)},
}


def streams(count: int, low_rank: int) -> Config:
    return {"hc_count": count, "hc_lowrank": low_rank}


def ngrams(tokens: int, heads: int, width: int, layer: int) -> Config:
    """A table before `layer`, counted from 1, whose rows for one token have `width` together."""
    return {
        "ngram_size": tokens,
        "heads_per_ngram": heads,
        "ple_embed_dim": width,
        "ple_layer_ids": [layer],
    }


def index(heads: int, head_dim: int, tokens: int, block: int = 4) -> Config:
    """Queries attend to `tokens` in blocks of `block`."""
    return {
        "indexer_n_heads": heads,
        "indexer_kv_heads": 1,
        "indexer_head_dim": head_dim,
        "indexer_budget": tokens,
        "indexer_compress_ratio": block,
    }


TIED: Config = {"tie_word_embeddings": True}
LLAMA3 = rope(
    5e5,
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
ATTENTION_FIRST: Config = {  # no interval gives this; GGUF names the recurrent layers
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "linear_attention", "linear_attention"],
}

CASES: tuple[Case, ...] = (
    Case("llama-tied", "llama", 101, attention(6, 2, 8) | TIED | {"intermediate_size": 80}),
    Case(
        "llama-biases",
        "llama",
        102,
        attention(4, 4, 32) | LLAMA3 | {"attention_bias": True, "intermediate_size": 72},
    ),
    Case(
        "llama-linear-rope",
        "llama",
        103,
        attention(3, 1, 16) | rope(1e4, rope_type="linear", factor=4.0) | {"intermediate_size": 40},
    ),
    Case("qwen3-tied", "qwen3", 111, attention(4, 2, 32) | TIED | {"intermediate_size": 96}),
    Case("qwen3-one-kv-head", "qwen3", 112, attention(6, 1, 16) | {"intermediate_size": 88}),
    Case("qwen3moe-top1", "qwen3moe", 121, attention(4, 2, 16) | experts(5, 1, 48)),
    Case("qwen3moe-top2", "qwen3moe", 122, attention(4, 1, 32) | experts(7, 2, 24) | TIED),
    Case("qwen3moe-top10", "qwen3moe", 123, attention(2, 2, 16) | experts(18, 10, 16)),
    Case(
        "qwen3next-ratio2-top1",
        "qwen3next",
        131,
        attention(4, 2, 32) | delta(2, 4, 16) | experts(5, 1, 16, 24),
    ),
    Case(
        "qwen3next-ratio3-top10",
        "qwen3next",
        132,
        attention(3, 1, 32) | delta(2, 6, 16) | experts(12, 10, 8, 24) | TIED,
    ),
    Case(
        "qwen3next-ratio4-top2",
        "qwen3next",
        133,
        attention(2, 2, 16) | delta(1, 4, 32, taps=3) | experts(6, 2, 16, 32) | ATTENTION_FIRST,
    ),
    Case("qwen35-ratio2", "qwen35", 141, attention(4, 2, 32) | delta(3, 6, 16)),
    Case("qwen35-ratio3", "qwen35", 144, attention(3, 1, 32) | delta(2, 6, 16) | TIED),
    Case(
        "qwen35-ratio4",
        "qwen35",
        143,
        attention(2, 1, 32)
        | delta(2, 8, 16, taps=2)
        | ATTENTION_FIRST
        | sections(1e6, 1.0, 6, 5, 5),
    ),
    Case(
        "qwen35moe-ratio2-top10",
        "qwen35moe",
        151,
        attention(4, 1, 32) | delta(2, 4, 16) | experts(13, 10, 8, 24) | TIED,
    ),
    Case(
        "qwen35moe-ratio3-top1",
        "qwen35moe",
        152,
        attention(2, 2, 32) | delta(2, 6, 16) | experts(4, 1, 24, 40),
    ),
    Case(
        "qwen35moe-ratio4-top2",
        "qwen35moe",
        153,
        attention(3, 1, 32) | delta(2, 8, 16) | experts(6, 2, 16, 12),
    ),
    Case(
        "qwen4exp-two-streams",
        "qwen4exp",
        161,
        attention(2, 1, 32)
        | delta(2, 4, 16)
        | experts(4, 1, 16, 24)
        | streams(2, 12)
        | ngrams(2, 3, 48, 2)
        | index(2, 16, 128),
        eos_at=(1, 20, 21, 40),
    ),
    Case(
        "qwen4exp-four-streams",
        "qwen4exp",
        162,
        attention(3, 1, 32)
        | delta(2, 6, 16)
        | experts(5, 2, 8, 16)
        | streams(4, 8)
        | ngrams(3, 2, 40, 1)
        | index(3, 32, 128),
        eos_at=(0, 7, 30, 31, 33),
    ),
    Case(
        "qwen4exp-selected",
        "qwen4exp",
        160,
        attention(4, 2, 16)
        | delta(1, 2, 16)
        | experts(4, 2, 8, 8)
        | streams(2, 8)
        | ngrams(3, 1, 32, 2)
        | index(5, 16, 12),
    ),
    Case(
        "qwen4exp-selected-four-streams",
        "qwen4exp",
        160,
        attention(2, 2, 32)
        | delta(2, 4, 16)
        | experts(3, 2, 8, 16)
        | streams(4, 8)
        | ngrams(2, 2, 24, 1)
        | index(4, 16, 32, block=8),
    ),
)
