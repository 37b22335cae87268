"""The base model's GGUF file as arrays and sizes, and the order of rows that rope asks for.

Only plain `llama` files are taken: what the networks here do not compute (rope factors, biases,
experts) is refused, as a layer trained without it would draft for another model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import gguf
import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NORMS = ("attn_norm", "ffn_norm")
GLOBALS = ("token_embd.weight", "output_norm.weight", "output.weight")


class BaseFileError(Exception):
    """The file cannot be the base of a draft layer made here."""


@dataclass(frozen=True, slots=True)
class Sizes:
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    vocab: int
    context: int
    eps: float
    rope_base: float


@dataclass(frozen=True, slots=True)
class BaseFile:
    """`weights`: f32 arrays by GGUF name; matrices [rows, columns], rows in the file's order."""

    path: Path
    sizes: Sizes
    weights: Mapping[str, Floats]

    def layer(self, index: int, name: str) -> Floats:
        return self.weights[f"blk.{index}.{name}.weight"]

    @property
    def head(self) -> Floats:
        """[vocab, width]; the embedding table where the file has no head of its own."""
        return self.weights.get("output.weight", self.weights["token_embd.weight"])

    def sha256(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def read_base(path: Path) -> BaseFile:
    """Raises BaseFileError for a file whose model is not computed here."""
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError) as error:
        raise BaseFileError(f"{path.name} is not a whole GGUF file: {error}") from error

    def value(key: str, default: float | None = None) -> float:
        field = reader.get_field(f"llama.{key}")
        if field is None and default is None:
            raise BaseFileError(f"{path.name}: llama.{key} is missing")
        return float(default or 0) if field is None else float(field.contents())

    architecture = reader.get_field("general.architecture")
    name = None if architecture is None else architecture.contents()
    if name != "llama":
        raise BaseFileError(f"{path.name}: architecture {name}; this tool trains for llama")
    width, heads = int(value("embedding_length")), int(value("attention.head_count"))
    # Copies: F32 tensors would be views of the mapped file, which PyTorch does not take.
    weights = {t.name: np.array(gguf.dequantize(t.data, t.tensor_type)) for t in reader.tensors}
    sizes = Sizes(
        layers=int(value("block_count")) - int(value("nextn_predict_layers", 0)),
        width=width,
        heads=heads,
        kv_heads=int(value("attention.head_count_kv", heads)),
        head_dim=int(value("attention.key_length", width // heads)),
        ff=int(value("feed_forward_length")),
        vocab=len(weights["token_embd.weight"]),
        context=int(value("context_length")),
        eps=value("attention.layer_norm_rms_epsilon"),
        rope_base=value("rope.freq_base", 10000.0),
    )
    known = set(GLOBALS)
    known |= {f"blk.{i}.{n}.weight" for i in range(sizes.layers) for n in MATRICES + NORMS}
    extra = {n for n in weights if not n.startswith(f"blk.{sizes.layers}.")} - known
    missing = known - set(weights) - {"output.weight"}
    if extra or missing:
        raise BaseFileError(
            f"{path.name}: not computed here: {sorted(extra)[:4]}; missing: {sorted(missing)[:4]}"
        )
    if reader.get_field("llama.rope.scaling.type") is not None:
        raise BaseFileError(f"{path.name}: rope scaling is not computed here")
    return BaseFile(path, sizes, weights)


def half_split(rows: Floats, heads: int) -> Floats:
    """Rows of q or k as the networks take them: the two values of a rotation lie half a head apart.

    `rows` [heads * head_dim, columns] as `llama` files have them, where they are neighbours.
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def neighbours(rows: Floats, heads: int) -> Floats:
    """The inverse of half_split."""
    halves = rows.reshape(heads, 2, -1, rows.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))
