"""The base model and the draft layer in PyTorch, computed over whole streams.

Rope turns values half a head apart (`base_file.half_split`). Formulas: `docs/drafts.md` and
`engine/model/drafter.h`; row j of the draft layer takes token x_j and the base's hidden state
behind output_norm at position j - 1 (zeros for j = 0), is at position j and predicts x_{j+1}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tools.train_mtp.base_file import BaseFile, Floats, Sizes, half_split, neighbours

Tensor: TypeAlias = Any  # torch.Tensor; PyTorch is not a dependency of the project

MATRICES = (
    "eh_proj",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)
NORMS = ("enorm", "hnorm", "attn_norm", "ffn_norm", "shared_head_norm")
# Of the base's last layer, whose outputs are added to a residual far larger than a draft layer's.
RESIDUAL_SCALE = 27.0
EMBEDDING_SHARE = 0.25  # how much of the token's embedding passes through eh_proj at the start


def rope_table(sizes: Sizes, positions: int, device: str, dtype: Any) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, head_dim / 2]."""
    exponents = torch.arange(0, sizes.head_dim, 2, dtype=torch.float64) / sizes.head_dim
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * sizes.rope_base**-exponents
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., head_dim]; cos and sin [..., head_dim / 2]."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, eps)


class Layer:
    """A layer of the base, frozen; q, k and v as one matrix, gate and up as one."""

    def __init__(self, base: BaseFile, index: int, device: str, dtype: Any) -> None:
        sizes = base.sizes

        def on_device(*parts: Floats) -> Tensor:
            return torch.from_numpy(np.concatenate(parts)).to(device, dtype)

        self.sizes = sizes
        self.attn_norm = on_device(base.layer(index, "attn_norm"))
        self.qkv = on_device(
            half_split(base.layer(index, "attn_q"), sizes.heads),
            half_split(base.layer(index, "attn_k"), sizes.kv_heads),
            base.layer(index, "attn_v"),
        )
        self.output = on_device(base.layer(index, "attn_output"))
        self.ffn_norm = on_device(base.layer(index, "ffn_norm"))
        self.gate_up = on_device(base.layer(index, "ffn_gate"), base.layer(index, "ffn_up"))
        self.down = on_device(base.layer(index, "ffn_down"))

    def heads(self, x: Tensor) -> Tensor:
        """q, k and v of rows x [..., width], as [..., heads + 2 * kv_heads, head_dim]."""
        s = self.sizes
        rows = functional.linear(norm(x, self.attn_norm, s.eps), self.qkv)
        return rows.unflatten(-1, (s.heads + 2 * s.kv_heads, s.head_dim))

    def feed_forward(self, x: Tensor) -> Tensor:
        hidden = functional.linear(norm(x, self.ffn_norm, self.sizes.eps), self.gate_up)
        gate, up = hidden.chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, self.down)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Streams x [batch, length, width] from position 0."""
        s = self.sizes
        q, k, v = self.heads(x).transpose(1, 2).split([s.heads, s.kv_heads, s.kv_heads], 1)
        mixed = functional.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True
        )
        x = x + functional.linear(mixed.transpose(1, 2).flatten(2), self.output)
        return self.feed_forward(x)


class Base:
    """The frozen base. Logits are computed in f16 on a GPU: bf16 is too coarse for them."""

    def __init__(self, base: BaseFile, device: str, dtype: Any, positions: int) -> None:
        self.sizes = base.sizes
        self.device, self.dtype = device, dtype
        self.layers = [Layer(base, i, device, dtype) for i in range(base.sizes.layers)]
        head_type = torch.float16 if dtype == torch.bfloat16 else dtype
        self.embedding = torch.from_numpy(base.weights["token_embd.weight"]).to(device, dtype)
        self.head = torch.from_numpy(base.head).to(device, head_type)
        self.output_norm = torch.from_numpy(base.weights["output_norm.weight"]).to(device, dtype)
        self.cos, self.sin = rope_table(base.sizes, positions, device, dtype)

    @torch.no_grad()
    def hidden(self, tokens: Tensor) -> Tensor:
        """Hidden states behind output_norm [batch, length, width] of tokens [batch, length]."""
        x = self.embedding[tokens]
        length = tokens.shape[1]
        for layer in self.layers:
            x = layer.forward(x, self.cos[:length], self.sin[:length])
        return norm(x, self.output_norm, self.sizes.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden.to(self.head.dtype), self.head)


class DraftLayer(nn.Module):
    """The draft layer, in f32; computed in the type of its inputs. Begins as the base's last layer
    on the hidden state, with a little of the token's embedding.
    """

    def __init__(self, base: BaseFile) -> None:
        super().__init__()
        self.sizes = sizes = base.sizes
        last = sizes.layers - 1
        starts = {name: base.layer(last, name) for name in (*MATRICES[1:], *NORMS[2:4])}
        starts["attn_q"] = half_split(starts["attn_q"], sizes.heads)
        starts["attn_k"] = half_split(starts["attn_k"], sizes.kv_heads)
        for name in ("attn_output", "ffn_down"):
            starts[name] = starts[name] / RESIDUAL_SCALE
        eye = np.eye(sizes.width, dtype=np.float32)
        starts["eh_proj"] = np.concatenate([EMBEDDING_SHARE * eye, eye], 1)
        starts["shared_head_norm"] = base.weights["output_norm.weight"]
        ones = np.ones(sizes.width, np.float32)
        for name in MATRICES + NORMS:
            start = torch.from_numpy(np.array(starts.get(name, ones)))
            self.register_parameter(name, nn.Parameter(start))

    def arrays(self) -> dict[str, Floats]:
        """By the names of the file, rows in the file's order."""
        out = {n: getattr(self, n).detach().float().cpu().numpy() for n in MATRICES + NORMS}
        out["attn_q"] = neighbours(out["attn_q"], self.sizes.heads)
        out["attn_k"] = neighbours(out["attn_k"], self.sizes.kv_heads)
        return out

    def load_arrays(self, arrays: dict[str, Floats]) -> None:
        """The inverse of arrays()."""
        rows = dict(arrays)
        rows["attn_q"] = half_split(rows["attn_q"], self.sizes.heads)
        rows["attn_k"] = half_split(rows["attn_k"], self.sizes.kv_heads)
        with torch.no_grad():
            for name in MATRICES + NORMS:
                getattr(self, name).copy_(torch.from_numpy(rows[name]))

    def chains(
        self, embedded: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor, depth: int
    ) -> list[Tensor]:
        """What `depth` drafts see that begin at every row of a stream.

        `embedded` and `hidden` [batch, length, width] of x_0 .. and of the base. Element k of the
        result [batch, length - k, width] holds, behind shared_head_norm, at row j the state that
        predicts x_{j+k+1} from the true states up to x_j and the chain's own k steps. As at
        inference, the chain's later rows attend to the true rows 0..j and to the chain's own.
        """
        length = embedded.shape[1]
        state = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], 1)
        out: list[Tensor] = []
        own: list[tuple[Tensor, Tensor]] = []  # keys and values of each step, the first's are true
        for step in range(depth):
            rows = length - step
            state, key, value = self._step(
                embedded[:, step:], state[:, :rows],
                (cos[step:length], sin[step:length]), own,
            )  # fmt: skip
            own.append((key, value))
            out.append(state)
        return out

    def _step(
        self, embedded: Tensor, state: Tensor, rope: tuple[Tensor, Tensor],
        own: Sequence[tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        s, dtype = self.sizes, embedded.dtype
        batch, rows, _ = embedded.shape
        groups = s.heads // s.kv_heads

        def weight(name: str) -> Tensor:
            return getattr(self, name).to(dtype)

        def heads(x: Tensor, name: str, count: int) -> Tensor:
            y = functional.linear(x, weight(name))
            return y.view(batch, rows, count, s.head_dim).transpose(1, 2)

        both = [norm(embedded, weight("enorm"), s.eps), norm(state, weight("hnorm"), s.eps)]
        x = functional.linear(torch.cat(both, -1), weight("eh_proj"))
        inner = norm(x, weight("attn_norm"), s.eps)
        query = rotate(heads(inner, "attn_q", s.heads), *rope)
        key = rotate(heads(inner, "attn_k", s.kv_heads), *rope)
        value = heads(inner, "attn_v", s.kv_heads)
        true_key, true_value = own[0] if own else (key, value)
        true_key, true_value = true_key[:, :, :rows], true_value[:, :, :rows]
        grouped = query.reshape(batch, s.kv_heads, groups * rows, s.head_dim)
        scale = s.head_dim**-0.5
        scores = torch.matmul(grouped, true_key.transpose(-1, -2)).float() * scale
        scores = scores.view(batch, s.kv_heads, groups, rows, rows)
        at = torch.arange(rows, device=embedded.device)
        scores = scores.masked_fill(at[None, :] > at[:, None], float("-inf"))
        # The chain's own rows: those of the steps before, cut to the chains that go on, and this.
        chain = [(k[:, :, :rows], v[:, :, :rows]) for k, v in own[1:]] + (
            [(key, value)] if own else []
        )
        query = query.view(batch, s.kv_heads, groups, rows, s.head_dim)
        mine = [
            (query * k[:, :, None]).sum(-1, dtype=torch.float32)[..., None] * scale
            for k, _ in chain
        ]
        shares = torch.cat([scores, *mine], -1).softmax(-1).to(dtype)
        flat = shares[..., :rows].reshape(batch, s.kv_heads, groups * rows, rows)
        mixed = torch.matmul(flat, true_value).view_as(query)
        for i, (_, v) in enumerate(chain):
            mixed = mixed + shares[..., rows + i, None] * v[:, :, None]
        mixed = mixed.reshape(batch, s.heads, rows, s.head_dim).transpose(1, 2).flatten(2)
        x = x + functional.linear(mixed, weight("attn_output"))
        inner = norm(x, weight("ffn_norm"), s.eps)
        gate = functional.silu(functional.linear(inner, weight("ffn_gate")))
        up = functional.linear(inner, weight("ffn_up"))
        x = x + functional.linear(gate * up, weight("ffn_down"))
        return norm(x, weight("shared_head_norm"), s.eps), key, value
