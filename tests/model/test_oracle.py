"""Tiny models of each architecture against logits from independent implementations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import strata_engine_testing as engine

from tests.model.loading import load, logits_of

ARCHITECTURES = ("llama", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe")
LAYERS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}  # 3 in the others
PROMPTS = ("p7", "p40eos", "p99")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def oracle(request, repository: Path) -> Path:
    return repository / "tests" / "data" / "oracle" / f"tiny-{request.param}"


@pytest.mark.parametrize("isa", ["auto", "portable"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_f32_logits_match(oracle: Path, prompt: str, isa: str) -> None:
    golden = np.load(oracle.with_suffix(".npz"))
    model = load(oracle.with_suffix(".gguf"), isa=isa)
    logits = logits_of(model, golden[f"{prompt}.tokens"])
    worst = float(np.abs(logits - golden[f"{prompt}.logits"]).max())
    assert worst <= 1e-3, f"largest difference {worst:.2e}"


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_chunks_give_the_same_bits(oracle: Path, chunk: int) -> None:
    golden = np.load(oracle.with_suffix(".npz"))
    model = load(oracle.with_suffix(".gguf"))
    whole = logits_of(model, golden["p99.tokens"])
    np.testing.assert_array_equal(logits_of(model, golden["p99.tokens"], chunk=chunk), whole)


def test_f16_cache_stays_close(oracle: Path) -> None:
    golden = np.load(oracle.with_suffix(".npz"))
    logits = logits_of(load(oracle.with_suffix(".gguf"), kv="f16"), golden["p99.tokens"])
    difference = np.abs(logits - golden["p99.logits"])
    # f16 keys and values carry 11 bits; the mean error stays near that, and is not zero.
    assert 0 < difference.mean() <= 5e-3
    assert difference.max() <= 1e-1


def test_logits_need_not_be_read_before_the_end(oracle: Path) -> None:
    """A prompt whose last row alone is gathered gives that row's logits."""
    golden = np.load(oracle.with_suffix(".npz"))
    tokens = golden["p40eos.tokens"].astype(np.int32)
    model = load(oracle.with_suffix(".gguf"))
    table = np.arange(4, dtype=np.uint32)[None, :]
    none = np.zeros(0, dtype=np.uint32)
    first, rest = np.arange(30, dtype=np.uint32), np.arange(30, 40, dtype=np.uint32)
    out = model.step(tokens[:30], first, np.zeros(30, np.uint32), table, none)
    assert out.shape == (0, model.vocab)
    last = model.step(
        tokens[30:], rest, np.zeros(10, np.uint32), table, np.array([9], dtype=np.uint32)
    )
    assert np.abs(last[0] - golden["p40eos.logits"][-1]).max() <= 1e-3


def test_facts(oracle: Path) -> None:
    facts = engine.model_facts(str(oracle.with_suffix(".gguf")))
    assert facts["architecture"] == oracle.name.removeprefix("tiny-")
    assert facts["layers"] == LAYERS.get(facts["architecture"], 3)
    assert facts["vocab"] == 320
    assert facts["context"] == 4096
    assert facts["types"] == ["f32"]
    assert facts["file_bytes"] == oracle.with_suffix(".gguf").stat().st_size
    assert len(facts["sha256_head"]) == 64
