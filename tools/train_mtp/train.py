"""Distils the base into the draft layer on sampled streams.

The base is frozen. Each row's chain of drafts is unrolled as at inference; the loss compares every
draft's distribution with the base's at that position. First KL alone, which is smooth where the
draft is far off; then mostly TV, which is the rejection rate itself. Matrices are updated by Muon
(momentum orthogonalised by a quintic Newton-Schulz iteration; K. Jordan et al., 2024), scaled so
that an update's root mean square is that of AdamW, norms by AdamW.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from tools.train_mtp.kernels import DistilLoss
from tools.train_mtp.network import MATRICES, NORMS, Base, DraftLayer

Tensor: TypeAlias = Any
STEP_WEIGHTS = (1.0, 0.7, 0.5)  # of the drafts of a chain: later ones are tried less often
FORCED_WEIGHT = 0.1  # of rows whose next token the base did not choose
KL_ONLY, MIXED = (1.0, 0.0), (0.3, 1.0)  # weights of KL and TV
WARM_UP = 0.02  # of the time
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
UPDATE_RMS = 0.2


@dataclass(frozen=True, slots=True)
class Settings:
    seconds: float
    iterations_max: int
    batch: int = 40  # streams of an iteration
    depth: int = 3
    learning_rate: float = 5e-3
    decay: float = 0.01
    mixed_from: float = 0.45  # share of the time from which TV counts


class Optimiser:
    def __init__(self, layer: DraftLayer, settings: Settings) -> None:
        self.rate, self.decay = settings.learning_rate, settings.decay
        self.matrices = [getattr(layer, name) for name in MATRICES]
        self.momenta = [torch.zeros_like(matrix) for matrix in self.matrices]
        norms = [getattr(layer, name) for name in NORMS]
        self.norms = torch.optim.AdamW(
            norms, lr=self.rate, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0
        )
        self.parameters = [*self.matrices, *norms]

    def update(self, share: float) -> None:
        """One step at `share` of the learning rate; clears the gradients."""
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self.norms.param_groups:
            group["lr"] = self.rate * share
        self.norms.step()
        for matrix, momentum in zip(self.matrices, self.momenta, strict=True):
            momentum.mul_(0.95).add_(matrix.grad)
            direction = orthogonal(matrix.grad + 0.95 * momentum)
            scale = UPDATE_RMS * math.sqrt(max(matrix.shape))
            matrix.data.mul_(1 - self.rate * share * self.decay)
            matrix.data.add_(direction, alpha=-self.rate * share * scale)
        for parameter in self.parameters:
            parameter.grad = None


def orthogonal(matrix: Tensor) -> Tensor:
    """Nearly the matrix with the same singular vectors and singular values near 1."""
    x = matrix.bfloat16()
    x = x / (x.norm() + 1e-7)
    is_tall = x.shape[0] > x.shape[1]
    if is_tall:
        x = x.T
    a, b, c = NEWTON_SCHULZ
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return (x.T if is_tall else x).float()


def schedule(share: float) -> float:
    """Warm-up, then a cosine to 0 over the time."""
    return min(1.0, share / WARM_UP) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


class Streams:
    """Sampled streams in random order, again and again."""

    def __init__(self, path: Path, device: str, seed: int) -> None:
        with np.load(path) as arrays:
            tokens = arrays["tokens"]
            forced = np.unpackbits(arrays["is_forced"], axis=1)[:, : tokens.shape[1]].astype(bool)
        self.tokens = torch.from_numpy(tokens).to(device)
        self.is_forced = torch.from_numpy(forced).to(device)
        self.taken = 0
        self._rng = np.random.default_rng(seed)
        self._order = np.zeros(0, np.int64)

    @property
    def epochs(self) -> float:
        return self.taken / len(self.tokens)

    def batch(self, count: int) -> tuple[Tensor, Tensor]:
        while len(self._order) < count:
            self._order = np.concatenate([self._order, self._rng.permutation(len(self.tokens))])
        rows, self._order = self._order[:count], self._order[count:]
        self.taken += count
        at = torch.from_numpy(rows).to(self.tokens.device)
        return self.tokens[at].long(), self.is_forced[at]


def loss_of(
    layer: DraftLayer,
    base: Base,
    batch_of: tuple[Tensor, Tensor],
    depth: int,
    weights: tuple[float, float, bool],
) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and KL, overlap and agreement of each step on the base's own tokens."""
    tokens, is_forced = batch_of
    batch, length = tokens.shape
    with torch.no_grad():
        hidden = base.hidden(tokens)
        teacher = base.logits(hidden).reshape(batch * length, -1)
        embedded = base.embedding[tokens]
    states = layer.chains(embedded, hidden, base.cos, base.sin, depth)
    # The row before a forced token predicts what the base did not choose.
    own = torch.cat([~is_forced[:, 1:], ~is_forced[:, -1:]], 1).float()
    row = torch.arange(batch, device=tokens.device, dtype=torch.int32)[:, None] * length
    loss, seen = torch.zeros((), device=tokens.device), []
    for step, state in enumerate(states):
        at = torch.arange(step, length, device=tokens.device, dtype=torch.int32)
        weight = FORCED_WEIGHT + (1 - FORCED_WEIGHT) * own[:, step:]
        weight[:, 0] = 0
        flat = weight.reshape(-1)
        part, kl, overlap, hit = DistilLoss.apply(
            state.flatten(0, 1),
            base.head,
            teacher,
            (row + at).reshape(-1),
            flat / flat.sum(),
            *weights,
        )
        loss = loss + STEP_WEIGHTS[min(step, len(STEP_WEIGHTS) - 1)] * part
        counted = (flat > 0.5).float()
        seen += [
            (value * counted).sum() / counted.sum().clamp(min=1) for value in (kl, overlap, hit)
        ]
    return loss, torch.stack(seen).detach()


def train(
    layer: DraftLayer, base: Base, streams: Streams, settings: Settings, *, fused: bool
) -> list[dict[str, object]]:
    """Trains in place for `seconds` or `iterations_max`; returns the curve."""
    optimiser = Optimiser(layer, settings)
    curve: list[dict[str, object]] = []
    window: list[Tensor] = []
    began = time.monotonic()
    for iteration in range(settings.iterations_max):
        took_s = time.monotonic() - began
        share = max(took_s / settings.seconds, iteration / settings.iterations_max)
        if share >= 1:
            break
        weights = MIXED if share >= settings.mixed_from else KL_ONLY
        batch = streams.batch(settings.batch)
        loss, seen = loss_of(layer, base, batch, settings.depth, (*weights, fused))
        loss.backward()
        optimiser.update(schedule(max(share, 1e-4 * (iteration + 1))))
        window.append(seen)
        if (iteration + 1) % 100 == 0 or iteration in (0, 9):
            means = torch.stack(window[-50:]).mean(0).view(-1, 3).tolist()
            steps = [{"kl": k, "overlap": o, "same_token": h} for k, o, h in means]
            curve.append({
                "iteration": iteration + 1, "seconds": round(took_s, 1),
                "epochs": round(streams.epochs, 2), "steps": steps,
            })  # fmt: skip
            shown = ", ".join(f"KL {k:.3f} overlap {o:.3f} same {h:.3f}" for k, o, h in means)
            print(f"{iteration + 1} iterations, {took_s:.0f} s: {shown}", flush=True)
    return curve
