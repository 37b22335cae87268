"""Streams that the base model writes: what the draft layer learns from and is judged by.

All streams advance together, one token a step, over a static cache. A stream's next token is forced
while its segment (a prompt, a header) is not used up, and sampled otherwise; a turn that ends is
followed by another prompt, or by an empty header of the user, whose turn the base then writes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from tools.train_mtp.kernels import decode_attention
from tools.train_mtp.network import Base, norm, rotate

Tensor: TypeAlias = Any
KINDS = ("first", "follow", "user_header", "answer_header", "opening", "raw")
SEGMENT_TOKENS_MAX = 128
# Of sampled streams: temperature 0 gives what greedy users see, the others what the base can say.
TEMPERATURES = ((0.0, 0.30), (0.5, 0.10), (0.7, 0.25), (0.8, 0.20), (1.0, 0.15))
STARTS = (("first", 0.80), ("opening", 0.12), ("raw", 0.08))
USER_BY_BASE = 0.3  # of ended answers, how many are followed by a turn of the user by the base
USER_TOKENS_MAX, RAW_TOKENS_MAX, ANSWER_TOKENS = 60, 300, (80, 400)


class Segments:
    """All segments in one table [segments, SEGMENT_TOKENS_MAX]; `span` says where a kind lies."""

    def __init__(
        self, arrays: Mapping[str, npt.NDArray[np.int32]], kinds: tuple[str, ...], device: str
    ) -> None:
        rows: list[npt.NDArray[np.int32]] = []
        self.span: dict[str, tuple[int, int]] = {}
        for kind in kinds:
            parts = np.split(arrays[f"{kind}.tokens"], arrays[f"{kind}.ends"][:-1])
            self.span[kind] = (len(rows), len(parts))
            rows += [part[:SEGMENT_TOKENS_MAX] for part in parts]
        table = np.zeros((len(rows), SEGMENT_TOKENS_MAX), np.int64)
        for i, row in enumerate(rows):
            table[i, : len(row)] = row
        self.tokens = torch.from_numpy(table).to(device)
        self.lengths = torch.tensor([len(row) for row in rows], device=device)
        self.end_tokens = torch.from_numpy(arrays["end_tokens"].astype(np.int64)).to(device)


@dataclass(slots=True)
class Start:
    """How streams begin: segment, temperature, whether the user's turn is the base's, its limit."""

    segment: npt.NDArray[np.int64]
    temperature: npt.NDArray[np.float32]
    by_user: npt.NDArray[np.bool_]
    limit: npt.NDArray[np.int64]


def random_start(segments: Segments, count: int, rng: np.random.Generator) -> Start:
    kinds = rng.choice([k for k, _ in STARTS], size=count, p=[p for _, p in STARTS])
    first = np.array([segments.span[k][0] + rng.integers(segments.span[k][1]) for k in kinds])
    values, shares = zip(*TEMPERATURES, strict=True)
    temperature = rng.choice(values, size=count, p=shares).astype(np.float32)
    # What the base writes from nothing is sampled: greedy, all such streams would be the same.
    temperature = np.where((kinds == "first") | (temperature > 0), temperature, np.float32(1.0))
    limit = np.where(kinds == "raw", RAW_TOKENS_MAX, USER_TOKENS_MAX)
    limit = np.where(kinds == "first", rng.integers(*ANSWER_TOKENS, count), limit)
    return Start(first, temperature, kinds == "opening", limit)


class Sampler:
    """A batch of streams of a fixed length; `run` may be called again."""

    def __init__(
        self, base: Base, batch: int, length: int, segments: Segments, *, fused: bool, goes_on: bool
    ) -> None:
        """`goes_on` False: a stream is over with its first answer, and padded."""
        sizes, device = base.sizes, base.device
        self.base, self.batch, self.length, self.segments = base, batch, length, segments
        self.fused, self.goes_on = fused, goes_on
        cache = (sizes.layers, batch, sizes.kv_heads, length, sizes.head_dim)
        self.keys, self.values = torch.zeros(2, *cache, device=device, dtype=base.dtype)

        def counters() -> Tensor:
            return torch.zeros(batch, device=device, dtype=torch.long)

        self.token, self.segment, self.at = counters(), counters(), counters()
        self.sampled, self.limit = counters(), counters()
        self.by_user, self.is_over = counters().bool(), counters().bool()
        self.temperature = torch.zeros(batch, 1, device=device)
        self.position = torch.zeros(1, device=device, dtype=torch.long)
        self.out = torch.zeros(batch, length, device=device, dtype=torch.long)
        self.is_forced = torch.zeros(batch, length + 1, device=device, dtype=torch.bool)
        self.graph: Any = None

    def begin(self, start: Start) -> None:
        for counter in (self.sampled, self.position, self.out):
            counter.zero_()
        self.is_over.fill_(False)
        self.is_forced.fill_(False)
        for mine, theirs in (
            (self.segment, start.segment), (self.temperature, start.temperature[:, None]),
            (self.by_user, start.by_user), (self.limit, start.limit),
        ):  # fmt: skip
            mine.copy_(torch.from_numpy(np.ascontiguousarray(theirs)))
        self.token.copy_(self.segments.tokens[self.segment, 0])
        self.at.fill_(1)
        self.is_forced[:, 0] = True

    def run(self, start: Start) -> tuple[Tensor, Tensor]:
        """Tokens [batch, length] and which of them were forced."""
        self.begin(start)
        for _ in range(self.length):
            if self.graph is None:
                self._step()
            else:
                self.graph.replay()
        return self.out, self.is_forced[:, : self.length]

    def capture(self, start: Start) -> None:
        """Records a step as a CUDA graph: a step of a small model is all launches otherwise."""
        self.begin(start)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

    @torch.no_grad()
    def _step(self) -> None:
        base, sizes, position = self.base, self.base.sizes, self.position
        self.out.index_copy_(1, position, self.token[:, None])
        x = base.embedding[self.token]
        cos, sin = base.cos.index_select(0, position), base.sin.index_select(0, position)
        for i, layer in enumerate(base.layers):
            q, k, v = layer.heads(x).split([sizes.heads, sizes.kv_heads, sizes.kv_heads], 1)
            self.keys[i].index_copy_(2, position, rotate(k, cos, sin)[:, :, None])
            self.values[i].index_copy_(2, position, v[:, :, None].contiguous())
            query = rotate(q, cos, sin).contiguous()
            mixed = decode_attention(
                query, self.keys[i], self.values[i], position, fused=self.fused
            )
            x = layer.feed_forward(x + functional.linear(mixed.flatten(1), layer.output))
        logits = base.logits(norm(x, base.output_norm, sizes.eps)).float()
        # argmax(logits + T * Gumbel) samples at temperature T, and is greedy at 0.
        noise = torch.empty_like(logits).exponential_().log_()
        self._advance(
            torch.addcmul(logits, self.temperature.expand_as(logits), noise, value=-1).argmax(-1)
        )

    def _advance(self, choice: Tensor) -> None:
        segments = self.segments
        in_segment = self.at < segments.lengths[self.segment]
        forced = in_segment | self.is_over
        planned = segments.tokens[self.segment, self.at.clamp(max=SEGMENT_TOKENS_MAX - 1)]
        self.is_forced.index_copy_(1, self.position + 1, forced[:, None])
        self.at.add_(forced.long())
        self.sampled.add_((~forced).long())
        closes = ~forced & torch.isin(choice, segments.end_tokens)
        if self.goes_on:
            self._next_segment(closes, closes | (~forced & (self.sampled >= self.limit)))
        else:
            self.is_over.logical_or_(closes)
        self.token.copy_(torch.where(in_segment, planned, choice))
        self.position.add_(1)

    def _next_segment(self, closes: Tensor, ends: Tensor) -> None:
        span, batch = self.segments.span, self.batch
        chance = torch.rand(3, batch, device=self.token.device)
        by_user = ~self.by_user & (chance[0] < USER_BY_BASE)
        first, count = span["follow"]
        prompt = first + (chance[1] * count).long().clamp(max=count - 1)
        user = torch.where(by_user, span["user_header"][0], prompt)
        following = torch.where(self.by_user, span["answer_header"][0], user)
        self.segment.copy_(torch.where(ends, following, self.segment))
        # Segments open with the token that closes a turn: not again where the base has said it.
        self.at.copy_(torch.where(ends, closes.long(), self.at))
        low, high = ANSWER_TOKENS
        limit = torch.where(by_user, USER_TOKENS_MAX, low + (chance[2] * (high - low)).long())
        self.limit.copy_(torch.where(ends, limit, self.limit))
        self.sampled.copy_(torch.where(ends, 0, self.sampled))
        self.by_user.copy_(torch.where(ends, by_user, self.by_user))


@dataclass(frozen=True, slots=True)
class Amount:
    streams: int
    length: int
    batch: int
    seconds: float  # no batch is begun that would end behind it


def write_streams(
    base: Base, segments: Segments, amount: Amount, out: Path, *, fused: bool
) -> dict[str, float]:
    """Writes `tokens` [streams, length] and `is_forced` (bits of rows) to `out` (.npz)."""
    sampler = Sampler(base, amount.batch, amount.length, segments, fused=fused, goes_on=True)
    rng = np.random.default_rng(7)
    if fused:
        sampler.capture(random_start(segments, amount.batch, rng))
    began = time.monotonic()
    tokens: list[npt.NDArray[np.int32]] = []
    forced: list[npt.NDArray[np.bool_]] = []
    for took_s in _clock(began):
        done = len(tokens) * amount.batch
        if done >= amount.streams or (tokens and took_s * (1 + 1 / len(tokens)) > amount.seconds):
            break
        rows, is_forced = sampler.run(random_start(segments, amount.batch, rng))
        tokens.append(rows.cpu().numpy().astype(np.int32))
        forced.append(is_forced.cpu().numpy())
        print(f"{done + amount.batch} streams, {time.monotonic() - began:.0f} s", flush=True)
    all_tokens, all_forced = np.concatenate(tokens), np.concatenate(forced)
    np.savez(out, allow_pickle=False, tokens=all_tokens, is_forced=np.packbits(all_forced, 1))
    seconds = time.monotonic() - began
    return {
        "streams": len(all_tokens), "tokens": all_tokens.size,
        "tokens_per_s": round(all_tokens.size / seconds), "forced": float(all_forced.mean()),
        "distinct_openings": len(np.unique(all_tokens[:, :160], axis=0)),
    }  # fmt: skip


def _clock(began: float) -> Iterator[float]:
    while True:
        yield time.monotonic() - began
