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

import gguf
import numpy as np
import numpy.typing as npt

from tools.block_types import BLOCKS, FLOATS, Floats, tensor_type
from tools.random_blocks import encode, random_weight
from tools.synth_shapes import (
    ARCHITECTURES,
    MetaValue,
    Shape,
    draft_shapes,
    metadata_of,
    sizes_of,
    tensor_shapes,
)
from tools.synth_tokenizer import VOCAB_MIN

TYPES = (*FLOATS, *BLOCKS)

QUIET = np.float32(0.02)  # what predictable layers are damped by, in the norms of their input
QUIET_NORMS = (
    "attn_norm.weight",
    "ffn_norm.weight",
    "post_attention_norm.weight",
    "ple_norm_conv.weight",
    "ssm_norm.weight",
)


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
        if predictable and name.endswith("ple_value.weight"):
            scale *= float(QUIET)
        return random_weight(kind, dims, scale, rng)
    if name.endswith("norm.weight") or ".ple_norm_" in name:
        values: Floats = (1 + 0.2 * rng.standard_normal(dims)).astype(np.float32)
        if predictable and name.endswith(QUIET_NORMS):
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


def add_metadata(writer: gguf.GGUFWriter, key: str, value: MetaValue) -> None:
    """Adds one key in the type that files have it in."""
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
        case [*numbers] if any(isinstance(n, int) and n >= 1 << 31 for n in numbers):
            writer.add_key_value(
                key, value, gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.UINT64
            )
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
            add_metadata(writer, key, value)
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
        if name.endswith("conv1d.weight"):  # rows of a few values have no blocks
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
    parser = argparse.ArgumentParser(description="write a tiny GGUF model with random weights")
    parser.add_argument("out", type=Path)
    parser.add_argument("--architecture", "--arch", choices=ARCHITECTURES, default="llama")
    parser.add_argument("--type", choices=TYPES, default="f32", help="type of the matrices")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rope-scaling", choices=("none", "linear", "yarn"), default="none")
    parser.add_argument("--rope-factor", type=float, default=4.0, help="of --rope-scaling")
    parser.add_argument("--untied", dest="tied", action="store_false", help="a head of its own")
    for field in dataclasses.fields(Shape):  # sizes are numbers, everything else is a switch
        flag = "--" + field.name.replace("_", "-")
        if type(field.default) is int:
            parser.add_argument(flag, type=int, default=field.default)
        elif field.default is False:
            parser.add_argument(flag, action="store_true")
    args = parser.parse_args(argv)
    shape = Shape(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Shape)})
    scaling: dict[str, MetaValue | None] = {}
    if args.rope_scaling != "none":
        scaling = {
            f"{args.architecture}.rope.scaling.type": args.rope_scaling,
            f"{args.architecture}.rope.scaling.factor": args.rope_factor,
            f"{args.architecture}.rope.scaling.original_context_length": args.context,
            f"{args.architecture}.context_length": int(args.context * args.rope_factor),
        }
    write_model(args.out, shape, kind=args.type, seed=args.seed, metadata=scaling)
    print(f"{args.out}: {args.out.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
