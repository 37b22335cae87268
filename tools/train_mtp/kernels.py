# ruff: noqa: ANN001, ANN202, N803, PLR0917
"""Two kernels that PyTorch has no equal of, in Triton, and the same in plain PyTorch beside them.

- Decode attention over a static cache: reads keys and values up to the position once, where masked
  attention reads the whole cache.
- The distillation loss over a vocabulary of tens of thousands, with its gradient in the place of
  the draft's logits: two reads of both logits and one write.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.nn import functional

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

IS_FUSED = triton is not None
Tensor: TypeAlias = Any
AGREEMENT = 2e-2  # relative, of the Triton and the plain form, in the types of training

if triton is not None:

    @triton.jit
    def _decode(
        q, k, v, out, position, scale, length,
        KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
        count = tl.load(position).to(tl.int32) + 1
        group, dim = tl.arange(0, 16), tl.arange(0, DIM)
        at = row * (KV_HEADS * GROUP * DIM) + (head * GROUP + group)[:, None] * DIM + dim[None, :]
        query = tl.load(q + at, mask=(group < GROUP)[:, None], other=0.0)
        base = (row * KV_HEADS + head) * length * DIM
        largest = tl.full((16,), -1e30, tl.float32)
        total = tl.zeros((16,), tl.float32)
        mixed = tl.zeros((16, DIM), tl.float32)
        for first in range(0, count, TILE):
            token = first + tl.arange(0, TILE)
            keys = tl.load(
                k + base + token[None, :] * DIM + dim[:, None],
                mask=(token < count)[None, :],
                other=0.0,
            )
            scores = tl.where((token < count)[None, :], tl.dot(query, keys) * scale, -1e30)
            larger = tl.maximum(largest, tl.max(scores, 1))
            shares = tl.exp(scores - larger[:, None])
            fade = tl.exp(largest - larger)
            values = tl.load(
                v + base + token[:, None] * DIM + dim[None, :],
                mask=(token < count)[:, None],
                other=0.0,
            )
            mixed = mixed * fade[:, None] + tl.dot(shares.to(values.dtype), values)
            total = total * fade + tl.sum(shares, 1)
            largest = larger
        result = (mixed / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + at, result, mask=(group < GROUP)[:, None])

    @triton.jit
    def _distil(
        draft,
        teacher,
        teacher_row,
        divergence,
        overlap,
        hit,
        kl_weight,
        tv_weight,
        VOCAB,
        TILE: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        mine = draft + row * VOCAB
        theirs = teacher + tl.load(teacher_row + row).to(tl.int64) * VOCAB
        at = tl.arange(0, TILE)
        q_max, q_sum = tl.full((TILE,), -1e30, tl.float32), tl.zeros((TILE,), tl.float32)
        p_max, p_sum = tl.full((TILE,), -1e30, tl.float32), tl.zeros((TILE,), tl.float32)
        for i in range(0, VOCAB, TILE):
            inside = i + at < VOCAB
            x = tl.load(mine + i + at, mask=inside, other=-1e30).to(tl.float32)
            larger = tl.maximum(q_max, x)
            q_sum = q_sum * tl.exp(q_max - larger) + tl.where(inside, tl.exp(x - larger), 0.0)
            q_max = larger
            y = tl.load(theirs + i + at, mask=inside, other=-1e30).to(tl.float32)
            larger = tl.maximum(p_max, y)
            p_sum = p_sum * tl.exp(p_max - larger) + tl.where(inside, tl.exp(y - larger), 0.0)
            p_max = larger
        q_top, p_top = tl.max(q_max, 0), tl.max(p_max, 0)
        q_log = q_top + tl.log(tl.sum(q_sum * tl.exp(q_max - q_top), 0))
        p_log = p_top + tl.log(tl.sum(p_sum * tl.exp(p_max - p_top), 0))
        kl, common = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
        short, top = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
        for i in range(0, VOCAB, TILE):
            inside = i + at < VOCAB
            x = tl.load(mine + i + at, mask=inside, other=-1e30).to(tl.float32) - q_log
            y = tl.load(theirs + i + at, mask=inside, other=-1e30).to(tl.float32) - p_log
            q, p = tl.where(inside, tl.exp(x), 0.0), tl.where(inside, tl.exp(y), 0.0)
            kl += tl.where(inside, p * (y - x), 0.0)
            common += tl.minimum(p, q)
            short += tl.where(q < p, q, 0.0)
            top += tl.where(inside & (x >= q_top - q_log) & (y >= p_top - p_log), 1.0, 0.0)
        tl.store(divergence + row, tl.sum(kl, 0))
        tl.store(overlap + row, tl.sum(common, 0))
        tl.store(hit + row, tl.minimum(tl.sum(top, 0), 1.0))
        below = tl.sum(short, 0)
        for i in range(0, VOCAB, TILE):
            inside = i + at < VOCAB
            x = tl.load(mine + i + at, mask=inside, other=-1e30).to(tl.float32) - q_log
            y = tl.load(theirs + i + at, mask=inside, other=-1e30).to(tl.float32) - p_log
            q, p = tl.exp(x), tl.exp(y)
            slope = kl_weight * (q - p) - tv_weight * q * (tl.where(q < p, 1.0, 0.0) - below)
            tl.store(mine + i + at, slope.to(draft.dtype.element_ty), mask=inside)


def decode_attention(q: Tensor, k: Tensor, v: Tensor, position: Tensor, *, fused: bool) -> Tensor:
    """Attention of one token of each stream to the cache up to `position` [1].

    q [batch, heads, head_dim]; k, v [batch, kv_heads, length, head_dim]. Up to 16 heads share keys.
    """
    batch, kv_heads, length, dim = k.shape
    group = q.shape[1] // kv_heads
    if fused:
        out = torch.empty_like(q)
        _decode[(batch, kv_heads)](
            q, k, v, out, position, dim**-0.5, length, kv_heads, group, dim, 64, num_warps=4
        )
        return out
    visible = torch.arange(length, device=q.device) <= position
    mixed = functional.scaled_dot_product_attention(
        q.view(batch, kv_heads, group, dim), k, v, attn_mask=visible.expand(group, length)
    )
    return mixed.reshape(q.shape)


class DistilLoss(torch.autograd.Function):
    """sum over rows of weight * (kl_weight * KL(p || q) + tv_weight * TV(p, q)).

    q is the draft's distribution, p the base's; TV = 1 - sum min(p, q) is the rejection rate of
    exact speculative sampling. d KL / d z = q - p;  d TV / d z = -q * ([q < p] - sum_{q < p} q).
    Also returns KL, sum min(p, q) and whether both have the same likeliest token, for each row.
    """

    @staticmethod
    def forward(
        ctx: Any, state: Tensor, head: Tensor, teacher: Tensor, teacher_row: Tensor,
        weight: Tensor, kl_weight: float, tv_weight: float, fused: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """`state` [rows, width]; `teacher` logits [base rows, vocab]; the others [rows]."""
        logits = functional.linear(state.to(head.dtype), head)
        if fused:
            rows = logits.shape[0]
            kl, overlap, hit = torch.empty(3, rows, device=logits.device, dtype=torch.float32)
            _distil[(rows,)](
                logits, teacher, teacher_row, kl, overlap, hit, kl_weight, tv_weight,
                logits.shape[1], 4096, num_warps=8,
            )  # fmt: skip
            slope = logits
        else:
            log_q = logits.float().log_softmax(-1)
            log_p = teacher[teacher_row.long()].float().log_softmax(-1)
            p, q = log_p.exp(), log_q.exp()
            kl, overlap = (p * (log_p - log_q)).sum(-1), torch.minimum(p, q).sum(-1)
            hit = (log_p.argmax(-1) == log_q.argmax(-1)).float()
            below = (q < p).float()
            bend = below - (q * below).sum(-1, keepdim=True)
            slope = (kl_weight * (q - p) - tv_weight * q * bend).to(logits.dtype)
        ctx.save_for_backward((slope @ head).float() * weight[:, None])
        ctx.mark_non_differentiable(kl, overlap, hit)
        ctx.type = state.dtype
        loss = ((kl_weight * kl + tv_weight * (1 - overlap)) * weight).sum()
        return loss, kl, overlap, hit

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return ((ctx.saved_tensors[0] * slope).to(ctx.type), *[None] * 7)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm().clamp(min=1e-9))


def check_fused(head: Tensor, heads: int, kv_heads: int, head_dim: int) -> None:
    """Compares both kernels with their plain form on random values; AssertionError where they
    differ by more than AGREEMENT.
    """
    device = head.device
    q = torch.randn(64, heads, head_dim, device=device, dtype=torch.bfloat16)
    k, v = torch.randn(2, 64, kv_heads, 200, head_dim, device=device, dtype=torch.bfloat16)
    for place in (0, 77, 199):
        position = torch.tensor([place], device=device)
        plain = decode_attention(q.float(), k.float(), v.float(), position, fused=False)
        error = relative(decode_attention(q, k, v, position, fused=True), plain)
        assert error < AGREEMENT, f"decode attention at {place}: {error}"
    state = torch.randn(64, head.shape[1], device=device)
    teacher = torch.randn(80, head.shape[0], device=device).to(head.dtype) * 2
    row = torch.randperm(80, device=device)[:64].int()
    weight = torch.rand(64, device=device)
    found = []
    for fused in (True, False):
        leaf = state.clone().requires_grad_()
        out = DistilLoss.apply(leaf, head, teacher, row, weight, 0.5, 0.5, fused)
        out[0].backward()
        found.append([*(o.detach() for o in out[:3]), leaf.grad])
    for name, a, b in zip(("loss", "KL", "overlap", "gradient"), *found, strict=True):
        error = relative(a, b)
        assert error < AGREEMENT, f"distillation: {name} differs by {error}"
