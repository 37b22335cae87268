"""Recurrent architectures with mixtures of experts: sizes, layouts and types of tensors against the
NumPy reference, and files that are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import strata_engine_testing as engine

from tests.model.loading import load, logits_of
from tools.golden.reference_recurrent import RecurrentReference
from tools.synth_model import TYPES, Shape, write_model

ARCHITECTURES = ("qwen3next", "qwen35moe")
SHAPE = Shape(
    layers=4,
    width=256,
    head_dim=64,
    rope_dims=32,
    state_size=32,
    value_heads=8,
    experts=6,
    expert_ff=256,
    shared_ff=256,
)
TOKENS = np.random.default_rng(27).integers(0, 320, size=37).astype(np.int32)
QUANTISED = [kind for kind in TYPES if kind not in {"f32", "f16", "bf16"}]

pytestmark = pytest.mark.parametrize("architecture", ARCHITECTURES)


def wanted_of(path: Path) -> np.ndarray:
    return RecurrentReference(path).logits(TOKENS)


@pytest.mark.parametrize(
    "changes",
    [
        {"experts": 3, "experts_used": 1},
        {"experts": 16, "experts_used": 10, "expert_ff": 32},
        {"shared_ff": 0},
        {"shared_ff": 40, "expert_ff": 24, "width": 96, "value_heads": 6},
        {"fused_gate_up": True, "expert_scales": True},
        {"tied": False, "value_heads": 2},
        {"layers": 3, "attention_interval": 2},  # the last layer is recurrent
    ],
    ids=str,
)
def test_f32_logits_match(architecture: str, changes: dict[str, int], tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, architecture=architecture, **changes)
    path = write_model(tmp_path / "m.gguf", shape)
    wanted = wanted_of(path)
    worst = np.abs(logits_of(load(path), TOKENS) - wanted).max() / np.abs(wanted).max()
    assert worst <= 1e-4


@pytest.mark.parametrize("kind", TYPES)
def test_float_kernels_decode_every_type(architecture: str, kind: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, architecture=architecture)
    path = write_model(tmp_path / "m.gguf", shape, kind=kind)
    wanted = wanted_of(path)
    worst = np.abs(logits_of(load(path), TOKENS) - wanted).max() / np.abs(wanted).max()
    assert worst <= 2e-4


@pytest.mark.parametrize("kind", QUANTISED)
def test_int8_activations_stay_close(architecture: str, kind: str, tmp_path: Path) -> None:
    """Rounding may make a row choose another expert, so that single rows differ more."""
    shape = dataclasses.replace(SHAPE, architecture=architecture)
    path = write_model(tmp_path / "m.gguf", shape, kind=kind)
    wanted = wanted_of(path)
    errors = np.abs(logits_of(load(path, activations="int8"), TOKENS) - wanted).mean(axis=-1)
    assert 0 < np.median(errors) / wanted.std() <= 0.08


def test_value_heads_have_the_key_heads_of_their_architecture(
    architecture: str, tmp_path: Path
) -> None:
    """Grouped and tiled heads are the same only where there is one key head or one value head for
    each."""
    shape = dataclasses.replace(SHAPE, architecture=architecture, value_heads=4)
    path = write_model(tmp_path / "m.gguf", shape)
    right = RecurrentReference(path)
    wrong = RecurrentReference(path)
    wrong.use_grouped_heads(architecture != "qwen3next")
    logits = logits_of(load(path), TOKENS)
    assert np.abs(logits - right.logits(TOKENS)).max() < 1e-3
    assert np.abs(logits - wrong.logits(TOKENS)).max() > 1e-1


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("expert_count", None, "expert_count is missing"),
        ("expert_used_count", 7, "is 7; allowed are 1 to 6"),
        ("expert_shared_feed_forward_length", 1 << 21, "allowed are 0 to"),
        ("ssm.time_step_rank", 7, "no multiple of the 2 key heads"),
        ("full_attention_interval", 5, "leaves no layer of attention"),
    ],
)
def test_metadata_is_refused(
    architecture: str, key: str, value: int | None, text: str, tmp_path: Path
) -> None:
    shape = dataclasses.replace(SHAPE, architecture=architecture)
    path = write_model(tmp_path / "m.gguf", shape, metadata={f"{architecture}.{key}": value})
    with pytest.raises(engine.EngineError) as caught:
        engine.model_facts(str(path))
    assert caught.value.code == "model.metadata"
    assert f"{architecture}.{key}" in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "code", "text"),
    [
        # Without the size of the shared expert its tensors would be ignored.
        ({"expert_shared_feed_forward_length": 0}, "model.tensor_unexpected", "_shexp.weight"),
        ({"expert_shared_feed_forward_length": 64}, "model.tensor_shape", "[256, 64]"),
    ],
)
def test_shared_experts_are_never_ignored(
    architecture: str, metadata: dict[str, int], code: str, text: str, tmp_path: Path
) -> None:
    shape = dataclasses.replace(SHAPE, architecture=architecture)
    keys = {f"{architecture}.{name}": value for name, value in metadata.items()}
    path = write_model(tmp_path / "m.gguf", shape, metadata=keys)
    with pytest.raises(engine.EngineError) as caught:
        engine.model_facts(str(path))
    assert caught.value.code == code
    assert text in str(caught.value)


def test_projections_of_the_other_architecture_are_named(architecture: str, tmp_path: Path) -> None:
    name = "ssm_ba" if architecture == "qwen3next" else "ssm_alpha"
    shape = dataclasses.replace(SHAPE, architecture=architecture)
    path = write_model(tmp_path / "m.gguf", shape, drop=[f"blk.0.{name}.weight"])
    with pytest.raises(engine.EngineError) as caught:
        engine.model_facts(str(path))
    assert caught.value.code == "model.tensor_missing"
    assert "tensor blk.0.ssm_alpha.weight is missing; needed is [256, 8]" in str(caught.value)
