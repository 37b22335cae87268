"""Features of the engine: the same list and the same rule as the protocol's, and for each one a
case that shows its implementation at work, so that nothing is stated and not done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strata_engine_testing import (
    Sampler,
    SamplingState,
    asked_features,
    decode_features,
    missing_feature,
)
from strata_engine_testing import SamplingParams as EngineParams
from strata_protocol import messages as m
from strata_protocol.features import FIELDS, Feature, asked_fields, declare

VOCAB = 64
LOGITS = np.linspace(3, 0, VOCAB).astype(np.float32)  # token 0 is the best, 1 the next, ...


def draws(**fields: Any) -> list[int]:
    """Tokens of 300 positions after the generated tokens 0, 0, 0."""
    params = EngineParams(**({"max_tokens": 1000, "temperature": 0.0} | fields))
    state = SamplingState(params, VOCAB, [1])
    state.replay([0, 0, 0])
    sampler = Sampler(VOCAB)
    results = [sampler.sample(LOGITS, state, position) for position in range(3, 303)]
    assert all(result["fault"] == "none" for result in results)
    return [result["token"] for result in results]


def narrowed(**fields: Any) -> bool:
    """Whether the parameter alone keeps tokens out that chance would have drawn."""
    return set(draws(temperature=1.0, **fields)) < set(draws(temperature=1.0))


def scored() -> bool:
    state = SamplingState(EngineParams(temperature=0.0, logprobs=2), VOCAB, [1])
    result = Sampler(VOCAB).sample(LOGITS, state, 0)
    return len(result["top"]) == 2 and result["logprob"] < 0


# What the sampler does. The loop's own (below) are at work in the system tests.
AT_WORK: dict[Feature, Callable[[], bool]] = {
    Feature.SAMPLING: lambda: len(set(draws(temperature=1.0))) > 10 and set(draws()) == {0},
    Feature.TOP_K: lambda: narrowed(top_k=3) and max(draws(temperature=1.0, top_k=3)) == 2,
    Feature.TOP_P: lambda: narrowed(top_p=0.3),
    Feature.MIN_P: lambda: narrowed(min_p=0.5),
    Feature.TYPICAL_P: lambda: narrowed(typical_p=0.3),
    Feature.PENALTIES: lambda: (
        0 not in draws(repetition_penalty=1.5)
        and 0 not in draws(presence_penalty=0.5)
        and 0 not in draws(frequency_penalty=0.5)
    ),
    Feature.LOGIT_BIAS: lambda: set(draws(logit_bias=[(9, 50.0)])) == {9},
    Feature.MIN_TOKENS: lambda: draws(min_tokens=5, stop_ids=[0])[:3] == [1, 1, 0],
    Feature.CHOICES: lambda: draws(temperature=1.0) != draws(temperature=1.0, choice=1),
    Feature.LOGPROBS: scored,
}
OF_THE_LOOP = {Feature.IGNORE_EOS, Feature.PROMPT_LOGPROBS}  # tests/system/test_features_real.py


def test_the_engine_has_the_features_that_the_protocol_can_ask_for() -> None:
    assert decode_features() == [feature.value for feature in FIELDS]
    assert set(AT_WORK) | OF_THE_LOOP == set(FIELDS)


@pytest.mark.parametrize("feature", AT_WORK)
def test_a_stated_feature_is_at_work(feature: Feature) -> None:
    assert AT_WORK[feature]()


def values(field: msgspec.structs.FieldInfo) -> st.SearchStrategy[Any]:
    match field.name:
        case "logit_bias":
            return st.sampled_from([[], [m.LogitBias(3, 0.0)]])
        case "stop_ids":
            return st.sampled_from([[], [5]])
        case "ignore_eos":
            return st.booleans()
        case "needs":
            return st.just([])
        case "logprobs" | "prompt_logprobs":
            return st.integers(-2, 3)
        case _ if isinstance(field.default, float):
            edges = [0.0, -0.0, 1.0, 1e-9, 0.999999, 1.000001, 2.0, -1.0, float("nan")]
            return st.sampled_from(edges)
        case _:
            return st.integers(0, 3)


PARAMS = st.builds(
    m.SamplingParams,
    **{field.name: values(field) for field in msgspec.structs.fields(m.SamplingParams)},
)


def engine_params(params: m.SamplingParams) -> EngineParams:
    fields = msgspec.structs.asdict(params)
    fields["logit_bias"] = [(entry.token, entry.bias) for entry in params.logit_bias]
    return EngineParams(**fields)


@given(PARAMS)
def test_both_sides_derive_the_same_needs(params: m.SamplingParams) -> None:
    asked = {feature.value: field for feature, field in asked_fields(params).items()}
    assert asked_features(engine_params(params)) == asked
    assert missing_feature(engine_params(declare(params))) is None


@pytest.mark.parametrize("name", ["grammar", "images", "telepathy", ""])
def test_a_need_that_no_field_of_the_engine_carries(name: str) -> None:
    params = EngineParams(temperature=0.0, needs=["top_k", name])
    text = f"the request needs {name}, which its mode does not have"
    assert missing_feature(params) == ("mode_unsupported", text)
