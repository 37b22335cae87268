"""Mixtures of experts against the NumPy reference: sizes, layouts of tensors, types, and the same
bits whatever shares the step."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import strata_engine_testing as engine

from tests.model.loading import load, logits_of
from tests.model.sparse_model import write_sparse_model
from tools.golden.reference_model import ReferenceModel
from tools.synth_model import TYPES, Shape, write_model

SHAPE = Shape(
    architecture="qwen3moe", width=256, heads=4, kv_heads=2, head_dim=64, expert_ff=256, experts=6
)
TOKENS = np.random.default_rng(17).integers(0, 320, size=41).astype(np.int32)
QUANTISED = [t for t in TYPES if t not in {"f32", "f16", "bf16"}]
# What is the same for all types is tried with some.
FUSED = {"f16", "q4_0", "q4_k", "q6_k", "iq2_s", "iq3_s", "nvfp4"}
LAYOUTS = [(kind, fused) for kind in TYPES for fused in (False, True) if not fused or kind in FUSED]
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def worst_error(logits: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(logits - wanted).max() / np.abs(wanted).max())


def usual_error(logits: np.ndarray, wanted: np.ndarray) -> float:
    """Mean absolute error of a row over the standard deviation of all: the median over the rows."""
    return float(np.median(np.abs(logits - wanted).mean(axis=-1)) / wanted.std())


@pytest.mark.parametrize(
    "changes",
    [
        {"experts": 3, "experts_used": 1},
        {"experts": 64, "experts_used": 10, "expert_ff": 32},
        {"experts": 4, "experts_used": 4},
        {"experts": 1, "experts_used": 1},
        {"fused_gate_up": True},
        {"fused_gate_up": True, "expert_scales": True},
        {"expert_scales": True},
        {"shared_ff": 96},
        {"width": 96, "expert_ff": 40, "tied": False},  # rows that are no multiple of a tile
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [1, 2])
def test_f32_logits_match(changes: dict[str, int], seed: int, tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, **changes)
    path = write_model(tmp_path / "m.gguf", shape, seed=seed)
    assert worst_error(logits_of(load(path), TOKENS), ReferenceModel(path).logits(TOKENS)) <= 1e-4


@pytest.mark.parametrize(("kind", "fused"), LAYOUTS)
def test_float_kernels_decode_every_type(kind: str, fused: bool, tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, fused_gate_up=fused)
    path = write_model(tmp_path / "m.gguf", shape, kind=kind)
    assert worst_error(logits_of(load(path), TOKENS), ReferenceModel(path).logits(TOKENS)) <= 1e-4


@pytest.mark.parametrize(("kind", "fused"), [(k, f) for k, f in LAYOUTS if k in QUANTISED])
def test_int8_activations_stay_close(kind: str, fused: bool, tmp_path: Path) -> None:
    """Rounding may make a row choose another expert, so that single rows differ more."""
    shape = dataclasses.replace(SHAPE, fused_gate_up=fused)
    path = write_model(tmp_path / "m.gguf", shape, kind=kind)
    model = load(path, activations="int8")
    used = [op["request"] for op in model.ops if op["op"] == "expert_matmul"]
    assert len(used) == 3 * shape.layers
    assert all("act=i8block" in request for request in used)
    error = usual_error(logits_of(model, TOKENS), ReferenceModel(path).logits(TOKENS))
    assert 0 < error <= 0.05


def test_types_of_one_layer_may_differ(tmp_path: Path) -> None:
    """Experts of floats take rows that are not rounded, beside others of the same layer."""
    kinds = {"ffn_up_exps": "f16", "ffn_down_exps": "q8_0", "ffn_gate_inp": "f16"}
    path = write_model(tmp_path / "m.gguf", SHAPE, kind="q4_1", kinds=kinds)
    model = load(path, activations="int8")
    acts = [op["request"] for op in model.ops if op["op"] == "expert_matmul" and op["layer"] == 0]
    assert [request.split("act=")[1].split()[0] for request in acts] == [
        "i8block",
        "f32",
        "i8block",
    ]
    error = usual_error(logits_of(model, TOKENS), ReferenceModel(path).logits(TOKENS))
    assert error <= 0.05


@pytest.mark.parametrize("scale", [0.0, 2.5])
def test_weights_scale(scale: float, tmp_path: Path) -> None:
    metadata = {"qwen3moe.expert_weights_scale": scale}
    path = write_model(tmp_path / "m.gguf", SHAPE, metadata=metadata)
    plain = write_model(tmp_path / "p.gguf", SHAPE)
    wanted = ReferenceModel(path if scale else plain).logits(TOKENS)
    assert worst_error(logits_of(load(path), TOKENS), wanted) <= 1e-4
    if scale:
        assert worst_error(ReferenceModel(plain).logits(TOKENS), wanted) > 1e-2


def test_equal_odds_take_the_lowest_experts(tmp_path: Path) -> None:
    """A router of zeros: every row's experts are the first ones, weighted alike."""
    path = write_model(tmp_path / "m.gguf", SHAPE, kinds={"ffn_gate_inp": "q8_0"})
    data = bytearray(path.read_bytes())
    for tensor in gguf.GGUFReader(str(path)).tensors:
        if "ffn_gate_inp" in tensor.name:
            data[tensor.data_offset : tensor.data_offset + tensor.n_bytes] = bytes(tensor.n_bytes)
    path.write_bytes(data)
    assert worst_error(logits_of(load(path), TOKENS), ReferenceModel(path).logits(TOKENS)) <= 1e-4


# --- the same bits


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = dataclasses.replace(SHAPE, experts=12, experts_used=3, shared_ff=256)
    kinds = {"ffn_down": "q8_0", "ffn_up_exps": "q6_k"}
    return write_model(tmp_path_factory.mktemp("moe") / "m.gguf", shape, kind="q4_k", kinds=kinds)


@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("isa", ["auto", "portable"])
@pytest.mark.parametrize("threads", [1, 2])
def test_chunks(mixed: Path, activations: str, isa: str, threads: int) -> None:
    model = load(mixed, activations=activations, isa=isa, threads=threads)
    tokens = np.random.default_rng(3).integers(0, 320, size=150).astype(np.int32)
    alone = logits_of(model, tokens, chunk=1)
    for chunk in (7, 32, 150):
        np.testing.assert_array_equal(logits_of(model, tokens, chunk=chunk), alone, f"{chunk}")


@pytest.mark.parametrize("activations", ["int8", "f32"])
def test_batch_equals_solo(mixed: Path, activations: str) -> None:
    """Eight sequences a step, one of them in chunks, have the logits that each has alone."""
    model = load(mixed, activations=activations)
    rng = np.random.default_rng(5)
    sequences = rng.integers(0, 320, size=(8, 30)).astype(np.int32)
    tables = np.arange(8, dtype=np.uint32)[:, None]
    got = np.zeros((8, 30, model.vocab), np.float32)
    first = 6  # rows of sequence 0 in the first step
    done = [0] * 8
    for step in range(25):
        counts = [first if step == 0 and s == 0 else 1 for s in range(8)]
        tokens = np.concatenate([sequences[s][done[s] : done[s] + counts[s]] for s in range(8)])
        positions = np.concatenate([np.arange(done[s], done[s] + counts[s]) for s in range(8)])
        owners = np.repeat(np.arange(8), counts).astype(np.uint32)
        rows = np.arange(len(tokens), dtype=np.uint32)
        out = model.step(tokens, positions.astype(np.uint32), owners, tables, rows)
        for s in range(8):
            got[s, done[s] : done[s] + counts[s]] = out[owners == s]
            done[s] += counts[s]
    solo = load(mixed, activations=activations, batch=1, prefill=16)
    for s in range(8):
        alone = logits_of(solo, sequences[s][: done[s]], chunk=16)
        np.testing.assert_array_equal(got[s, : done[s]], alone, f"sequence {s}")


# --- plans


@pytest.mark.parametrize("kind", ["iq4_nl", "mxfp4", "iq2_s", "q2_0"])
def test_missing_expert_kernels_are_named(kind: str, tmp_path: Path) -> None:
    kinds = {"ffn_down_exps": kind}
    path = write_model(tmp_path / "m.gguf", SHAPE, kind="q8_0", kinds=kinds)
    plan = engine.ModePlan(max_context=64, kv_tokens=64)
    assert engine.plan_mode(str(path), plan)["missing"] == []
    hidden = [f"expert_matmul*:weight={kind}"]
    missing = engine.plan_mode(str(path), plan, without_kernels=hidden)["missing"]
    assert [code for code, _ in missing] == ["kernel.missing"] * len(missing)
    text = "\n".join(text for _, text in missing)
    for layer in range(SHAPE.layers):
        assert f"blk.{layer}.ffn_down_exps.weight" in text
    assert f"expert_matmul weight={kind}" in text
    assert "experts=6 experts_used=2" in text
    assert "ffn_up_exps" not in text


SPARSE = Shape(  # a public model of 30 thousand million parameters
    architecture="qwen3moe",
    layers=48,
    width=2048,
    heads=32,
    kv_heads=4,
    head_dim=128,
    ff=6144,
    vocab=151936,
    context=40960,
    tied=False,
    experts=128,
    experts_used=8,
    expert_ff=768,
)


def resident_file_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssFile:"))
    return int(line.split()[1]) * 1024


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sparse") / "m.gguf"
    try:
        write_sparse_model(path, SPARSE, kinds=("q4_k",))
    except OSError as error:
        pytest.skip(f"no sparse file of this size here: {error}")
    assert path.stat().st_size > 16e9
    return path


def test_memory_of_experts_is_planned(sparse: Path) -> None:
    plan = engine.ModePlan(max_context=4096, kv_tokens=4096, activations="int8", threads=2)
    planned = engine.plan_mode(str(sparse), plan)
    assert planned["missing"] == []
    experts = SPARSE.layers * SPARSE.experts * 3 * SPARSE.width * SPARSE.expert_ff
    packed = planned["memory"]["weights.packed"]
    packed_bytes = packed["bytes"] if isinstance(packed, dict) else packed
    # rows16 of Q4_K has 4.5 bits a weight: every expert is there, once.
    others = SPARSE.layers * 2 * SPARSE.width * (4096 + 512) + SPARSE.vocab * SPARSE.width
    assert packed_bytes == pytest.approx((experts + others) * 4.625 / 8, rel=0.02)


def test_experts_that_stay_in_the_file_are_not_read(sparse: Path) -> None:
    before = resident_file_bytes()
    model = load(sparse, max_context=64, kv_tokens=64, batch=1, prefill=1)
    grown = resident_file_bytes() - before
    assert any(op["op"] == "expert_matmul" for op in model.ops)
    assert grown < 64 << 20, f"{grown} bytes"


# --- refusals


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("expert_count", None, "qwen3moe.expert_count is missing"),
        ("expert_count", 0, "is 0; allowed are 1 to 4096"),
        ("expert_used_count", 7, "is 7; allowed are 1 to 6"),
        ("expert_used_count", 0, "is 0; allowed are 1 to 6"),
        ("expert_feed_forward_length", None, "is missing"),
        ("expert_gating_func", 2, "is 2; supported is 1, softmax"),
        ("expert_group_count", 4, "is 4; experts in groups are not supported"),
        ("expert_weights_scale", -1.0, "is -1; allowed are 0 to 1e+06"),
        ("expert_weights_scale", float("nan"), "is not a finite number"),
    ],
)
def test_metadata(key: str, value: float | None, text: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, metadata={f"qwen3moe.{key}": value})
    with pytest.raises(engine.EngineError, match=re.escape("qwen3moe." + key)) as caught:
        engine.model_facts(str(path))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "dims", "text"),
    [
        ("ffn_up_exps", (5, 256, 256), "has shape [256, 256, 5]; needed is [256, 256, 6]"),
        ("ffn_down_exps", (6, 256, 128), "has shape [128, 256, 6]; needed is [256, 256, 6]"),
        ("ffn_gate_exps", (1536, 256), "has shape [256, 1536]; needed is [256, 256, 6]"),
        ("ffn_gate_inp", (5, 256), "has shape [256, 5]; needed is [256, 6]"),
    ],
)
def test_shapes(name: str, dims: tuple[int, ...], text: str, tmp_path: Path) -> None:
    tensor = f"blk.1.{name}.weight"
    path = write_model(tmp_path / "m.gguf", SHAPE, reshape={tensor: dims})
    with pytest.raises(engine.EngineError) as caught:
        engine.model_facts(str(path))
    assert caught.value.code == "model.tensor_shape"
    assert f"tensor {tensor} {text}" in str(caught.value)


@pytest.mark.parametrize("name", EXPERTS)
def test_missing_experts(name: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, drop=[f"blk.0.{name}.weight"])
    with pytest.raises(engine.EngineError) as caught:
        engine.model_facts(str(path))
    assert caught.value.code == "model.tensor_missing"
    assert f"tensor blk.0.{name}.weight is missing; needed is [256, 256, 6]" in str(caught.value)


def test_experts_are_refused_where_the_architecture_has_none(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", Shape(), metadata={"llama.expert_count": 8})
    with pytest.raises(engine.EngineError, match=r"llama\.expert_count asks for a mixture"):
        engine.model_facts(str(path))
