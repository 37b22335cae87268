"""Every tensor type and every option of the architectures against the NumPy reference."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gguf
import numpy as np
import pytest
import strata_engine_testing as engine

from tests.model.loading import load, logits_of
from tools.golden.reference_model import ReferenceModel
from tools.synth_model import TYPES, Shape, write_model

SHAPE = Shape(width=256, heads=8, kv_heads=2, head_dim=32, ff=512, layers=2)
TOKENS = np.random.default_rng(7).integers(0, 320, size=45).astype(np.int32)


def relative_error(logits: np.ndarray, wanted: np.ndarray) -> float:
    """Mean absolute error over the standard deviation of the wanted logits."""
    return float(np.abs(logits - wanted).mean() / wanted.std())


def worst_error(logits: np.ndarray, wanted: np.ndarray) -> float:
    """Largest absolute error over the largest wanted magnitude."""
    return float(np.abs(logits - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("kind", TYPES)
def test_float_kernels_decode_every_type(kind: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, kind=kind)
    logits = logits_of(load(path), TOKENS)
    assert worst_error(logits, ReferenceModel(path).logits(TOKENS)) <= 1e-4


@pytest.mark.parametrize("kind", [t for t in TYPES if t not in {"f32", "f16", "bf16"}])
def test_int8_activations_stay_close(kind: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, kind=kind)
    logits = logits_of(load(path, activations="int8"), TOKENS)
    error = relative_error(logits, ReferenceModel(path).logits(TOKENS))
    assert 0 < error <= 0.03  # 8 bits: a hundredth a layer, and some error there must be


@pytest.mark.parametrize(
    "shape",
    [
        dataclasses.replace(SHAPE, tied=False),
        dataclasses.replace(SHAPE, biases=True),
        dataclasses.replace(SHAPE, fused_qkv=True, biases=True),
        dataclasses.replace(SHAPE, rope_factors=True),
        dataclasses.replace(SHAPE, kv_heads=8),
        dataclasses.replace(SHAPE, kv_heads=1, heads=4, head_dim=64),
        dataclasses.replace(SHAPE, heads=6, kv_heads=3, head_dim=48, width=96, ff=160),
        dataclasses.replace(SHAPE, layers=1),
    ],
    ids=["untied", "biases", "fused_qkv", "rope_factors", "mha", "mqa", "odd_sizes", "one_layer"],
)
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("activations", ["f32", "int8"])
def test_options(architecture: str, shape: Shape, activations: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(shape, architecture=architecture)
    path = write_model(tmp_path / "m.gguf", shape, kind="q8_0")
    logits = logits_of(load(path, activations=activations), TOKENS)
    wanted = ReferenceModel(path).logits(TOKENS)
    if activations == "f32":
        assert worst_error(logits, wanted) <= 1e-4
    else:
        assert relative_error(logits, wanted) <= 0.03


FILE_TYPES = [*(member.name.lower() for member in gguf.GGMLQuantizationType), "q2_0"]


@pytest.mark.parametrize("kind", FILE_TYPES)
def test_every_type_is_planned_or_named_as_missing(kind: str, tmp_path: Path) -> None:
    """A type without kernels is no error of the file: planning says which tensors lack one."""
    kinds = {"ffn_down": kind, "token_embd": kind}
    path = write_model(tmp_path / "m.gguf", SHAPE, kind="q8_0", kinds=kinds)
    facts = engine.model_facts(str(path))
    assert kind in facts["types"]
    assert facts["file_bytes"] == path.stat().st_size
    for activations in ("int8", "f32"):
        plan = engine.ModePlan(max_context=64, kv_tokens=64, activations=activations)
        missing = engine.plan_mode(str(path), plan)["missing"]
        if kind in TYPES:
            assert missing == []
            continue
        assert {code for code, _ in missing} == {"kernel.missing"}
        text = "\n".join(text for _, text in missing)
        assert text.count(f"weight={kind} ") == len(missing) == 3
        for name in ("blk.0.ffn_down.weight", "blk.1.ffn_down.weight", "token_embd.weight"):
            assert name in text


@pytest.mark.parametrize("vector_kind", ["f16", "bf16", "q8_0", "iq4_nl", "mxfp4"])
def test_vectors_of_other_types(vector_kind: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, biases=True)
    path = write_model(tmp_path / "m.gguf", shape, vector_kind=vector_kind)
    logits = logits_of(load(path), TOKENS)
    assert worst_error(logits, ReferenceModel(path).logits(TOKENS)) <= 1e-4


def test_mixed_types_share_one_rounding(tmp_path: Path) -> None:
    """Where one matmul of a norm's output needs f32 rows and the others int8, both are made."""
    path = write_model(tmp_path / "m.gguf", SHAPE, kind="q4_1", kinds={"attn_v": "f16"})
    model = load(path, activations="int8")
    layer = [op["op"] for op in model.ops if op["layer"] == 0]
    assert layer[:5] == ["rms_norm", "quantize", "matmul", "matmul", "matmul"]
    acts = [op["request"].split("act=")[1].split()[0] for op in model.ops if op["layer"] == 0][2:5]
    assert acts == ["i8block", "i8block", "f32"]
    error = relative_error(logits_of(model, TOKENS), ReferenceModel(path).logits(TOKENS))
    assert error <= 0.03


def test_fused_norm_and_its_composition_agree(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, kind="q4_1")
    fused = load(path, activations="int8")
    plain = load(path, activations="int8", without_kernels=["rms_norm_quantize*"])
    assert "rms_norm_quantize" in [op["op"] for op in fused.ops]
    assert "rms_norm_quantize" not in [op["op"] for op in plain.ops]
    np.testing.assert_array_equal(logits_of(fused, TOKENS), logits_of(plain, TOKENS))


@pytest.mark.parametrize(
    "scaling",
    [
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        {"llama.rope.scaling.factor": 2.5},
    ],
)
def test_linear_rope_scaling(scaling: dict, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, metadata=scaling)
    wanted = ReferenceModel(path).logits(TOKENS)
    plain = ReferenceModel(write_model(tmp_path / "p.gguf", SHAPE)).logits(TOKENS)
    logits = logits_of(load(path), TOKENS)
    assert worst_error(logits, wanted) <= 1e-4
    assert worst_error(plain, wanted) > 1e-2  # the scaling matters


def test_partial_rope(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, metadata={"llama.rope.dimension_count": 16})
    logits = logits_of(load(path), TOKENS)
    assert worst_error(logits, ReferenceModel(path).logits(TOKENS)) <= 1e-4


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_many_pages(architecture: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, architecture=architecture, context=2048, layers=1)
    path = write_model(tmp_path / "m.gguf", shape, kind="q8_0")
    tokens = np.random.default_rng(8).integers(0, 320, size=700).astype(np.int32)
    model = load(path, max_context=700)
    assert worst_error(logits_of(model, tokens), ReferenceModel(path).logits(tokens)) <= 1e-4
