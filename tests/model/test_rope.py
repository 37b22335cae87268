"""Scaled rope: frequencies and magnitude against those of transformers, logits against the
reference in f64, and what is refused.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strata_engine_testing as engine

from tests.model.loading import load, logits_of
from tools.golden.reference_model import ReferenceModel
from tools.golden.rope import rope_table
from tools.synth_model import MetaValue, Shape, main, write_model

VECTORS = json.loads((Path(__file__).parents[1] / "data/rope/vectors.json").read_text())
SHAPE = Shape(layers=2, width=64, head_dim=32, context=1024)
TOKENS = np.random.default_rng(5).integers(0, 300, size=90).astype(np.int32)
YARN: dict[str, MetaValue] = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 8.0,
    "llama.rope.scaling.original_context_length": 128,
}


def metadata_of(case: dict[str, Any]) -> dict[str, MetaValue]:
    keys: dict[str, MetaValue] = {
        "llama.rope.freq_base": case["base"],
        "llama.rope.scaling.type": case["kind"],
        "llama.rope.scaling.factor": case["factor"],
        "llama.rope.scaling.original_context_length": case["trained"],
    }
    for key in ("beta_fast", "beta_slow"):
        if key in case:
            keys[f"llama.rope.scaling.yarn_{key}"] = case[key]
    return keys


@pytest.mark.parametrize("case", VECTORS, ids=lambda c: f"{c['kind']}-{c['dims']}-{c['factor']}")
def test_as_transformers(case: dict[str, Any], tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, head_dim=case["dims"])
    keys = metadata_of(case)
    frequencies, magnitude = engine.rope_table(
        str(write_model(tmp_path / "m.gguf", shape, metadata=keys))
    )
    np.testing.assert_allclose(frequencies, case["frequencies"], rtol=2e-6)
    assert magnitude == pytest.approx(case["magnitude"], rel=1e-6)
    table = rope_table({**keys, "llama.context_length": 1024}, "llama", case["dims"])
    np.testing.assert_allclose(table.frequencies, frequencies, rtol=1e-6)
    assert table.magnitude == pytest.approx(magnitude, rel=1e-6)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"rope.scaling.attn_factor": 0.8},
        {"rope.scaling.yarn_ext_factor": 0.5},
        {"rope.scaling.yarn_ext_factor": 0.0},
        {"rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_beta_slow": 2.0},
        {"rope.scaling.type": "linear", "rope.scaling.attn_factor": 1.3},
        {"rope.scaling.type": "none"},
    ],
    ids=str,
)
def test_logits(extra: dict[str, MetaValue], architecture: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, architecture=architecture, rope_factors=True)
    keys = {key.removeprefix("llama."): value for key, value in YARN.items()} | extra
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    path = write_model(tmp_path / "m.gguf", shape, metadata=named)
    wanted = ReferenceModel(path).logits(TOKENS)
    got = logits_of(load(path, max_context=1024), TOKENS)
    assert np.abs(got - wanted).max() <= 1e-4 * max(1.0, float(np.abs(wanted).max()))
    if extra.get("rope.scaling.type") != "none":
        plain = ReferenceModel(write_model(tmp_path / "p.gguf", shape)).logits(TOKENS)
        assert np.abs(plain - wanted).max() > 1e-2  # the scaling matters


def test_chunks_do_not_matter(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, metadata=YARN)
    model = load(path, max_context=1024)
    whole = logits_of(model, TOKENS)
    for chunk in (1, 13):
        np.testing.assert_array_equal(logits_of(model, TOKENS, chunk=chunk), whole)


def test_context_is_the_files(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, metadata=YARN)
    assert engine.model_facts(str(path))["context"] == 1024
    assert "rope_magnitude" in next(o for o in load(path).ops if o["op"] == "rope")["request"]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"rope.scaling.factor": None}, "rope.scaling.factor is missing, which YaRN needs"),
        ({"rope.scaling.factor": 0.0}, "rope.scaling.factor is 0; allowed"),
        ({"rope.scaling.type": "longrope"}, "would change in the middle of one"),
        ({"rope.scaling.type": "dynamic"}, 'is "dynamic"; supported are none, linear and yarn'),
        ({"rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier is not supported"),
        ({"rope.scaling.yarn_attn_factor": 1.2}, "yarn_attn_factor is not supported"),
        ({"rope.scaling.yarn_beta_fast": 0.0}, "yarn_beta_fast is 0; allowed"),
        ({"rope.scaling.original_context_length": 0}, "original_context_length is 0; allowed"),
        ({"rope.scaling.attn_factor": -1.0}, "attn_factor is -1; allowed"),
        ({"rope.freq_base": 1.0}, "rope.freq_base is 1, with which YaRN"),
    ],
)
def test_refused(keys: dict[str, MetaValue | None], text: str, tmp_path: Path) -> None:
    named = YARN | {f"llama.{key}": value for key, value in keys.items()}
    with pytest.raises(engine.EngineError) as caught:
        engine.model_facts(str(write_model(tmp_path / "m.gguf", SHAPE, metadata=named)))
    assert caught.value.code == "model.metadata"
    assert text in str(caught.value)


@pytest.mark.parametrize("kind", ["none", "linear", "yarn"])
def test_models_from_the_command_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    assert main([str(path), "--rope-scaling", kind, "--rope-factor", "2", "--context", "256"]) == 0
    frequencies, magnitude = engine.rope_table(str(path))
    assert engine.model_facts(str(path))["context"] == (256 if kind == "none" else 512)
    assert frequencies[0] == (0.5 if kind == "linear" else 1.0)
    assert (magnitude > 1) == (kind == "yarn")
