"""Models that cannot run: a refusal names tensor or key, what was found and what is needed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import strata_engine_testing as engine

from tools.synth_model import Shape, write_model

SHAPE = Shape()


def refusal(path: Path) -> engine.EngineError:
    with pytest.raises(engine.EngineError) as caught:
        engine.model_facts(str(path))
    return caught.value


def test_missing_tensors_are_listed(tmp_path: Path) -> None:
    drop = ["blk.0.attn_k.weight", "blk.1.ffn_norm.weight"]
    error = refusal(write_model(tmp_path / "m.gguf", SHAPE, drop=drop))
    assert (error.kind, error.code) == ("invalid_request", "model.tensor_missing")
    assert "tensor blk.0.attn_k.weight is missing; needed is [64, 32]" in str(error)
    assert "tensor blk.1.ffn_norm.weight is missing; needed is [64]" in str(error)


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    metadata = {"llama.block_count": 900}
    error = refusal(write_model(tmp_path / "m.gguf", SHAPE, metadata=metadata))
    assert error.code == "model.tensor_missing"
    assert "blk.2.attn_norm.weight" in str(error)
    assert " more" in str(error)
    assert len(str(error)) < 1000


@pytest.mark.parametrize(
    ("name", "dims", "needed"),
    [
        ("blk.1.ffn_down.weight", (96, 64), "[64, 96]; needed is [96, 64]"),
        ("blk.0.attn_norm.weight", (32,), "[32]; needed is [64]"),
        ("token_embd.weight", (319, 64), "[64, 319]; needed is [64, 320]"),
        ("blk.0.attn_q.weight", (4096,), "[4096]; needed is [64, 64]"),
    ],
)
def test_wrong_shapes(name: str, dims: tuple[int, ...], needed: str, tmp_path: Path) -> None:
    error = refusal(write_model(tmp_path / "m.gguf", SHAPE, reshape={name: dims}))
    assert (error.kind, error.code) == ("invalid_request", "model.tensor_shape")
    assert f"tensor {name} has shape {needed}" in str(error)


def test_unexpected_tensor(tmp_path: Path) -> None:
    extra = {"blk.0.attn_sinks.weight": (4,)}
    error = refusal(write_model(tmp_path / "m.gguf", SHAPE, extra=extra))
    assert (error.kind, error.code) == ("unsupported", "model.tensor_unexpected")
    assert "blk.0.attn_sinks.weight" in str(error)


def test_unsupported_architecture(tmp_path: Path) -> None:
    error = refusal(write_model(tmp_path / "m.gguf", SHAPE, architecture_name="mamba"))
    assert (error.kind, error.code) == ("unsupported", "model.architecture")
    assert '"mamba" is not supported; supported are llama, qwen3' in str(error)


def test_unknown_tensor_type(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", dataclasses.replace(SHAPE, width=32), kind="q4_0")
    data = path.read_bytes()
    # The index entry of blk.0.attn_k: name, two dimensions, type 2 (q4_0) made 77.
    at = data.index(b"blk.0.attn_k.weight") + len("blk.0.attn_k.weight") + 4 + 16
    assert data[at : at + 4] == b"\x02\x00\x00\x00"
    path.write_bytes(data[:at] + b"\x4d\x00\x00\x00" + data[at + 4 :])
    error = refusal(path)
    assert (error.kind, error.code) == ("unsupported", "model.tensor_type")
    assert "tensor blk.0.attn_k.weight has type 77, which is no known type" in str(error)


def test_norm_of_integers(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE)
    data = bytearray(path.read_bytes())
    # name, dimensions (1), size, type: the type is made GGML's i32, as wide as the f32 it was.
    at = data.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8
    assert data[at : at + 4] == bytes(4)
    data[at] = 26
    path.write_bytes(data)
    error = refusal(path)
    assert error.code == "model.tensor_type"
    assert "output_norm.weight has type i32" in str(error)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("block_count", None, "is missing"),
        ("block_count", 0, "is 0; allowed are 1 to 1024"),
        ("context_length", None, "is missing"),
        ("context_length", 2**31, "allowed are 1 to 16777216"),
        ("embedding_length", 2**20, "allowed are 1 to 131072"),
        ("feed_forward_length", None, "is missing"),
        ("attention.head_count", 0, "is 0; allowed"),
        ("attention.head_count_kv", 3, "is 3, which does not divide the 4 heads"),
        ("attention.head_count_kv", [2, 1], "differs between layers"),
        ("attention.key_length", 5000, "is 5000; allowed are 1 to 1024"),
        ("attention.value_length", 8, "is 8 and key_length is 16; they must be equal"),
        ("attention.layer_norm_rms_epsilon", None, "is missing"),
        ("attention.layer_norm_rms_epsilon", 2.0, "is 2; allowed are 1e-12 to 0.1"),
        ("attention.layer_norm_rms_epsilon", 0.0, "is 0; allowed"),
        ("attention.sliding_window", 128, "sliding window is not supported"),
        ("rope.dimension_count", 7, "is 7; it must be even"),
        ("rope.dimension_count", 32, "is 32; allowed are 2 to 16"),
        ("rope.freq_base", -1.0, "is -1; allowed are 1 to 1e+12"),
        ("rope.scaling.type", "longrope", 'is "longrope"; supported are none, linear and yarn'),
        ("rope.scaling.type", "dynamic", 'is "dynamic"; supported are none, linear and yarn'),
        ("rope.scaling.factor", 0.0, "is 0; allowed"),
        ("vocab_size", 0, "is 0; allowed"),
        ("expert_count", 8, "mixture of experts"),
    ],
)
def test_metadata(key: str, value: object, text: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, metadata={f"llama.{key}": value})
    error = refusal(path)
    assert error.code == "model.metadata"
    assert f"llama.{key} " in str(error)
    assert text in str(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [("block_count", "two"), ("attention.layer_norm_rms_epsilon", float("nan"))],
)
def test_metadata_that_is_no_number(key: str, value: object, tmp_path: Path) -> None:
    error = refusal(write_model(tmp_path / "m.gguf", SHAPE, metadata={f"llama.{key}": value}))
    assert (error.kind, error.code) == ("invalid_request", "gguf.metadata")
    assert f"llama.{key}" in str(error)


def test_optional_metadata_has_defaults(tmp_path: Path) -> None:
    """SmolLM2's file has no key lengths; the vocabulary can come from the token list."""
    optional = ["attention.key_length", "attention.value_length", "vocab_size"]
    metadata = {f"llama.{key}": None for key in optional}
    path = write_model(tmp_path / "m.gguf", SHAPE, metadata=metadata)
    assert engine.model_facts(str(path))["vocab"] == 320


def test_no_vocabulary_at_all(tmp_path: Path) -> None:
    metadata = {"llama.vocab_size": None, "tokenizer.ggml.tokens": None}
    error = refusal(write_model(tmp_path / "m.gguf", SHAPE, metadata=metadata))
    assert "llama.vocab_size is missing, and so is tokenizer.ggml.tokens" in str(error)
