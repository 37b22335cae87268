"""Loads models for tests: one plan with defaults for every value a test does not care about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import strata_engine_testing as engine

PAGE = engine.PAGE_TOKENS


def load(
    path: Path | str,
    *,
    batch: int = 8,
    prefill: int = 256,
    kv: str = "f32",
    activations: str = "f32",
    threads: int = 1,
    max_context: int = 512,
    kv_tokens: int = 4096,
    **options: object,
) -> engine.LoadedModel:
    """`options` go to LoadedModel (isa, without_kernels)."""
    plan = engine.ModePlan(
        batch=batch,
        prefill=prefill,
        kv=kv,
        activations=activations,
        threads=threads,
        max_context=max_context,
        kv_tokens=kv_tokens,
    )
    return engine.LoadedModel(str(path), plan, **options)


def logits_of(model: engine.LoadedModel, tokens: np.ndarray, chunk: int = 0) -> np.ndarray:
    """All-position logits of one sequence, f32 [T, vocab]."""
    return model.logits(np.asarray(tokens, dtype=np.int32), chunk=chunk)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural-log probabilities in f64, over the last axis."""
    wide = logits.astype(np.float64)
    peak = wide.max(axis=-1, keepdims=True)
    return wide - peak - np.log(np.exp(wide - peak).sum(axis=-1, keepdims=True))
