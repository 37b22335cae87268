"""What a draft layer would have accepted on held-out prompts, teacher-forced.

Exact without running the loop: on a stream that the base wrote, a greedy draft is accepted where it
is the stream's token, a sampled one with chance min(1, q / p) of the stream's token. Walking cycles
of draft and verification over these events gives acceptance by position and tokens per pass.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from tools.train_mtp.network import Base, DraftLayer
from tools.train_mtp.sample import Sampler, Segments, Start

Tensor: TypeAlias = Any
Chances: TypeAlias = npt.NDArray[np.float32]  # [depth, streams, length]
SETS = ("heldout", "heldout_topics")
TEMPERATURE = 0.8
CHUNK = 16  # streams at a time: the logits of more do not fit beside the rest


@torch.no_grad()
def continuations(
    base: Base, segments: Segments, length: int, temperature: float
) -> tuple[Tensor, ...]:
    """The base's answers to held-out prompts: tokens, where answers begin, their last tokens."""
    count = len(segments.lengths)
    sampler = Sampler(base, count, length, segments, fused=False, goes_on=False)
    start = Start(
        np.arange(count), np.full(count, temperature, np.float32),
        np.zeros(count, np.bool_), np.full(count, length),
    )  # fmt: skip
    tokens, is_forced = sampler.run(start)
    written = (~is_forced).sum(1)
    begins = segments.lengths.clamp(max=length)
    return tokens.clone(), begins.cpu().numpy(), (begins + written - 1).cpu().numpy()


@torch.no_grad()
def chances(
    layer: DraftLayer, base: Base, tokens: Tensor, depth: int, temperature: float
) -> Chances:
    """The chance that draft k of the chain that begins at row j is accepted, given those before."""
    streams, length = tokens.shape
    out = np.zeros((depth, streams, length), np.float32)
    for first in range(0, streams, CHUNK):
        part = tokens[first : first + CHUNK]
        hidden = base.hidden(part)
        states = layer.chains(base.embedding[part], hidden, base.cos, base.sin, depth)
        for row in range(len(part)):
            teacher = base.logits(hidden[row]).float()
            for k in range(depth):
                rows = length - k - 1
                draft = base.logits(states[k][row, :rows]).float()
                wanted = part[row, k + 1 :]
                if temperature == 0:
                    chance = (draft.argmax(-1) == wanted).float()
                else:
                    log_q = (draft / temperature).log_softmax(-1)
                    log_p = (teacher[k : k + rows] / temperature).log_softmax(-1)
                    at = torch.arange(rows, device=tokens.device)
                    chance = (log_q[at, wanted] - log_p[at, wanted]).exp().clamp(max=1)
                out[k, first + row, :rows] = chance.cpu().numpy()
    return out


def walk(
    chance: Chances,
    begins: npt.NDArray[np.int64],
    lasts: npt.NDArray[np.int64],
    depth: int,
    seed: int = 0,
) -> tuple[list[float], float]:
    """Cycles of `depth` drafts over each stream's answer: accepted / attempted by position, and
    tokens per pass of the base. The answer's first token is sampled with the prompt.
    """
    rng = np.random.default_rng(seed)
    attempted, accepted = np.zeros(depth), np.zeros(depth)
    passes = tokens = 0
    for stream in range(chance.shape[1]):
        at, last = int(begins[stream]), int(lasts[stream])
        while at < last:
            right = 0
            while right < depth and at + right + 1 <= last:
                attempted[right] += 1
                if rng.random() >= chance[right, stream, at]:
                    break
                accepted[right] += 1
                right += 1
            passes += 1
            took = min(right + 1, last - at)
            tokens += took
            at += took
    shares = accepted / np.maximum(attempted, 1)
    return [round(float(share), 4) for share in shares], round(tokens / max(passes, 1), 4)


def report(
    layer: DraftLayer, base: Base, segments: Segments, length: int, depth: int
) -> dict[str, object]:
    """Greedy and at TEMPERATURE: acceptance by position, tokens per pass at 1..depth drafts."""
    found: dict[str, object] = {}
    for temperature in (0.0, TEMPERATURE):
        tokens, begins, lasts = continuations(base, segments, length, temperature)
        chance = chances(layer, base, tokens, depth, temperature)
        walks = [walk(chance, begins, lasts, d) for d in range(1, depth + 1)]
        found["greedy" if temperature == 0 else f"temperature {temperature}"] = {
            "per_position": walks[-1][0],
            "tokens_per_pass": [passes for _, passes in walks],
            "tokens": int((lasts - begins).sum()),
        }
    return found
