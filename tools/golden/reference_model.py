"""The attention architectures in NumPy, f64: the answer that engine logits are compared with.

Independent of the engine: the `gguf` package parses the file and decodes its tensors, everything
else is the textbook formula, one sequence at a time, all positions at once.

    logits = ReferenceModel("tiny.gguf").logits([1, 2, 3])  # f64 [T, vocab]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tools.block_types import decode
from tools.golden.rope import rope_table

Array = npt.NDArray[np.float64]


def silu(x: Array) -> Array:
    gated: Array = x / (1 + np.exp(-x))
    return gated


class ReferenceModel:
    """`llama`, `qwen3` and `qwen3moe` with every option the engine supports for them."""

    def __init__(self, path: Path | str) -> None:
        reader = gguf.GGUFReader(str(path))
        self._meta = {key: field.contents() for key, field in reader.fields.items()}
        self._architecture = str(self._meta["general.architecture"])
        self._tensors: dict[str, Array] = {}
        for tensor in reader.tensors:
            values = decode(tensor.tensor_type.name.lower(), tensor.data)
            shape = [int(n) for n in reversed(tensor.shape.tolist())]
            self._tensors[tensor.name] = np.asarray(values, dtype=np.float64).reshape(shape)
        self._heads = self._uint("attention.head_count")
        self._kv_heads = self._uint("attention.head_count_kv", self._heads)
        width = self._uint("embedding_length")
        self._head_dim = self._uint("attention.key_length", width // self._heads)
        self._eps = float(self._meta[f"{self._architecture}.attention.layer_norm_rms_epsilon"])
        rope = rope_table(self._meta, self._architecture, self._head_dim)
        factors = self._tensors.get("rope_freqs.weight")
        self._frequencies = rope.frequencies if factors is None else rope.frequencies / factors
        self._magnitude = rope.magnitude

    def _uint(self, name: str, fallback: int | None = None) -> int:
        value = self._meta.get(f"{self._architecture}.{name}", fallback)
        if value is None:
            raise KeyError(f"{self._architecture}.{name}")
        return int(value)

    def _norm(self, x: Array, gain: str) -> Array:
        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + self._eps)
        normed: Array = x * scale * self._tensors[gain + ".weight"]
        return normed

    def _matmul(self, x: Array, name: str) -> Array:
        return x @ self._tensors[name + ".weight"].T + self._tensors.get(name + ".bias", 0.0)

    def _rope(self, x: Array, positions: Array) -> Array:
        """x [T, heads, head_dim]."""
        angles = positions[:, None, None] * self._frequencies
        half = self._frequencies.size
        neox = self._architecture != "llama"
        first = slice(0, half) if neox else slice(0, 2 * half, 2)
        second = slice(half, 2 * half) if neox else slice(1, 2 * half, 2)
        y = x.copy()
        cos, sin = self._magnitude * np.cos(angles), self._magnitude * np.sin(angles)
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., first] * sin + x[..., second] * cos
        return y

    def _attention(self, h: Array, block: str) -> Array:
        rows = h.shape[0]
        q_width, kv_width = self._heads * self._head_dim, self._kv_heads * self._head_dim
        if f"{block}attn_qkv.weight" in self._tensors:
            both = self._matmul(h, f"{block}attn_qkv")
            q, k, v = np.split(both, [q_width, q_width + kv_width], axis=1)
        else:
            q, k, v = (self._matmul(h, f"{block}attn_{part}") for part in "qkv")
        q = q.reshape(rows, self._heads, self._head_dim)
        k = k.reshape(rows, self._kv_heads, self._head_dim)
        v = v.reshape(rows, self._kv_heads, self._head_dim)
        if self._architecture != "llama":
            q = self._norm(q, f"{block}attn_q_norm")
            k = self._norm(k, f"{block}attn_k_norm")
        positions = np.arange(rows, dtype=np.float64)
        q, k = self._rope(q, positions), self._rope(k, positions)
        group = self._heads // self._kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(self._head_dim)
        scores[:, np.triu(np.ones((rows, rows), dtype=bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hts,shd->thd", weights, v).reshape(rows, q_width)
        return self._matmul(mixed, f"{block}attn_output")

    def _swiglu(self, x: Array, names: tuple[str, str, str]) -> Array:
        gate, up, down = names
        return self._matmul(silu(self._matmul(x, gate)) * self._matmul(x, up), down)

    def _expert(self, x: Array, name: str, expert: int) -> Array:
        scale = self._tensors.get(f"{name}.scale")
        out: Array = self._tensors[f"{name}.weight"][expert] @ x
        return out if scale is None else out * scale[expert]

    def _moe(self, h: Array, block: str) -> Array:
        """Row by row: the experts of largest probability, weighted; then the shared one."""
        used = self._uint("expert_used_count")
        scale = float(self._meta.get(f"{self._architecture}.expert_weights_scale", 1.0))
        logits = self._matmul(h, f"{block}ffn_gate_inp")
        out = np.zeros_like(h)
        for row, x in enumerate(h):
            odds = np.exp(logits[row] - logits[row].max())
            odds /= odds.sum()
            chosen = np.argsort(-odds, kind="stable")[:used]
            for expert in chosen:
                if f"{block}ffn_gate_up_exps.weight" in self._tensors:
                    both = self._expert(x, f"{block}ffn_gate_up_exps", expert)
                    gate, up = np.split(both, 2)
                else:
                    gate = self._expert(x, f"{block}ffn_gate_exps", expert)
                    up = self._expert(x, f"{block}ffn_up_exps", expert)
                y = self._expert(silu(gate) * up, f"{block}ffn_down_exps", expert)
                out[row] += scale * odds[expert] / odds[chosen].sum() * y
        if f"{block}ffn_gate_inp_shexp.weight" in self._tensors:
            gate_of_row = h @ self._tensors[f"{block}ffn_gate_inp_shexp.weight"]
            parts = [f"{block}ffn_{part}_shexp" for part in ("gate", "up", "down")]
            shared = self._swiglu(h, (parts[0], parts[1], parts[2]))
            out += shared / (1 + np.exp(-gate_of_row[:, None]))
        return out

    def _feed_forward(self, h: Array, block: str) -> Array:
        if f"{block}ffn_gate_inp.weight" in self._tensors:
            return self._moe(h, block)
        return self._swiglu(h, (f"{block}ffn_gate", f"{block}ffn_up", f"{block}ffn_down"))

    def logits(self, tokens: Sequence[int]) -> Array:
        """All-position logits [T, vocab] of one sequence from position 0."""
        x = self._tensors["token_embd.weight"][np.asarray(tokens)]
        for layer in range(self._uint("block_count")):
            block = f"blk.{layer}."
            x = x + self._attention(self._norm(x, f"{block}attn_norm"), block)
            h = self._norm(x, f"{block}ffn_norm")
            x = x + self._feed_forward(h, block)
        x = self._norm(x, "output_norm")
        return self._matmul(x, "output" if "output.weight" in self._tensors else "token_embd")
