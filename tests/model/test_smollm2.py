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


def generated_logprobs(model, prompt: dict) -> np.ndarray:
    """Log-probabilities [generated tokens, vocab] at each position that chose a token."""
    prompt_ids, generated = prompt["prompt_tokens"], prompt["tokens"]
    tokens = np.array(prompt_ids + generated[:-1], dtype=np.int32)
    return log_softmax(logits_of(model, tokens)[len(prompt_ids) - 1 :])


def differences(model, golden: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """|d logprob| of the chosen tokens, and of the five likeliest of the first steps."""
    chosen, top = [], []
    for prompt in golden:
        logprobs = generated_logprobs(model, prompt)
        steps = np.arange(len(prompt["tokens"]))
        chosen.append(np.abs(logprobs[steps, prompt["tokens"]] - prompt["logprobs"]))
        for step, best in enumerate(prompt["top5_first_steps"]):
            top.append([abs(logprobs[step, token] - value) for token, _, value in best])
    return np.concatenate(chosen), np.concatenate(top)


def test_float_kernels(smollm2_path: Path, golden: list[dict]) -> None:
    chosen, top = differences(load(smollm2_path, max_context=512, batch=1), golden)
    assert chosen.size == 243
    assert top.size == 200
    assert chosen.max() <= 1e-3
    assert top.max() <= 1e-3


def test_greedy_tokens_with_float_kernels(smollm2_path: Path, golden: list[dict]) -> None:
    model = load(smollm2_path, batch=1)
    for prompt in golden:
        best = generated_logprobs(model, prompt).argmax(axis=1)
        assert best.tolist() == prompt["tokens"]


@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_int8_activations(smollm2_path: Path, golden: list[dict], kv: str) -> None:
    chosen, _ = differences(load(smollm2_path, activations="int8", kv=kv, batch=1), golden)
    assert 0 < chosen.mean() <= 0.1


def test_chunks_have_the_same_bits(smollm2_path: Path, golden: list[dict]) -> None:
    model = load(smollm2_path, activations="int8", kv="f16", threads=2)
    tokens = np.array(golden[1]["prompt_tokens"] + golden[1]["tokens"], dtype=np.int32)
    alone = logits_of(model, tokens, chunk=1)
    for chunk in (7, 32, 256):
        np.testing.assert_array_equal(logits_of(model, tokens, chunk=chunk), alone)
