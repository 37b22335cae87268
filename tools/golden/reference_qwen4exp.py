"""Architecture `qwen4exp` in NumPy, f64: what engine logits are compared with.

Independent of the engine, as reference_model.py. Formulas: the published model's code.

    logits = Qwen4ExpReference("tiny.gguf").logits([1, 2, 3])  # f64 [T, vocab]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tools.golden.reference_model import Array
from tools.golden.reference_recurrent import RecurrentReference, sigmoid

WORD = (1 << 64) - 1


class Qwen4ExpReference(RecurrentReference):
    """Residual streams, a table of n-grams, DeltaNet gated by sigmoids, mixtures of experts."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self._streams = self._uint("hyper_connection.count")

    def _output_gate(self, z: Array) -> Array:
        return sigmoid(z)

    def _visible(self, h: Array, block: str) -> npt.NDArray[np.bool_]:
        """Blocks that index keys make a row choose, and the tokens behind the last block."""
        seen = super()._visible(h, block)
        layer = int(block.split(".")[1])
        ratio = 0 if layer >= self._layers else self._list("attention.compress_ratios")[layer]
        if ratio == 0:
            return seen
        used = self._uint("attention.indexer.top_k") // ratio
        dim = self._uint("attention.indexer.key_length")
        blocks = len(h) // ratio
        raw = self._matmul(h, f"{block}indexer.k_proj")[: blocks * ratio]
        means = raw.reshape(blocks, ratio, dim).mean(axis=1)
        keys = self._turn(self._norm(means, f"{block}indexer.k_norm"), np.arange(blocks) * ratio)
        q = self._matmul(h, f"{block}indexer.q_proj").reshape(len(h), -1, dim)
        q = self._norm(q, f"{block}indexer.q_norm")
        for row in range(len(h)):
            complete = (row + 1) // ratio
            if complete <= used:
                continue
            turned = self._turn(q[row], np.full(q.shape[1], row))
            scores = np.maximum(0, keys[:complete] @ turned.T).sum(axis=1)
            chosen = np.argsort(-scores, kind="stable")[:used]
            seen[row, : complete * ratio] = np.repeat(np.isin(np.arange(complete), chosen), ratio)
        return seen

    def _turn(self, x: Array, positions: npt.NDArray[np.int_]) -> Array:
        """x [rows, dim], each rotated at its position: the first rope dims, halves paired."""
        half = self._frequencies.size
        angles = positions[:, None] * self._frequencies
        cos, sin = self._magnitude * np.cos(angles), self._magnitude * np.sin(angles)
        y = x.copy()
        y[:, :half] = x[:, :half] * cos - x[:, half : 2 * half] * sin
        y[:, half : 2 * half] = x[:, :half] * sin + x[:, half : 2 * half] * cos
        return y

    def _norm_streams(self, x: Array, gains: str) -> Array:
        """x [T, streams, width]."""
        gain = self._tensors[f"{gains}.weight"].reshape(self._streams, -1)
        normed: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + self._eps) * gain
        return normed

    def _mix(self, x: Array, name: str) -> tuple[Array, Array]:
        """What a block reads, [T, width], and the normed streams in a row, [T, all]."""
        normed = self._norm_streams(x, f"{name}_norm")
        flat = normed.reshape(len(x), -1)
        low = self._matmul(flat, f"{name}_down") / self._streams
        gates = sigmoid(self._matmul(low * sigmoid(low), f"{name}_up")).reshape(x.shape)
        return (gates * normed).sum(axis=1) / self._streams, flat

    def _write(self, x: Array, y: Array, flat: Array, name: str) -> Array:
        gates = 2 * sigmoid(self._matmul(flat, f"{name}_inject") / self._streams)
        written: Array = x + gates[:, :, None] * y[:, None, :]
        return written

    def _list(self, name: str) -> list[int]:
        return [int(v) for v in self._meta[f"{self._architecture}.{name}"]]

    def _rows(self, tokens: list[int], at: int) -> list[int]:
        """Rows of the table for the n-grams that end at a token."""
        eos, longest = self._uint("ple.eos_token_id"), self._uint("ple.ngram_size")
        multipliers = self._list("ple.layer_multipliers")
        sizes, offsets = self._list("ple.head_vocab_sizes"), self._list("ple.head_offsets")
        heads = self._uint("ple.heads_per_ngram")
        seen = tokens[max(0, at - longest + 1) : at][::-1]
        if eos in seen:
            seen = seen[: seen.index(eos)]
        context = [tokens[at], *seen] + [eos] * (longest - 1 - len(seen))
        rows: list[int] = []
        value = context[0] * multipliers[0] & WORD
        for n in range(1, longest):
            value ^= context[n] * multipliers[n] & WORD
            those = range((n - 1) * heads, n * heads)
            rows += [value % sizes[head] + offsets[head] for head in those]
        return rows

    def _table(self, x: Array, tokens: list[int], block: str) -> Array:
        """What the table adds to the streams, [T, streams, width]."""
        rows = np.array([self._rows(tokens, at) for at in range(len(tokens))])
        e = self._tensors["per_layer_token_embd.weight"][rows].reshape(len(tokens), -1)
        key = self._matmul(e, f"{block}ple_key").reshape(x.shape)
        value = self._matmul(e, f"{block}ple_value")
        query = self._norm_streams(x, f"{block}ple_norm_query")
        t = (self._norm_streams(key, f"{block}ple_norm_key") * query).sum(-1)
        t /= np.sqrt(x.shape[-1])
        t = np.sign(t) * np.sqrt(np.maximum(np.abs(t), 1e-6))
        y = sigmoid(t)[:, :, None] * value[:, None, :]
        normed = self._norm_streams(y, f"{block}ple_norm_conv").reshape(len(tokens), -1)
        taps = self._tensors[f"{block}ple_conv1d.weight"]
        apart = self._uint("ple.ngram_size")
        total = np.zeros_like(normed)
        for tap in range(taps.shape[1]):
            back = (taps.shape[1] - 1 - tap) * apart
            total[back:] += taps[:, tap] * normed[: len(tokens) - back]
        z = (total * sigmoid(total)).reshape(x.shape)
        return np.asarray(y + z)

    def _layer(self, x: Array, layer: int) -> Array:
        """x [T, streams, width]."""
        block = f"blk.{layer}."
        is_draft = layer >= self._layers
        has_attention = is_draft or (layer + 1) % self._interval == 0
        mixer = self._gated_attention if has_attention else self._delta_net
        h, flat = self._mix(x, f"{block}hc_attn")
        x = self._write(x, mixer(h, block), flat, f"{block}hc_attn")
        h, flat = self._mix(x, f"{block}hc_ffn")
        return self._write(x, self._moe(h, block), flat, f"{block}hc_ffn")

    def hidden(self, tokens: Sequence[int]) -> Array:
        """The streams behind the last layer at all positions of one sequence, side by side."""
        ids = [int(t) for t in tokens]
        embedded = self._tensors["token_embd.weight"][ids]
        x = np.repeat(embedded[:, None, :], self._streams, axis=1)
        tables = self._meta.get(f"{self._architecture}.ple.layers", [])
        for layer in range(self._layers):
            if layer in tables:
                x = x + self._table(x, ids, f"blk.{layer}.")
            x = self._layer(x, layer)
        return x.reshape(len(ids), -1)

    def logits(self, tokens: Sequence[int]) -> Array:
        """All-position logits [T, vocab] of one sequence from position 0."""
        x = self.hidden(tokens)
        return self._head(self._mix(x.reshape(len(x), self._streams, -1), "output_hc")[0])

    def draft(self, tokens: Sequence[int], hidden: Array) -> tuple[Array, Array]:
        """Logits [T, vocab] and streams [T, all] of the draft layer from position 0; `hidden`
        [T, all] are those of the positions before, zeros first."""
        block = f"blk.{self._layers}."
        token = self._tensors["token_embd.weight"][np.asarray(tokens)]
        token = self._norm(token, f"{block}nextn.enorm")
        token = np.repeat(token[:, None, :], self._streams, axis=1)
        wide = hidden.reshape(token.shape)
        if self._meta.get("nextn.hidden_norm") == "whole":
            normed = self._norm(hidden, f"{block}nextn.hnorm").reshape(token.shape)
        else:
            normed = self._norm_streams(wide, f"{block}nextn.hnorm")
        x = self._matmul(np.concatenate([token, normed], axis=2), f"{block}nextn.eh_proj")
        x = self._layer(x, self._layers)
        out = self._head(self._mix(x, f"{block}nextn.hc_head")[0])
        return out, x.reshape(len(x), -1)
