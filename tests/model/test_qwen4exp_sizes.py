"""Architecture qwen4exp: other sizes and types against the NumPy reference, what is refused, and a
table of n-grams that stays in the file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import strata_engine_testing as engine

from tests.model.loading import load, logits_of
from tests.model.test_draft_layers import Sequence, behind
from tools.golden.reference_qwen4exp import Qwen4ExpReference
from tools.synth_model import MetaValue, Shape, write_model

SHAPE = Shape(
    architecture="qwen4exp", layers=4, width=64, head_dim=32, rope_dims=16, experts=6, shared_ff=64
)
LENGTH = 70


def tokens_of(seed: int, length: int = LENGTH) -> np.ndarray:
    """Some of them are what cuts n-grams."""
    tokens = np.random.default_rng(seed).integers(0, SHAPE.vocab, size=length)
    tokens[[20, 30, 31]] = SHAPE.vocab - 1
    return tokens.astype(np.int32)


def assert_matches(got: np.ndarray, wanted: np.ndarray) -> None:
    assert np.abs(got - wanted).max() <= 1e-3 * max(1.0, float(np.abs(wanted).max()))


@pytest.mark.parametrize("isa", ["auto", "avx2", "portable"])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"streams": 1, "low_rank": 7},
        {"streams": 2, "table_layer": 0},
        {"streams": 3, "table_tokens": 2, "table_heads": 3, "table_taps": 3},
        {"table_layer": -1, "fused_gate_up": True},
        {"layers": 5, "table_layer": 4, "tied": False},  # before the last layer, a recurrent one
        {"layers": 3, "attention_interval": 2, "table_layer": 2, "table_tokens": 5},
        {"key_heads": 1, "value_heads": 3, "state_size": 32, "table_taps": 1},
    ],
    ids=str,
)
def test_sizes_match_the_reference(sizes: dict[str, int], isa: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, **sizes)
    path = write_model(tmp_path / "m.gguf", shape, seed=len(sizes))
    wanted = Qwen4ExpReference(path).logits(tokens_of(1))
    assert_matches(logits_of(load(path, isa=isa), tokens_of(1)), wanted)


@pytest.mark.parametrize(
    ("kind", "vector_kind"),
    [("f16", "f16"), ("bf16", "bf16"), ("q8_0", "f32"), ("q4_1", "f16"), ("q5_0", "f32")],
)
def test_types_match_the_reference(kind: str, vector_kind: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, kind=kind, vector_kind=vector_kind)
    wanted = Qwen4ExpReference(path).logits(tokens_of(2))
    assert_matches(logits_of(load(path), tokens_of(2)), wanted)


def test_gains_of_streams_may_be_a_matrix(tmp_path: Path) -> None:
    wide = SHAPE.streams * SHAPE.width
    names = [f"blk.{i}.{part}_norm.weight" for i in range(4) for part in ("hc_attn", "hc_ffn")]
    matrices = dict.fromkeys(names, (SHAPE.streams, SHAPE.width))
    path = write_model(tmp_path / "m.gguf", SHAPE, reshape=matrices)
    reference = Qwen4ExpReference(path)
    assert_matches(logits_of(load(path), tokens_of(3)), reference.logits(tokens_of(3)))
    wrong = write_model(tmp_path / "w.gguf", SHAPE, reshape={names[0]: (2, wide // 2)})
    with pytest.raises(engine.EngineError, match="needed is"):
        engine.model_facts(str(wrong))


@pytest.mark.parametrize("activations", ["f32", "int8"])
def test_a_batch_has_the_bits_of_each_alone(activations: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, kind="q8_0")
    whole = logits_of(load(path, activations=activations), tokens_of(4))
    for chunk, threads in ((1, 1), (5, 2), (32, 3)):
        model = load(path, activations=activations, threads=threads)
        np.testing.assert_array_equal(logits_of(model, tokens_of(4), chunk=chunk), whole)


def test_a_slot_keeps_nothing_of_its_last_sequence(tmp_path: Path) -> None:
    model = load(write_model(tmp_path / "m.gguf", SHAPE))
    first = logits_of(model, tokens_of(5))
    logits_of(model, tokens_of(6))
    np.testing.assert_array_equal(logits_of(model, tokens_of(5), chunk=3), first)


@pytest.mark.parametrize(
    ("of_file", "setting", "runs"),
    [
        (None, "auto", "stream"),
        ("stream", "auto", "stream"),
        ("whole", "auto", "whole"),
        (None, "whole", "whole"),
        ("whole", "stream", "stream"),
    ],
)
def test_drafts_match_the_reference(
    of_file: str | None, setting: str, runs: str, tmp_path: Path
) -> None:
    shape = dataclasses.replace(SHAPE, draft_layers=1)
    path = write_model(tmp_path / "m.gguf", shape, metadata={"nextn.hidden_norm": of_file})
    said = write_model(tmp_path / "r.gguf", shape, metadata={"nextn.hidden_norm": runs})
    reference, tokens = Qwen4ExpReference(said), tokens_of(7, 40)
    sequence = Sequence(path, "model", mtp_hidden_norm=setting)
    logits, hidden = sequence.step(tokens, 0)
    assert_matches(logits, reference.logits(tokens))
    wanted_hidden = reference.hidden(tokens)
    assert hidden.shape == (len(tokens), SHAPE.streams * SHAPE.width)
    assert_matches(hidden, wanted_hidden)
    wanted, _ = reference.draft(tokens, behind(wanted_hidden))
    assert_matches(sequence.draft_rows(tokens, behind(hidden)), wanted)


def test_a_drafter_of_another_number_of_streams_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE)
    drafter = dataclasses.replace(SHAPE, draft_layers=1, streams=2)
    other = write_model(tmp_path / "d.gguf", drafter)
    with pytest.raises(engine.EngineError) as caught:
        Sequence(path, str(other))
    assert caught.value.code == "drafter.shape"
    assert "hyper_connection.count is 2, the model's is 4" in str(caught.value)


def test_forms_of_drafters_are_refused(tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, draft_layers=1)
    for metadata, setting, text in (
        ({"nextn.hidden_norm": "both"}, "auto", 'supported are "stream" and "whole"'),
        ({"nextn.hidden_state": "after output_norm"}, "auto", 'supported is "residual streams"'),
    ):
        path = write_model(tmp_path / "m.gguf", shape, metadata=metadata)
        with pytest.raises(engine.EngineError) as caught:
            Sequence(path, "model", mtp_hidden_norm=setting)
        assert caught.value.code == "drafter.metadata"
        assert text in str(caught.value)
    plain = Shape(architecture="qwen3", draft_layers=1)
    path = write_model(tmp_path / "p.gguf", plain)
    with pytest.raises(engine.EngineError) as caught:
        Sequence(path, "model", mtp_hidden_norm="whole")
    assert caught.value.code == "drafter.metadata"
    assert "no residual streams" in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"hyper_connection.count": 0}, "hyper_connection.count is 0; allowed are 1 to"),
        ({"hyper_connection.count": None}, "hyper_connection.count is missing"),
        ({"hyper_connection.low_rank": 0}, "hyper_connection.low_rank is 0"),
        ({"attention.compress_ratios": [0, 0, 4]}, "has 3 entries; block_count is 4"),
        ({"attention.compress_ratios": [0, 4, 0, 4]}, "is 4 for layer 1, which is recurrent"),
        ({"attention.compress_ratios": [0, 0, 0, 9999]}, "has 9999; allowed are 0 to"),
        ({"attention.indexer.top_k": None}, "attention.indexer.top_k is missing"),
        ({"attention.indexer.top_k": 3}, "attention.indexer.top_k is 3; allowed are 4 to"),
        (
            {"attention.indexer.top_k": 16, "attention.indexer.head_count": None},
            "attention.indexer.head_count is missing",
        ),
        (
            {"attention.indexer.top_k": 16, "attention.indexer.key_length": 8},
            "attention.indexer.key_length is 8; allowed are 16 to",
        ),
        ({"ple.layers": [1, 2]}, "ple.layers names 2 layers; supported is one"),
        ({"ple.layers": [4]}, "ple.layers names layer 4; the model has 4"),
        ({"ple.layers": None}, "ple.layers is missing"),
        ({"ple.ngram_size": 1}, "ple.ngram_size is 1; allowed are 2 to"),
        ({"ple.ngram_size": None}, "ple.ngram_size is missing"),
        ({"ple.heads_per_ngram": 0}, "ple.heads_per_ngram is 0"),
        ({"ple.heads_per_ngram": 3}, "has 4 entries; needed are 6"),
        ({"ple.conv_kernel": 0}, "ple.conv_kernel is 0"),
        ({"ple.eos_token_id": None}, "ple.eos_token_id is missing"),
        ({"ple.layer_multipliers": [3, 5]}, "ple.layer_multipliers has 2 entries"),
        ({"ple.head_vocab_sizes": [97, 0, 101, 103]}, "ple.head_vocab_sizes has 0"),
        ({"ple.head_vocab_sizes": [97, 99, 101, 1 << 40]}, "allowed are 1 to 4294967295"),
        ({"ple.head_offsets": [0, 97, 196, 1 << 63]}, "behind the largest table"),
        ({"ple.head_offsets": None}, "ple.head_offsets is missing"),
        ({"embedding_length_per_layer_input": 0}, "embedding_length_per_layer_input is 0"),
        ({"expert_gating_func": 2}, "expert_gating_func is 2; supported is 1"),
        ({"rope.scaling.type": "dynamic"}, "supported are none, linear and yarn"),
    ],
    ids=str,
)
def test_metadata_is_refused(metadata: dict[str, object], text: str, tmp_path: Path) -> None:
    keys = {f"qwen4exp.{name}": value for name, value in metadata.items()}
    path = write_model(tmp_path / "m.gguf", SHAPE, metadata=keys)
    with pytest.raises(engine.EngineError) as caught:
        engine.model_facts(str(path))
    assert caught.value.code == "model.metadata"
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"drop": ["per_layer_token_embd.weight"]}, "model.tensor_missing", "per_layer_token_embd"),
        ({"drop": ["blk.2.hc_ffn_inject.weight"]}, "model.tensor_missing", "[256, 4]"),
        ({"drop": ["output_hc_up.weight"]}, "model.tensor_missing", "output_hc_up"),
        (
            {"reshape": {"per_layer_token_embd.weight": (399, 32)}},
            "model.tensor_shape",
            "[32, 400 and up]",
        ),
        ({"reshape": {"blk.1.ple_key.weight": (256, 64)}}, "model.tensor_shape", "ple_key"),
        ({"extra": {"output_norm.weight": (64,)}}, "model.tensor_unexpected", "output_norm"),
        ({"extra": {"blk.2.ple_key.weight": (256, 128)}}, "model.tensor_unexpected", "ple_key"),
    ],
    ids=str,
)
def test_tensors_are_refused(
    change: dict[str, object], code: str, text: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, **change)  # type: ignore[arg-type]
    with pytest.raises(engine.EngineError) as caught:
        engine.model_facts(str(path))
    assert caught.value.code == code
    assert text in str(caught.value)


def test_a_table_may_have_more_rows_than_are_named(tmp_path: Path) -> None:
    padded = {"per_layer_token_embd.weight": (431, 32)}
    path = write_model(tmp_path / "m.gguf", SHAPE, reshape=padded)
    wanted = Qwen4ExpReference(path).logits(tokens_of(8))
    assert_matches(logits_of(load(path), tokens_of(8)), wanted)


CHOOSING = {"top_k": 16, "ratio": 4}


@pytest.mark.parametrize("isa", ["auto", "avx2", "portable"])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"ratio": 8},
        {"ratio": 1, "top_k": 9},
        {"index_heads": 5, "index_dim": 48},
        {"attention_interval": 2, "index_heads": 1, "layers": 6},
        {"top_k": 5},  # one block
    ],
    ids=str,
)
def test_chosen_tokens_match_the_reference(sizes: dict[str, int], isa: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, **(CHOOSING | sizes))
    path = write_model(tmp_path / "m.gguf", shape, seed=3)
    wanted = Qwen4ExpReference(path).logits(tokens_of(1))
    whole = logits_of(load(path, isa=isa), tokens_of(1))
    assert_matches(whole, wanted)
    for chunk in (1, 6):
        np.testing.assert_array_equal(logits_of(load(path, isa=isa), tokens_of(1), chunk), whole)
    # A row that sees no more blocks than it may choose has the bits of one that sees everything.
    everything = write_model(tmp_path / "e.gguf", dataclasses.replace(shape, top_k=4096), seed=3)
    seen = shape.top_k // shape.ratio * shape.ratio + shape.ratio - 1
    dense = logits_of(load(everything, isa=isa), tokens_of(1))
    np.testing.assert_array_equal(dense[:seen], whole[:seen])
    assert np.abs(dense[seen:] - whole[seen:]).max() > 1e-3


def test_index_keys_rotate_as_keys_do(tmp_path: Path) -> None:
    """YaRN multiplies what rotates."""
    yarn: dict[str, MetaValue] = {
        "qwen4exp.rope.scaling.type": "yarn",
        "qwen4exp.rope.scaling.factor": 8.0,
        "qwen4exp.rope.scaling.original_context_length": 64,
    }
    shape = dataclasses.replace(SHAPE, **CHOOSING)
    path = write_model(tmp_path / "m.gguf", shape, seed=3, metadata=yarn)
    wanted = Qwen4ExpReference(path).logits(tokens_of(1))
    assert_matches(logits_of(load(path), tokens_of(1)), wanted)
    plain = Qwen4ExpReference(write_model(tmp_path / "p.gguf", shape, seed=3))
    assert np.abs(plain.logits(tokens_of(1)) - wanted).max() > 1e-2


def test_layers_that_choose_differently_are_refused(tmp_path: Path) -> None:
    ratios = {"qwen4exp.attention.compress_ratios": [0, 4, 0, 8]}
    shape = dataclasses.replace(SHAPE, **CHOOSING, attention_interval=2)
    path = write_model(tmp_path / "m.gguf", shape, metadata=ratios)
    with pytest.raises(engine.EngineError) as caught:
        engine.model_facts(str(path))
    assert (caught.value.kind, caught.value.code) == ("unsupported", "model.metadata")
    assert "has 4 and 8; supported is one number beside 0" in str(caught.value)
    # A layer of 0 attends to everything.
    some = {"qwen4exp.attention.compress_ratios": [0, 0, 0, 4]}
    path = write_model(tmp_path / "s.gguf", shape, metadata=some)
    wanted = Qwen4ExpReference(path).logits(tokens_of(4))
    assert_matches(logits_of(load(path), tokens_of(4)), wanted)


def test_index_keys_are_counted(tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, **CHOOSING)
    chooses = load(write_model(tmp_path / "m.gguf", shape), kv_tokens=1024).memory
    assert chooses["kv.index"] == 1024 * shape.index_dim * 4 * 5 // 4
    assert "kv.index" not in load(write_model(tmp_path / "e.gguf", SHAPE), kv_tokens=1024).memory


def test_sizes_without_a_kernel_are_told(tmp_path: Path) -> None:
    for sizes, text in (
        ({"ratio": 5}, "block_tokens is 5, takes divisors of a page's 32"),
        ({"index_dim": 24}, "head_dim is 24, takes multiples of 16"),
        ({"index_heads": 17}, "heads is 17, takes 1 to 16"),
    ):
        shape = dataclasses.replace(SHAPE, **(CHOOSING | sizes))
        path = write_model(tmp_path / "m.gguf", shape)
        with pytest.raises(engine.EngineError) as caught:
            load(path)
        assert caught.value.code == "kernel.missing"
        assert text in str(caught.value)
