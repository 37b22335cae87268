"""SmolLM2-135M-Instruct, teacher-forced along golden generations (tests/data/golden/README.md)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.model.loading import load, log_softmax, logits_of

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def golden(repository: Path) -> list[dict]:
    path = repository / "tests" / "data" / "golden" / "llamacpp-q4_1-as-f32.json"
    return json.loads(path.read_text())["prompts"]


def generated_logprobs(model, golden: list[dict]) -> list[np.ndarray]:
    """For each prompt the log-probabilities [generated tokens, vocab] its tokens were chosen by."""
    found = []
    for prompt in golden:
        prompt_ids = prompt["prompt_tokens"]
        tokens = np.array(prompt_ids + prompt["tokens"][:-1], dtype=np.int32)
        found.append(log_softmax(logits_of(model, tokens)[len(prompt_ids) - 1 :]))
    return found


def chosen_differences(logprobs: list[np.ndarray], golden: list[dict]) -> np.ndarray:
    """|d logprob| of every generated token."""
    differences = []
    for prompt, found in zip(golden, logprobs, strict=True):
        steps = np.arange(len(prompt["tokens"]))
        differences.append(np.abs(found[steps, prompt["tokens"]] - prompt["logprobs"]))
    return np.concatenate(differences)


def top_differences(logprobs: list[np.ndarray], golden: list[dict]) -> np.ndarray:
    """|d logprob| of the five likeliest tokens of the first steps."""
    return np.array(
        [
            abs(found[step, token] - value)
            for prompt, found in zip(golden, logprobs, strict=True)
            for step, best in enumerate(prompt["top5_first_steps"])
            for token, _, value in best
        ]
    )


@pytest.fixture(scope="module")
def float_logprobs(smollm2_path: Path, golden: list[dict]) -> list[np.ndarray]:
    return generated_logprobs(load(smollm2_path, batch=1), golden)


def test_float_kernels(float_logprobs: list[np.ndarray], golden: list[dict]) -> None:
    chosen = chosen_differences(float_logprobs, golden)
    top = top_differences(float_logprobs, golden)
    assert chosen.size == 243
    assert top.size == 200
    assert chosen.max() <= 1e-3
    assert top.max() <= 1e-3


def test_greedy_tokens(float_logprobs: list[np.ndarray], golden: list[dict]) -> None:
    for prompt, found in zip(golden, float_logprobs, strict=True):
        assert found.argmax(axis=1).tolist() == prompt["tokens"]


@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_int8_activations(smollm2_path: Path, golden: list[dict], kv: str) -> None:
    model = load(smollm2_path, activations="int8", kv=kv, batch=1)
    chosen = chosen_differences(generated_logprobs(model, golden), golden)
    assert 0 < chosen.mean() <= 0.1


def test_chunks_have_the_same_bits(smollm2_path: Path, golden: list[dict]) -> None:
    model = load(smollm2_path, activations="int8", kv="f16", threads=2)
    tokens = np.array(golden[1]["prompt_tokens"] + golden[1]["tokens"], dtype=np.int32)
    alone = logits_of(model, tokens, chunk=1)
    for chunk in (7, 32, 256):
        np.testing.assert_array_equal(logits_of(model, tokens, chunk=chunk), alone)
