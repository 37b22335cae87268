"""The sampler against the formulas of sampling_reference.py: the same candidates in the same
order with the same weights, and the same tokens, over many random cases."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strata_engine_testing import (
    Sampler,
    SamplingParams,
    SamplingState,
    draw_candidates,
    exp_nonpositive,
    philox4x32,
    philox_uniform,
    rank_logits,
)

from tests.unit.sampling_reference import (
    MARGIN,
    AmbiguousError,
    Params,
    adjust,
    candidates,
    log_softmax,
    philox,
    ranked,
    sample,
    top_logprobs,
    uniform,
)

SHAPES = ("normal", "ties", "flat", "peaked", "equal", "extreme")


def make_logits(shape: str, vocab: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    match shape:
        case "normal":
            x = rng.normal(0, 3, vocab)
        case "ties":
            x = rng.integers(-3, 4, vocab).astype(np.float64)
        case "flat":
            x = rng.normal(0, 0.01, vocab)
        case "peaked":
            x = rng.normal(0, 1, vocab)
            x[rng.integers(vocab)] += 20
        case "equal":
            x = np.full(vocab, rng.normal())
        case _:
            x = rng.choice([-3e38, -1e10, -50.0, 0.0, -0.0, 60.0, 88.0], vocab)
    return x.astype(np.float32)


logit_rows = st.builds(
    make_logits,
    st.sampled_from(SHAPES),
    st.one_of(st.integers(1, 40), st.sampled_from([320, 2048, 3000, 5000])),
    st.integers(0, 2**32),
)
shares = st.one_of(st.just(1.0), st.floats(0.001, 0.999))
draw_params = st.builds(
    Params,
    temperature=st.one_of(st.just(1.0), st.floats(0.05, 3), st.sampled_from([1e-5, 100.0, 1e6])),
    top_k=st.one_of(st.just(0), st.integers(1, 60), st.sampled_from([1000, 2**32 - 1])),
    top_p=shares,
    min_p=st.one_of(st.just(0.0), st.floats(0.0001, 1)),
    typical_p=shares,
)


def engine_params(params: Params) -> SamplingParams:
    return SamplingParams(**asdict(params))


@given(logit_rows, draw_params)
@settings(max_examples=500, deadline=None)
def test_candidates_order_and_weights(logits: np.ndarray, params: Params) -> None:
    """Numbers on both sides of each step of the distribution function fix all three."""
    try:
        ids, p = candidates(logits, params)
    except AmbiguousError:
        assume(False)
    sums = np.cumsum(p)
    lows = np.concatenate([[0.0], sums[:-1]])
    wide = [i for i in range(len(ids)) if p[i] > 8 * MARGIN]
    wide = [*wide[:40], *wide[40:][-10:]]
    us, expected = [0.0], [ids[0]]
    for i in wide:
        us += [lows[i] + MARGIN, (lows[i] + sums[i]) / 2, min(sums[i], 1) - MARGIN]
        expected += [ids[i]] * 3
    assert draw_candidates(logits, engine_params(params), us) == expected


@given(
    logit_rows,
    draw_params,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.data(),
)
@settings(max_examples=500, deadline=None)
def test_same_token(
    logits: np.ndarray, params: Params, seed: int, choice: int, data: st.DataObject
) -> None:
    vocab = len(logits)
    tokens = st.integers(0, vocab - 1)
    params = replace(
        params,
        seed=seed,
        choice=choice,
        temperature=data.draw(st.sampled_from([params.temperature, params.temperature, 0.0])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 0.5, 1.3, 100.0])),
        presence_penalty=data.draw(st.sampled_from([0.0, -2.0, 0.7])),
        frequency_penalty=data.draw(st.sampled_from([0.0, -1.5, 0.4])),
        logit_bias=data.draw(
            st.lists(
                st.tuples(tokens, st.floats(-100, 100)),
                max_size=4,
                unique_by=lambda entry: entry[0],
            )
        ),
        min_tokens=data.draw(st.integers(0, 6)),
        stop_ids=data.draw(st.lists(tokens, max_size=min(3, vocab - 1))),
        logprobs=data.draw(st.sampled_from([-1, 0, min(5, vocab)])),
    )
    prompt = data.draw(st.lists(tokens, max_size=20))
    generated = data.draw(st.lists(tokens, max_size=8))
    state = SamplingState(engine_params(params), vocab, prompt)
    state.replay(generated)
    before = logits.copy()
    result = Sampler(vocab).sample(logits, state, len(generated))
    np.testing.assert_array_equal(logits, before)
    try:
        expected = sample(logits, params, prompt, generated)
    except AmbiguousError:
        assume(False)
    assert result["fault"] == "none"
    assert result["token"] == expected
    if params.logprobs >= 0:
        check_logprobs(logits, expected, params.logprobs, result["logprob"], result["top"])


def check_logprobs(
    logits: np.ndarray, token: int, count: int, logprob: float, top: list[tuple[int, float]]
) -> None:
    expected = top_logprobs(logits, count)
    assert [i for i, _ in top] == [i for i, _ in expected]
    np.testing.assert_allclose(
        [v for _, v in top], [v for _, v in expected], rtol=1e-12, atol=1e-12
    )
    assert logprob == pytest.approx(float(log_softmax(logits)[token]), rel=1e-12, abs=1e-12)


def test_logprobs_of_huge_logits_keep_their_small_part() -> None:
    logits = np.array([-3e38, -3e38], dtype=np.float32)
    result = Sampler(2).score(logits, 1, 2)
    check_logprobs(logits, 1, 2, result["logprob"], result["top"])


@given(logit_rows, st.data())
@settings(max_examples=200, deadline=None)
def test_score(logits: np.ndarray, data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(logits) - 1))
    count = data.draw(st.integers(0, min(20, len(logits))))
    result = Sampler(len(logits)).score(logits, token, count)
    assert result["fault"] == "none"
    check_logprobs(logits, token, count, result["logprob"], result["top"])


@given(logit_rows, st.integers(1, 6000))
@settings(max_examples=300, deadline=None)
def test_ranking(logits: np.ndarray, count: int) -> None:
    found = rank_logits(logits, count)
    assert len(found) >= min(count, len(logits))
    assert found == ranked(logits)[: len(found)].tolist()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("vocab", [49152, 151_936])
def test_real_vocabularies(shape: str, vocab: int) -> None:
    logits = make_logits(shape, vocab, 5)
    sampler = Sampler(vocab)
    for params in (
        Params(temperature=0.0),
        Params(),
        Params(top_k=40),
        Params(top_k=3000, min_p=0.01),
        Params(top_p=0.9, temperature=0.7),
        Params(typical_p=0.8),
    ):
        seeded = replace(params, seed=11, logprobs=20)
        state = SamplingState(engine_params(seeded), vocab)
        for position in range(3):
            generated = [0] * position
            result = sampler.sample(logits, state, position)
            try:
                expected = sample(logits, seeded, [], generated)
            except AmbiguousError:
                continue
            assert result["token"] == expected, (params, position)
            check_logprobs(logits, expected, 20, result["logprob"], result["top"])


def test_exponential_is_accurate() -> None:
    for x in np.concatenate([np.linspace(-700, 0, 20011), -np.geomspace(1e-300, 1, 500)]):
        assert exp_nonpositive(float(x)) == pytest.approx(float(np.exp(x)), rel=6e-16)
    assert exp_nonpositive(0.0) == 1.0


# From the known-answer file of the authors' Random123 library (philox4x32, 10 rounds).
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            "00000000 00000000 00000000 00000000",
            "00000000 00000000",
            "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_known_answers(counter: str, key: str, expected: str) -> None:
    words = [[int(word, 16) for word in text.split()] for text in (counter, key, expected)]
    assert philox4x32(words[0], words[1]) == words[2]
    assert philox(words[0], words[1]) == words[2]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_philox_uniform(seed: int, choice: int, position: int) -> None:
    u = philox_uniform(seed, choice, position)
    assert u == uniform(seed, choice, position)
    assert 0 <= u < 1


def test_adjust_reference_is_not_vacuous() -> None:
    logits = np.array([1, -1, 2, 3], dtype=np.float32)
    params = Params(
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias=[(3, -1.0)],
        min_tokens=4,
        stop_ids=[2],
    )
    adjusted = adjust(logits, params, [1], [0, 0])
    assert adjusted.tolist() == [1 / 2 - 1, -2, -np.inf, 2]
