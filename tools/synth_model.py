"""Writes tiny GGUF models with random weights: any architecture the engine knows, any tensor type,
a working byte-level tokenizer and a chat template, so that the whole server runs on a file of
a few hundred kilobytes. Also writes broken files on purpose (missing tensors, wrong shapes,
wrong metadata) for tests of refusals.

    python tools/synth_model.py tiny.gguf --arch qwen3 --type q4_1 --layers 2

Same arguments, same bytes: all weights come from one seed. K-quant blocks are random bits with
scales of the right size (there is no quantiser for them here); the values they decode to are
ordinary weights all the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import gguf
import numpy as np
import numpy.typing as npt

MetaValue: TypeAlias = bool | int | float | str | list[int] | list[float] | list[str]
Floats: TypeAlias = npt.NDArray[np.float32]

ARCHITECTURES = ("llama", "qwen3")
TYPES = ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")

MERGE_LINES = (
    "Ġ t|h e|i n|Ġt he|e r|a n|o n|Ġ a|r e|n d|Ġ s|o u|i s|Ġ w|l l|a t|e n|o r|Ġ o|e s|Ġ c|i t",
    "Ġ b|Ġ f|an d|Ġ m|in g|Ġ p|e d|a l|Ġ h|s t",
)
MERGES = [merge for line in MERGE_LINES for merge in line.split("|")]
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB_MIN = 256 + len(MERGES) + len(SPECIALS)


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


def byte_tokens() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, in byte order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_in = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(stand_in)) for b in range(256)]


def tensor_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes (rows, columns) of every tensor of the model, in file order."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.vocab, shape.width)}
    if not shape.tied:
        tensors["output.weight"] = (shape.vocab, shape.width)
    tensors["output_norm.weight"] = (shape.width,)
    if shape.rope_factors:
        tensors["rope_freqs.weight"] = (shape.head_dim // 2,)
    for i in range(shape.layers):
        block: dict[str, tuple[int, ...]] = {"attn_norm.weight": (shape.width,)}
        parts = {"attn_q": q, "attn_k": kv, "attn_v": kv}
        if shape.fused_qkv:
            parts = {"attn_qkv": q + 2 * kv}
        for name, rows in parts.items():
            block[f"{name}.weight"] = (rows, shape.width)
            if shape.biases:
                block[f"{name}.bias"] = (rows,)
        if shape.architecture == "qwen3":
            block["attn_q_norm.weight"] = (shape.head_dim,)
            block["attn_k_norm.weight"] = (shape.head_dim,)
        block["attn_output.weight"] = (shape.width, q)
        block["ffn_norm.weight"] = (shape.width,)
        block["ffn_gate.weight"] = (shape.ff, shape.width)
        block["ffn_up.weight"] = (shape.ff, shape.width)
        block["ffn_down.weight"] = (shape.width, shape.ff)
        tensors.update({f"blk.{i}.{name}": dims for name, dims in block.items()})
    return tensors


def metadata_of(shape: Shape) -> dict[str, MetaValue]:
    """Metadata of the model and its tokenizer, without general.architecture."""
    a = shape.architecture
    tokens = byte_tokens() + [merge.replace(" ", "") for merge in MERGES] + list(SPECIALS)
    specials_end = len(tokens)
    tokens += [f"[PAD{i}]" for i in range(specials_end, shape.vocab)]
    kinds = [1] * (256 + len(MERGES)) + [3] * len(SPECIALS) + [5] * (shape.vocab - specials_end)
    endoftext = 256 + len(MERGES)
    return {
        "general.name": f"synthetic {a}",
        f"{a}.block_count": shape.layers,
        f"{a}.context_length": shape.context,
        f"{a}.embedding_length": shape.width,
        f"{a}.feed_forward_length": shape.ff,
        f"{a}.attention.head_count": shape.heads,
        f"{a}.attention.head_count_kv": shape.kv_heads,
        f"{a}.attention.key_length": shape.head_dim,
        f"{a}.attention.value_length": shape.head_dim,
        f"{a}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{a}.rope.freq_base": 10000.0,
        f"{a}.rope.dimension_count": shape.head_dim,
        f"{a}.vocab_size": shape.vocab,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm" if a == "llama" else "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": endoftext,
        "tokenizer.ggml.eos_token_id": endoftext + 2,
        "tokenizer.ggml.padding_token_id": endoftext,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _half(value: float, count: int) -> npt.NDArray[np.uint8]:
    return np.full((count, 1), value, dtype=np.float16).view(np.uint8)


def _k_quant(kind: str, rows: int, columns: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Random blocks of 256 whose values have a standard deviation near columns^-0.5."""
    blocks = rows * columns // 256
    deviation = float(columns) ** -0.5

    def bits(count: int) -> npt.NDArray[np.uint8]:
        return rng.integers(0, 256, size=(blocks, count), dtype=np.uint8)

    match kind:
        case "q4_k":  # d, dmin, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles
            d = deviation / 250
            parts = [_half(d, blocks), _half(7.5 * d, blocks), bits(12), bits(128)]
        case "q5_k":  # the same with 32 bytes of fifth bits
            d = deviation / 500
            parts = [_half(d, blocks), _half(15.5 * d, blocks), bits(12), bits(32), bits(128)]
        case "q6_k":  # 128 low nibbles, 64 high bits, 16 int8 scales, d
            parts = [bits(128), bits(64), bits(16), _half(deviation / 1350, blocks)]
        case _:
            raise ValueError(f"{kind} is not a K-quant")
    return np.concatenate(parts, axis=1).reshape(rows, -1)


def _weight(
    name: str, dims: tuple[int, ...], kind: str, rng: np.random.Generator
) -> tuple[npt.NDArray[np.generic], gguf.GGMLQuantizationType]:
    qtype = gguf.GGMLQuantizationType[kind.upper()]
    if len(dims) == 1:
        if name.endswith("norm.weight"):
            values: Floats = (1 + 0.2 * rng.standard_normal(dims)).astype(np.float32)
        elif name == "rope_freqs.weight":
            values = np.linspace(1, 4, dims[0], dtype=np.float32)
        else:
            values = (0.1 * rng.standard_normal(dims)).astype(np.float32)
    elif kind in {"q4_k", "q5_k", "q6_k"}:
        return _k_quant(kind, dims[0], dims[1], rng), qtype
    else:
        scale = 1.0 if name == "token_embd.weight" else dims[1] ** -0.5
        values = (scale * rng.standard_normal(dims)).astype(np.float32)
    if kind == "f32":
        return values, qtype
    return gguf.quants.quantize(values, qtype), qtype


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


def write_model(
    path: Path | str,
    shape: Shape | None = None,
    *,
    kind: str = "f32",
    kinds: Mapping[str, str] | None = None,
    vector_kind: str = "f32",
    seed: int = 1,
    drop: Sequence[str] = (),
    reshape: Mapping[str, tuple[int, ...]] | None = None,
    extra: Mapping[str, tuple[int, ...]] | None = None,
    metadata: Mapping[str, MetaValue | None] | None = None,
    architecture_name: str | None = None,
) -> Path:
    """Writes a model to `path` and returns it.

    kind: tensor type of every matrix; `kinds` overrides it for names that contain the given text
    ({"ffn_down": "q8_0"}). vector_kind: type of norms and biases.
    To make broken files: `drop` leaves tensors out, `reshape` and `extra` give (rows, columns)
    of tensors, `metadata` overrides keys (None leaves one out), and `architecture_name` is what
    general.architecture says.
    """
    shape = shape or Shape()
    if shape.architecture not in ARCHITECTURES:
        raise ValueError(f"architecture {shape.architecture!r} is not one of {ARCHITECTURES}")
    if shape.vocab < VOCAB_MIN:
        raise ValueError(f"vocab {shape.vocab} is less than {VOCAB_MIN}")
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), architecture_name or shape.architecture)
    meta: dict[str, MetaValue | None] = {**metadata_of(shape), **(metadata or {})}
    for key, value in meta.items():
        if value is not None:
            _add_metadata(writer, key, value)
    for name, dims in {**tensor_shapes(shape), **(extra or {})}.items():
        chosen = vector_kind if len(dims) == 1 else kind
        if name == "rope_freqs.weight":
            chosen = "f32"
        chosen = next((v for part, v in (kinds or {}).items() if part in name), chosen)
        # Drawn also when left out, so that the other tensors stay the same.
        data, qtype = _weight(name, (reshape or {}).get(name, dims), chosen, rng)
        if name not in drop:
            writer.add_tensor(name, data, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def main(argv: Sequence[str] | None = None) -> int:
    defaults = Shape()
    parser = argparse.ArgumentParser(description="write a tiny GGUF model with random weights")
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch", choices=ARCHITECTURES, default="llama")
    parser.add_argument("--type", choices=TYPES, default="f32", help="type of the matrices")
    parser.add_argument("--seed", type=int, default=1)
    for name in ("layers", "width", "heads", "kv_heads", "head_dim", "ff", "vocab", "context"):
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=int, default=getattr(defaults, name))
    for name in ("biases", "fused_qkv", "rope_factors"):
        parser.add_argument("--" + name.replace("_", "-"), action="store_true")
    parser.add_argument("--untied", action="store_true", help="a head of its own")
    args = parser.parse_args(argv)
    shape = Shape(
        architecture=args.arch,
        layers=args.layers,
        width=args.width,
        heads=args.heads,
        kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        ff=args.ff,
        vocab=args.vocab,
        context=args.context,
        tied=not args.untied,
        biases=args.biases,
        fused_qkv=args.fused_qkv,
        rope_factors=args.rope_factors,
    )
    write_model(args.out, shape, kind=args.type, seed=args.seed)
    print(f"{args.out}: {args.out.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
