"""The architectures with gated DeltaNet layers in NumPy, f64: what engine logits are compared with.

Independent of the engine, as reference_model.py. Formulas: the published models' code. Token by
token; all positions of one sequence at once otherwise.

    logits = RecurrentReference("tiny.gguf").logits([1, 2, 3])  # f64 [T, vocab]

`draft` is the draft layer, where the file has one: row p takes token p and the hidden state of
position p - 1, so a chain of drafts is the same call with the drafted rows behind the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tools.golden.reference_model import Array, ReferenceModel

L2_EPS = 1e-6


def sigmoid(x: Array) -> Array:
    out: Array = 1 / (1 + np.exp(-x))
    return out


class RecurrentReference(ReferenceModel):
    """`qwen3next`, whose value head j has key head j // (value heads / key heads); `qwen35` and
    `qwen35moe`, where it has key head j % key heads."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self._key_heads = self._uint("ssm.group_count")
        self._value_heads = self._uint("ssm.time_step_rank")
        self._state = self._uint("ssm.state_size")
        self._interval = self._uint("full_attention_interval", 4)
        self._grouped_heads = self._architecture == "qwen3next"
        self._layers = self._uint("block_count") - self._uint("nextn_predict_layers", 0)

    def use_grouped_heads(self, grouped: bool) -> None:
        """Against the architecture, for tests of whether it matters."""
        self._grouped_heads = grouped

    def _rotate(self, x: Array) -> Array:
        """x [T, heads, head_dim]: the first rope dims, halves paired."""
        half = self._frequencies.size
        angles = np.arange(len(x))[:, None, None] * self._frequencies
        cos, sin = self._magnitude * np.cos(angles), self._magnitude * np.sin(angles)
        y = x.copy()
        first, second = x[..., :half], x[..., half : 2 * half]
        y[..., :half] = first * cos - second * sin
        y[..., half : 2 * half] = first * sin + second * cos
        return y

    def _visible(self, h: Array, _block: str) -> npt.NDArray[np.bool_]:
        """Whether a row attends to a position, [T, T]."""
        return np.tril(np.ones((len(h), len(h)), dtype=bool))

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
        scores[:, ~self._visible(h, block)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hts,shd->thd", weights, v) * sigmoid(both[..., dim:])
        return self._matmul(mixed.reshape(rows, -1), f"{block}attn_output")

    def _output_gate(self, z: Array) -> Array:
        return z * sigmoid(z)

    def _projections(self, h: Array, block: str) -> tuple[Array, Array]:
        """What the convolution takes, [T, channels], and z, [T, value heads * state size]."""
        if f"{block}ssm_in.weight" not in self._tensors:
            return self._matmul(h, f"{block}attn_qkv"), self._matmul(h, f"{block}attn_gate")
        rows, dim = len(h), self._state
        values = self._value_heads // self._key_heads * dim
        of_key = self._matmul(h, f"{block}ssm_in").reshape(rows, self._key_heads, -1)
        parts = np.split(of_key, [dim, 2 * dim, 2 * dim + values], axis=2)
        q, k, v, z = (part.reshape(rows, -1) for part in parts)
        return np.concatenate([q, k, v], axis=1), z

    def _alpha_beta(self, h: Array, block: str) -> tuple[Array, Array]:
        """Projections of decays and steps, [T, value heads] each."""
        if f"{block}ssm_ba.weight" not in self._tensors:
            return self._matmul(h, f"{block}ssm_alpha"), self._matmul(h, f"{block}ssm_beta")
        both = self._matmul(h, f"{block}ssm_ba").reshape(len(h), self._key_heads, 2, -1)
        return both[:, :, 1].reshape(len(h), -1), both[:, :, 0].reshape(len(h), -1)

    def _delta_net(self, h: Array, block: str) -> Array:
        rows, dim, heads = len(h), self._state, self._value_heads
        u, z = self._projections(h, block)
        z = z.reshape(rows, heads, dim)
        taps = self._tensors[f"{block}ssm_conv1d.weight"]
        padded = np.concatenate([np.zeros((taps.shape[1] - 1, u.shape[1])), u])
        c = sum(padded[j : j + rows] * taps[:, j] for j in range(taps.shape[1]))
        c = np.asarray(c * sigmoid(np.asarray(c)))
        keys = self._key_heads * dim
        ratio = heads // self._key_heads
        places = np.arange(heads)
        of_key = places // ratio if self._grouped_heads else places % self._key_heads
        units = c[:, : 2 * keys].reshape(rows, 2, self._key_heads, dim)
        units = units / np.sqrt((units**2).sum(-1, keepdims=True) + L2_EPS)
        q, k = units[:, 0][:, of_key] / np.sqrt(dim), units[:, 1][:, of_key]
        v = c[:, 2 * keys :].reshape(rows, heads, dim)
        alpha, beta = self._alpha_beta(h, block)
        alpha = alpha + self._tensors[f"{block}ssm_dt.bias"]
        decay = np.exp(self._tensors[f"{block}ssm_a"] * np.logaddexp(0, alpha))
        step = sigmoid(beta)
        state = np.zeros((heads, dim, dim))
        out = np.empty((rows, heads, dim))
        for t in range(rows):
            state *= decay[t][:, None, None]
            delta = step[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state += k[t][:, :, None] * delta[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
        y = self._norm(out, f"{block}ssm_norm") * self._output_gate(z)
        return self._matmul(y.reshape(rows, -1), f"{block}ssm_out")

    def _layer(self, x: Array, layer: int) -> Array:
        block = f"blk.{layer}."
        is_draft = layer >= self._layers
        has_attention = is_draft or (layer + 1) % self._interval == 0
        mixer = self._gated_attention if has_attention else self._delta_net
        x = x + mixer(self._norm(x, f"{block}attn_norm"), block)
        return x + self._feed_forward(self._norm(x, f"{block}post_attention_norm"), block)

    def _head(self, hidden: Array) -> Array:
        return self._matmul(hidden, "output" if "output.weight" in self._tensors else "token_embd")

    def hidden(self, tokens: Sequence[int]) -> Array:
        """What the output head reads at all positions of one sequence, [T, width]."""
        x = self._tensors["token_embd.weight"][np.asarray(tokens)]
        for layer in range(self._layers):
            x = self._layer(x, layer)
        return self._norm(x, "output_norm")

    def logits(self, tokens: Sequence[int]) -> Array:
        """All-position logits [T, vocab] of one sequence from position 0."""
        return self._head(self.hidden(tokens))

    def draft(self, tokens: Sequence[int], hidden: Array) -> tuple[Array, Array]:
        """Logits [T, vocab] and hidden states [T, width] of the draft layer from position 0;
        `hidden` [T, width] are those of the positions before, zeros first."""
        block = f"blk.{self._layers}."
        token = self._tensors["token_embd.weight"][np.asarray(tokens)]
        parts = [
            self._norm(token, f"{block}nextn.enorm"),
            self._norm(hidden, f"{block}nextn.hnorm"),
        ]
        x = self._matmul(np.concatenate(parts, axis=1), f"{block}nextn.eh_proj")
        own = f"{block}nextn.shared_head_norm"
        is_own = f"{own}.weight" in self._tensors
        out = self._norm(self._layer(x, self._layers), own if is_own else "output_norm")
        return self._head(out), out
