"""Layouts of one model that must compute the same: fused and separate tensors, scales beside
matrices, widths that differ by layer, lists in the place of numbers, heads of their own.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gguf
import numpy as np
import pytest
import strata_engine_testing as engine

from tests.model.loading import load, logits_of
from tools.synth_model import MetaValue, Shape, write_model

TOKENS = np.random.default_rng(4).integers(0, 300, size=30).astype(np.int32)
SHAPE = Shape(layers=2, width=64)
MOE = Shape(architecture="qwen3moe", layers=2, width=64)
ARCHITECTURES = ("llama", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "qwen3next")

Tensors = dict[str, np.ndarray]


def read(path: Path) -> tuple[dict[str, object], Tensors]:
    reader = gguf.GGUFReader(str(path))
    tensors = {}
    for t in reader.tensors:
        shape = [int(n) for n in reversed(t.shape.tolist())]
        tensors[t.name] = np.array(t.data, dtype=np.float32).reshape(shape)
    return {key: field.contents() for key, field in reader.fields.items()}, tensors


def rewrite(source: Path, out: Path, tensors: Tensors, **lists: list[int]) -> Path:
    """The f32 model `source` with other tensors, and keys of its architecture as lists."""
    meta, _ = read(source)
    architecture = str(meta["general.architecture"])
    writer = gguf.GGUFWriter(str(out), architecture)
    for key, value in meta.items():
        name = key.removeprefix(f"{architecture}.").replace(".", "_")
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        if name in lists:
            writer.add_array(key, lists[name])
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, data in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def same(a: Path, b: Path) -> None:
    np.testing.assert_array_equal(
        logits_of(load(a, max_context=64), TOKENS), logits_of(load(b, max_context=64), TOKENS)
    )


def refusal(path: Path) -> engine.EngineError:
    with pytest.raises(engine.EngineError) as caught:
        engine.model_facts(str(path))
    return caught.value


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fused_qkv_is_separate(architecture: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", Shape(architecture=architecture, layers=4, width=64))
    _, tensors = read(source)
    fused = dict(tensors)
    layers = [n.removesuffix("attn_k.weight") for n in tensors if n.endswith(".attn_k.weight")]
    assert layers
    for layer in layers:
        parts = [fused.pop(f"{layer}attn_{part}.weight") for part in "qkv"]
        fused[f"{layer}attn_qkv.weight"] = np.concatenate(parts)
    same(source, rewrite(source, tmp_path / "f.gguf", fused))


def test_fused_gate_up_is_separate(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", MOE)
    _, tensors = read(source)
    fused = dict(tensors)
    for i in range(2):
        parts = [fused.pop(f"blk.{i}.ffn_{part}_exps.weight") for part in ("gate", "up")]
        fused[f"blk.{i}.ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
    same(source, rewrite(source, tmp_path / "f.gguf", fused))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scales_of_matrices(architecture: str, tmp_path: Path) -> None:
    """Powers of two, so that dividing the weights by them changes no bit of the product."""
    shape = Shape(architecture=architecture, layers=4, width=64, tied=False)
    source = write_model(tmp_path / "m.gguf", shape)
    _, tensors = read(source)
    scaled = dict(tensors)
    names = [n for n, t in tensors.items() if t.ndim == 2 and n.endswith(".weight")]
    skipped = ("token_embd", "ssm_conv1d", "ffn_gate_inp")
    names = [name for name in names if not any(part in name for part in skipped)]
    for i, name in enumerate(names):
        scale = np.float32(2.0 ** (i % 5 - 2))
        scaled[name] = tensors[name] / scale
        scaled[name.replace(".weight", ".scale")] = np.array([scale], np.float32)
        scaled[name.replace(".weight", ".input_scale")] = np.array([0.3], np.float32)
    assert "output.scale" in scaled
    same(source, rewrite(source, tmp_path / "s.gguf", scaled))


def test_scales_that_stand_alone_are_refused(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", dataclasses.replace(SHAPE, biases=True))
    _, tensors = read(source)
    one = np.ones(1, np.float32)
    for name, text in (
        ("blk.0.attn_x.input_scale", "attn_x.input_scale is not used"),
        ("blk.0.attn_norm.scale", "attn_norm.scale is not used"),
        ("blk.0.attn_q.scale", "attn_q.scale stands beside a bias"),
    ):
        error = refusal(rewrite(source, tmp_path / "r.gguf", {**tensors, name: one}))
        assert error.code == "model.tensor_unexpected"
        assert text in str(error)
    wrong = {**tensors, "blk.0.ffn_up.input_scale": np.ones(7, np.float32)}
    assert "ffn_up.input_scale" in str(refusal(rewrite(source, tmp_path / "w.gguf", wrong)))


def test_equal_lists_are_numbers(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", SHAPE)
    _, tensors = read(source)
    lists = {"attention_head_count": [4, 4], "attention_head_count_kv": [2, 2],
             "feed_forward_length": [96, 96]}  # fmt: skip
    same(source, rewrite(source, tmp_path / "l.gguf", tensors, **lists))


def narrower(tensors: Tensors, layer: int, ff: int) -> Tensors:
    """The layer's feed-forward part with its other inner values as zeros, and cut to `ff`."""
    out = dict(tensors)
    for part, axis in (("gate", -2), ("up", -2), ("down", -1)):
        for name in (f"blk.{layer}.ffn_{part}.weight", f"blk.{layer}.ffn_{part}_exps.weight"):
            if name in out:
                out[name] = np.take(out[name], range(ff), axis=axis)
    return out


def zeroed(tensors: Tensors, layer: int, ff: int) -> Tensors:
    out = dict(tensors)
    for name in (f"blk.{layer}.ffn_down.weight", f"blk.{layer}.ffn_down_exps.weight"):
        if name in out:
            out[name] = out[name].copy()
            out[name][..., ff:] = 0
    return out


@pytest.mark.parametrize(
    ("shape", "key", "wide"),
    [(SHAPE, "feed_forward_length", 96), (MOE, "expert_feed_forward_length", 32)],
    ids=["dense", "experts"],
)
def test_widths_that_differ_by_layer(shape: Shape, key: str, wide: int, tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", shape)
    _, tensors = read(source)
    narrow = narrower(tensors, 1, wide // 2)
    path = rewrite(source, tmp_path / "n.gguf", narrow, **{key: [wide, wide // 2]})
    padded = rewrite(source, tmp_path / "z.gguf", zeroed(tensors, 1, wide // 2))
    got = logits_of(load(path, max_context=64), TOKENS)
    np.testing.assert_allclose(got, logits_of(load(padded, max_context=64), TOKENS), atol=2e-5)
    error = refusal(rewrite(source, tmp_path / "o.gguf", narrow, **{key: [wide, wide // 2, 8]}))
    assert error.code == "model.metadata"
    assert f"{key} has 3 entries; block_count is 2" in str(error)


def test_heads_of_recurrent_layers_may_be_none(tmp_path: Path) -> None:
    shape = Shape(architecture="qwen35", layers=4, width=64)
    source = write_model(tmp_path / "m.gguf", shape)
    _, tensors = read(source)
    lists = {"attention_head_count_kv": [0, 0, 0, 2]}
    same(source, rewrite(source, tmp_path / "l.gguf", tensors, **lists))
    lists = {"attention_head_count_kv": [0, 0, 2, 0]}
    error = refusal(rewrite(source, tmp_path / "e.gguf", tensors, **lists))
    assert "attention.head_count_kv is 0 for layer 3, which has attention" in str(error)
    lists = {"attention_head_count_kv": [1, 0, 0, 2]}
    error = refusal(rewrite(source, tmp_path / "d.gguf", tensors, **lists))
    assert "attention.head_count_kv differs between layers" in str(error)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tied_is_a_head_like_the_table(architecture: str, tmp_path: Path) -> None:
    shape = Shape(architecture=architecture, layers=4, width=64, tied=True)
    source = write_model(tmp_path / "m.gguf", shape)
    _, tensors = read(source)
    assert "output.weight" not in tensors
    untied = {**tensors, "output.weight": tensors["token_embd.weight"]}
    same(source, rewrite(source, tmp_path / "u.gguf", untied))


@pytest.mark.parametrize("key", ["llama.attention.head_count_kv", "llama.attention.head_count"])
def test_lists_of_no_heads(key: str, tmp_path: Path) -> None:
    keys: dict[str, MetaValue] = {key: [0, 0]}
    error = refusal(write_model(tmp_path / "m.gguf", SHAPE, metadata=keys))
    assert error.code == "model.metadata"
    assert f"{key} is 0; allowed" in str(error)
