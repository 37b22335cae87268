"""The architectures with gated DeltaNet layers in NumPy, f64: what engine logits are compared with.

Independent of the engine, as reference_model.py. Formulas: the published models' code. Token by
token; all positions of one sequence at once otherwise.

    logits = RecurrentReference("tiny.gguf").logits([1, 2, 3])  # f64 [T, vocab]
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tools.golden.reference_model import Array, ReferenceModel

L2_EPS = 1e-6


def sigmoid(x: Array) -> Array:
    out: Array = 1 / (1 + np.exp(-x))
    return out


class RecurrentReference(ReferenceModel):
    """`qwen35`: value heads tiled over key heads, SwiGlu feed-forward parts."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self._key_heads = self._uint("ssm.group_count")
        self._value_heads = self._uint("ssm.time_step_rank")
        self._state = self._uint("ssm.state_size")
        self._interval = self._uint("full_attention_interval", 4)

    def _rotate(self, x: Array) -> Array:
        """x [T, heads, head_dim]: the first rope dims, halves paired."""
        half = self._frequencies.size
        angles = np.arange(len(x))[:, None, None] * self._frequencies
        y = x.copy()
        first, second = x[..., :half], x[..., half : 2 * half]
        y[..., :half] = first * np.cos(angles) - second * np.sin(angles)
        y[..., half : 2 * half] = first * np.sin(angles) + second * np.cos(angles)
        return y

    def _gated_attention(self, h: Array, block: str) -> Array:
        rows, dim = len(h), self._head_dim
        both = self._matmul(h, f"{block}attn_q").reshape(rows, self._heads, 2 * dim)
        k = self._matmul(h, f"{block}attn_k").reshape(rows, self._kv_heads, dim)
        v = self._matmul(h, f"{block}attn_v").reshape(rows, self._kv_heads, dim)
        q = self._rotate(self._norm(both[..., :dim], f"{block}attn_q_norm"))
        k = self._rotate(self._norm(k, f"{block}attn_k_norm"))
        group = self._heads // self._kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(dim)
        scores[:, np.triu(np.ones((rows, rows), dtype=bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hts,shd->thd", weights, v) * sigmoid(both[..., dim:])
        return self._matmul(mixed.reshape(rows, -1), f"{block}attn_output")

    def _delta_net(self, h: Array, block: str) -> Array:
        rows, dim, heads = len(h), self._state, self._value_heads
        u = self._matmul(h, f"{block}attn_qkv")
        z = self._matmul(h, f"{block}attn_gate").reshape(rows, heads, dim)
        taps = self._tensors[f"{block}ssm_conv1d.weight"]
        padded = np.concatenate([np.zeros((taps.shape[1] - 1, u.shape[1])), u])
        c = sum(padded[j : j + rows] * taps[:, j] for j in range(taps.shape[1]))
        c = np.asarray(c * sigmoid(np.asarray(c)))
        keys = self._key_heads * dim
        of_key = np.arange(heads) % self._key_heads
        units = c[:, : 2 * keys].reshape(rows, 2, self._key_heads, dim)
        units = units / np.sqrt((units**2).sum(-1, keepdims=True) + L2_EPS)
        q, k = units[:, 0][:, of_key] / np.sqrt(dim), units[:, 1][:, of_key]
        v = c[:, 2 * keys :].reshape(rows, heads, dim)
        alpha = self._matmul(h, f"{block}ssm_alpha") + self._tensors[f"{block}ssm_dt.bias"]
        decay = np.exp(self._tensors[f"{block}ssm_a"] * np.logaddexp(0, alpha))
        step = sigmoid(self._matmul(h, f"{block}ssm_beta"))
        state = np.zeros((heads, dim, dim))
        out = np.empty((rows, heads, dim))
        for t in range(rows):
            state *= decay[t][:, None, None]
            delta = step[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state += k[t][:, :, None] * delta[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
        y = self._norm(out, f"{block}ssm_norm") * z * sigmoid(z)
        return self._matmul(y.reshape(rows, -1), f"{block}ssm_out")

    def logits(self, tokens: object) -> Array:
        """All-position logits [T, vocab] of one sequence from position 0."""
        x = self._tensors["token_embd.weight"][np.asarray(tokens)]
        layers = self._uint("block_count") - self._uint("nextn_predict_layers", 0)
        for layer in range(layers):
            block = f"blk.{layer}."
            has_attention = (layer + 1) % self._interval == 0
            mixer = self._gated_attention if has_attention else self._delta_net
            x = x + mixer(self._norm(x, f"{block}attn_norm"), block)
            h = self._norm(x, f"{block}post_attention_norm")
            gate, up = self._matmul(h, f"{block}ffn_gate"), self._matmul(h, f"{block}ffn_up")
            x = x + self._matmul(gate * sigmoid(gate) * up, f"{block}ffn_down")
        x = self._norm(x, "output_norm")
        return self._matmul(x, "output" if "output.weight" in self._tensors else "token_embd")
