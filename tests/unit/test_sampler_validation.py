"""Ranges of the sampling parameters: every field, both ends, NaN, and what the sentence says."""

from __future__ import annotations

import math

import pytest
from strata_engine_testing import TOP_LOGPROBS_MAX, SamplingParams, validate_sampling

VOCAB = 1000

REFUSED: list[tuple[dict[str, object], str, str]] = [
    ({"temperature": -0.1}, "temperature", "temperature is -0.1; allowed: 0..1e+06"),
    ({"temperature": 2e6}, "temperature", "allowed: 0..1e+06"),
    ({"top_p": 0.0}, "top_p", "top_p is 0; allowed: above 0 to 1"),
    ({"top_p": 1.0001}, "top_p", "allowed: above 0 to 1"),
    ({"min_p": -0.01}, "min_p", "min_p is -0.01; allowed: 0..1"),
    ({"min_p": 1.01}, "min_p", "allowed: 0..1"),
    ({"typical_p": 0.0}, "typical_p", "allowed: above 0 to 1"),
    ({"typical_p": 2.0}, "typical_p", "allowed: above 0 to 1"),
    ({"repetition_penalty": 0.0}, "repetition_penalty", "allowed: 0.01..100"),
    ({"repetition_penalty": -1.0}, "repetition_penalty", "allowed: 0.01..100"),
    ({"repetition_penalty": 101.0}, "repetition_penalty", "allowed: 0.01..100"),
    ({"presence_penalty": 2.1}, "presence_penalty", "presence_penalty is 2.1; allowed: -2..2"),
    ({"presence_penalty": -2.1}, "presence_penalty", "allowed: -2..2"),
    ({"frequency_penalty": 2.1}, "frequency_penalty", "allowed: -2..2"),
    ({"frequency_penalty": -2.1}, "frequency_penalty", "allowed: -2..2"),
    (
        {"min_tokens": 17, "max_tokens": 16},
        "min_tokens",
        "min_tokens is 17; allowed: 0..16 (max_tokens)",
    ),
    (
        {"logit_bias": [(VOCAB, 1.0)]},
        "logit_bias",
        "logit_bias names token 1000; the model has tokens 0..999",
    ),
    ({"logit_bias": [(-1, 1.0)]}, "logit_bias", "names token -1"),
    (
        {"logit_bias": [(7, 100.5)]},
        "logit_bias",
        "logit_bias is 100.5 for token 7; allowed: -100..100",
    ),
    ({"logit_bias": [(7, math.nan)]}, "logit_bias", "is nan for token 7"),
    ({"logit_bias": [(7, -math.inf)]}, "logit_bias", "is -inf for token 7"),
    ({"logit_bias": [(7, 1.0), (8, 1.0), (7, 2.0)]}, "logit_bias", "names token 7 twice"),
    (
        {"logit_bias": [(i % VOCAB, 0.0) for i in range(1025)]},
        "logit_bias",
        "logit_bias has 1025 entries; at most 1024 are allowed",
    ),
    ({"stop_ids": [3, VOCAB]}, "stop_ids", "stop_ids names token 1000"),
    ({"stop_ids": [-5]}, "stop_ids", "stop_ids names token -5"),
    ({"stop_ids": [1] * 1025}, "stop_ids", "stop_ids has 1025 entries"),
    (
        {"stop_ids": list(range(VOCAB)), "min_tokens": 1},
        "stop_ids",
        "stop_ids name all 1000 tokens of the model",
    ),
    ({"logprobs": 21}, "logprobs", "logprobs is 21; allowed: -1 (none) or 0..20"),
    ({"logprobs": -2}, "logprobs", "logprobs is -2; allowed: -1 (none) or 0..20"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "prompt_logprobs is 21"),
    ({"prompt_logprobs": -(2**31)}, "prompt_logprobs", "prompt_logprobs is -2147483648"),
]


@pytest.mark.parametrize(("fields", "field", "said"), REFUSED)
def test_refused(fields: dict[str, object], field: str, said: str) -> None:
    reason = validate_sampling(SamplingParams(**fields), VOCAB)
    assert reason is not None
    code, text = reason
    assert code == f"sampling.{field}"
    assert said in text


@pytest.mark.parametrize(
    "field",
    [
        "temperature",
        "top_p",
        "min_p",
        "typical_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_floats_must_be_finite(field: str, value: float) -> None:
    reason = validate_sampling(SamplingParams(**{field: value}), VOCAB)
    assert reason is not None
    assert reason[0] == f"sampling.{field}"
    assert f"{field} is {value}; allowed: " in reason[1]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 1e6},
        {"top_p": 1e-9},
        {"min_p": 1.0},
        {"typical_p": 1e-9},
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 100.0},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0},
        {"top_k": 2**32 - 1},
        {"max_tokens": 0},
        {"max_tokens": 2**32 - 1, "min_tokens": 2**32 - 1},
        {"logit_bias": [(0, -100.0), (VOCAB - 1, 100.0)]},
        {"stop_ids": [0, VOCAB - 1, 0]},
        {"stop_ids": list(range(VOCAB))},
        {"stop_ids": [*range(VOCAB - 1), 0], "min_tokens": 1},
        {"logprobs": 20, "prompt_logprobs": 0},
        {"seed": 2**64 - 1, "choice": 2**32 - 1},
    ],
)
def test_accepted(fields: dict[str, object]) -> None:
    assert validate_sampling(SamplingParams(**fields), VOCAB) is None


def test_logprobs_limit_is_the_smallest_of_service_engine_and_model() -> None:
    params = SamplingParams(logprobs=5)
    assert validate_sampling(params, VOCAB, 5) is None
    assert "0..4" in validate_sampling(params, VOCAB, 4)[1]
    assert "0..3" in validate_sampling(params, 3)[1]
    assert f"0..{TOP_LOGPROBS_MAX}" in validate_sampling(SamplingParams(logprobs=99), VOCAB, 50)[1]
