"""Sampling straight from its formulas, in float64 NumPy and without any shortcut.

The definitions are those of engine/decode/sampler.h; nothing here is shared with the engine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

# Decisions closer than this are left to rounding: a test must not ask about them.
MARGIN = 1e-9


@dataclass(frozen=True)
class Params:
    max_tokens: int = 1 << 20
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: list[tuple[int, float]] = field(default_factory=list)
    seed: int = 0
    choice: int = 0
    stop_ids: list[int] = field(default_factory=list)
    logprobs: int = -1


class AmbiguousError(Exception):
    """The case hangs on the last bits of a float."""


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 after Salmon et al. (2011), figure 2, in unbounded integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def uniform(seed: int, choice: int, position: int) -> float:
    words = philox([position, choice, 0, 0], [seed % 2**32, seed >> 32])
    return ((words[0] << 32 | words[1]) >> 11) / 2**53


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    shifted = x - x.max()
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum())
    return result


def ranked(logits: np.ndarray) -> np.ndarray:
    """Ids by descending logit, ties by ascending id."""
    return np.argsort(-logits.astype(np.float64), kind="stable")


def top_logprobs(logits: np.ndarray, count: int) -> list[tuple[int, float]]:
    values = log_softmax(logits)
    return [(int(i), float(values[i])) for i in ranked(logits)[:count]]


def adjust(
    logits: np.ndarray, params: Params, prompt: list[int], generated: list[int]
) -> np.ndarray:
    """Penalties, bias and masks: float32 in, float32 out, float64 between."""
    x = logits.astype(np.float64)
    for token in set(prompt) | set(generated):
        r = params.repetition_penalty
        x[token] = x[token] / r if x[token] > 0 else x[token] * r
    for token, count in Counter(generated).items():
        x[token] -= params.presence_penalty + params.frequency_penalty * count
    limit = np.finfo(np.float32).max
    x = np.clip(x, -limit, limit).astype(np.float32).astype(np.float64)
    for token, bias in params.logit_bias:
        x[token] += bias
    x = np.clip(x, -limit, limit)
    if len(generated) < params.min_tokens:
        x[params.stop_ids] = -np.inf
    return x.astype(np.float32)


def shortest_prefix(weights: np.ndarray, share: float) -> int:
    """Length of the shortest prefix with at least `share` of the sum of `weights`."""
    sums = np.cumsum(weights) / weights.sum()
    if np.any(np.abs(sums[:-1] - share) < MARGIN):
        raise AmbiguousError
    return int(np.argmax(sums >= share)) + 1 if np.any(sums >= share) else len(weights)


def candidates(logits: np.ndarray, params: Params) -> tuple[list[int], np.ndarray]:
    """Ids that may be drawn, in order of rank, and their probabilities."""
    exponents = (logits.astype(np.float64) - np.float64(logits.max())) / params.temperature
    ids = ranked(logits)
    ids = ids[logits[ids] > -np.inf]
    if 0 < params.top_k < len(logits):
        ids = ids[: params.top_k]
    if params.typical_p < 1:
        ids = ids[typical_ranks(exponents[ids], params.typical_p)]
    if params.top_p < 1:
        ids = ids[: shortest_prefix(np.exp(exponents[ids]), params.top_p)]
    if params.min_p > 0:
        ratio = np.exp(exponents[ids]) / np.exp(exponents[ids[0]])
        close = np.abs(ratio - params.min_p) < MARGIN
        if np.any(close & (logits[ids] != logits[ids[0]])):
            raise AmbiguousError
        ids = ids[ratio >= params.min_p]
    weights = np.exp(exponents[ids])
    return [int(i) for i in ids], weights / weights.sum()


def typical_ranks(exponents: np.ndarray, share: float) -> np.ndarray:
    """Ranks kept by locally typical sampling (Meister et al., 2022), ascending."""
    weights = np.exp(exponents)
    p = weights / weights.sum()
    log_p = exponents - np.log(weights.sum())
    entropy = -np.sum(p * log_p)
    distance = np.abs(log_p + entropy)
    order = np.lexsort((np.arange(len(p)), distance))
    count = shortest_prefix(p[order], share)
    # Equal distances on both sides of the mean differ by rounding only: at the end of the prefix
    # that would decide who is in it.
    near = order[max(count - 4, 0) : count + 4]
    if np.any((np.diff(distance[near]) < MARGIN) & (np.diff(log_p[near]) != 0)):
        raise AmbiguousError
    return np.sort(order[:count])


def sample(logits: np.ndarray, params: Params, prompt: list[int], generated: list[int]) -> int:
    """The token at position len(generated)."""
    x = adjust(logits, params, prompt, generated)
    if params.temperature < 1e-5:
        return int(np.argmax(x))
    ids, p = candidates(x, params)
    u = uniform(params.seed, params.choice, len(generated))
    sums = np.cumsum(p)
    if np.any(np.abs(sums[:-1] - u) < MARGIN):
        raise AmbiguousError
    return ids[min(int(np.searchsorted(sums, u, side="right")), len(ids) - 1)]
