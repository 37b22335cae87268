"""What each sampling parameter does, one by one; distribution, resume, faults and edges."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from strata_engine_testing import (
    Sampler,
    SamplingParams,
    SamplingState,
    draw_candidates,
)

VOCAB = 64
LOGITS = np.linspace(3, 0, VOCAB).astype(np.float32)  # token 0 is the best, 1 the next, ...


def draws(
    logits: np.ndarray = LOGITS,
    count: int = 400,
    prompt: tuple[int, ...] = (),
    generated: tuple[int, ...] = (),
    **fields: Any,
) -> list[int]:
    """Tokens at positions len(generated), ... of sequences that only differ in position."""
    state = SamplingState(SamplingParams(max_tokens=100_000, **fields), len(logits), list(prompt))
    state.replay(list(generated))
    sampler = Sampler(len(logits))
    tokens = []
    for position in range(len(generated), len(generated) + count):
        result = sampler.sample(logits, state, position)
        assert result["fault"] == "none"
        tokens.append(result["token"])
    return tokens


def greedy(logits: np.ndarray = LOGITS, **fields: Any) -> int:
    (token,) = draws(logits, 1, temperature=0.0, **fields)
    return token


def test_plain_sampling_reaches_most_tokens() -> None:
    assert len(set(draws(count=2000))) > 50


def test_temperature() -> None:
    assert set(draws(temperature=0.0)) == {0}
    assert set(draws(temperature=9e-6)) == {0}
    sharp, flat = Counter(draws(temperature=0.2)), Counter(draws(temperature=50.0))
    assert sharp[0] > 60 > flat[0]
    assert max(flat) > 60 > max(sharp)


def test_huge_temperature_is_uniform() -> None:
    assert len(set(draws(temperature=1e6, count=1000))) == VOCAB


def test_top_k() -> None:
    assert set(draws(top_k=3)) == {0, 1, 2}
    assert set(draws(top_k=1)) == {0}
    assert draws(top_k=VOCAB) == draws(top_k=0) == draws(top_k=2**32 - 1)


def test_top_p() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    assert set(draws(logits, top_p=0.49)) == {0}
    assert set(draws(logits, top_p=0.75)) == {0, 1}
    assert set(draws(logits, top_p=0.9)) == {0, 1, 2}
    assert set(draws(logits, top_p=1.0)) == {0, 1, 2, 3}
    assert set(draws(logits, top_p=1e-12)) == {0}


def test_exact_boundaries() -> None:
    """Equal logits have the weight 1 exactly, so both sides of a boundary can be told apart: a
    share is reached at equality, a draw goes on at equality."""
    equal = np.zeros(4, np.float32)
    assert draw_candidates(equal, SamplingParams(), [0.0, 0.25, 0.5, 0.75]) == [0, 1, 2, 3]
    assert draw_candidates(equal, SamplingParams(), [np.nextafter(0.25, 0)]) == [0]
    for field in ("top_p", "typical_p"):
        half: dict[str, Any] = {field: 0.5}
        assert draw_candidates(equal, SamplingParams(**half), [0.0, 0.5, 0.99]) == [0, 1, 1]
    assert draw_candidates(equal, SamplingParams(min_p=1.0), [0.99]) == [3]


def test_top_p_of_0_keeps_the_best() -> None:
    assert draw_candidates(LOGITS, SamplingParams(top_p=0.0), [0.0, 0.5, 0.999]) == [0, 0, 0]


def test_min_p() -> None:
    logits = np.log(np.array([0.5, 0.26, 0.2, 0.04])).astype(np.float32)
    assert set(draws(logits, min_p=0.5)) == {0, 1}
    assert set(draws(logits, min_p=0.3)) == {0, 1, 2}
    assert set(draws(logits, min_p=1.0)) == {0}


def test_typical_p() -> None:
    """One likely token, many unlikely ones: the entropy is far from the likely token's surprise,
    so it goes first, which no other filter does."""
    logits = np.log(np.array([0.3] + [0.01] * 70)).astype(np.float32)
    assert 0 in draws(logits)
    assert 0 not in draws(logits, typical_p=0.5)


def test_repetition_penalty_counts_prompt_and_output() -> None:
    assert greedy(prompt=(0,), repetition_penalty=1.2) == 1
    assert greedy(generated=(0,), repetition_penalty=1.2) == 1
    assert greedy(prompt=(0, 0, 0), generated=(1, 1), repetition_penalty=1.2) == 2
    assert greedy(prompt=(5,), repetition_penalty=0.5) == 5  # below 1 it favours
    negative = np.array([-1.0, -1.1, -3.0], dtype=np.float32)
    assert greedy(negative, prompt=(0,), repetition_penalty=1.5) == 1


@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty"])
def test_presence_and_frequency_penalty_count_output_only(field: str) -> None:
    once: dict[str, Any] = {field: 1.0}
    favour: dict[str, Any] = {field: -2.0}
    assert greedy(prompt=(0,), **once) == 0
    assert greedy(generated=(0,), **once) == 1
    assert greedy(generated=(30,), **favour) == 30


def test_frequency_grows_and_presence_does_not() -> None:
    logits = np.array([1.0, 0.0], dtype=np.float32)
    assert greedy(logits, generated=(0, 0), presence_penalty=0.6) == 0
    assert greedy(logits, generated=(0, 0), frequency_penalty=0.6) == 1
    assert greedy(logits, generated=(0,), frequency_penalty=0.6) == 0


def test_logit_bias() -> None:
    assert greedy(logit_bias=[(40, 100.0)]) == 40
    assert greedy(logit_bias=[(0, -100.0), (1, -100.0)]) == 2
    assert 0 not in draws(logit_bias=[(0, -100.0)])


def test_min_tokens_masks_stop_ids_until_then() -> None:
    assert greedy(min_tokens=3, stop_ids=[0, 1]) == 2
    assert greedy(min_tokens=3, stop_ids=[0, 1], generated=(7, 7)) == 2
    assert greedy(min_tokens=3, stop_ids=[0, 1], generated=(7, 7, 7)) == 0
    assert greedy(min_tokens=0, stop_ids=[0, 1]) == 0
    assert not {0, 1} & set(draws(count=100, min_tokens=100, stop_ids=[0, 1]))


def test_min_tokens_beats_logit_bias() -> None:
    assert greedy(min_tokens=1, stop_ids=[5], logit_bias=[(5, 100.0)]) == 0


def test_seed_choice_and_position() -> None:
    first = draws(seed=1)
    assert draws(seed=1) == first
    assert draws(seed=2) != first
    assert draws(seed=1 + 2**32) != first  # the upper half of the seed counts
    assert draws(seed=1, choice=1) != first
    assert len(set(first)) > 10  # positions differ


def test_other_rows_change_nothing() -> None:
    """The same sequence alone and interleaved with others on one sampler."""
    alone = draws(count=50, seed=3, top_p=0.8, repetition_penalty=1.1, prompt=(1, 2))
    sampler = Sampler(VOCAB)
    state = SamplingState(
        SamplingParams(max_tokens=99, seed=3, top_p=0.8, repetition_penalty=1.1), VOCAB, [1, 2]
    )
    other = SamplingState(SamplingParams(typical_p=0.4, logprobs=5), VOCAB)
    rng = np.random.default_rng(0)
    mixed = []
    for position in range(50):
        sampler.sample(rng.normal(0, 4, VOCAB).astype(np.float32), other, position)
        mixed.append(sampler.sample(LOGITS, state, position)["token"])
        sampler.score(rng.normal(0, 4, VOCAB).astype(np.float32), 3, 20)
    assert mixed == alone


def test_resume_continues_as_if_nothing_happened() -> None:
    params = SamplingParams(
        max_tokens=60,
        seed=99,
        temperature=0.9,
        top_p=0.95,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.4,
        min_tokens=20,
        stop_ids=[0],
    )
    rng = np.random.default_rng(4)
    rows = rng.normal(0, 2, (60, VOCAB)).astype(np.float32)
    prompt = [1, 2, 3, 2]

    def run(state: SamplingState, begin: int) -> list[int]:
        sampler = Sampler(VOCAB)
        tokens = []
        for position in range(begin, 60):
            tokens.append(sampler.sample(rows[position], state, position)["token"])
            state.accept(tokens[-1])
        return tokens

    whole = run(SamplingState(params, VOCAB, prompt), 0)
    assert len(set(whole)) > 15
    for cut in (0, 1, 19, 20, 37, 59):
        state = SamplingState(params, VOCAB, prompt)
        state.replay(whole[:cut])
        assert state.generated_count == cut
        assert run(state, cut) == whole[cut:]
    # Not replaying shows: the penalties and min_tokens depend on it.
    assert run(SamplingState(params, VOCAB, prompt), 20) != whole[20:]


def test_state_counts_prompt_and_output() -> None:
    state = SamplingState(SamplingParams(repetition_penalty=1.1), VOCAB, [5, 6, 5])
    for token in (6, 7, 7):
        state.accept(token)
    assert state.seen == {5: 0, 6: 1, 7: 2}
    state = SamplingState(SamplingParams(presence_penalty=1.0), VOCAB, [5, 6, 5])
    state.accept(7)
    assert state.seen == {7: 1}
    state = SamplingState(SamplingParams(), VOCAB, [5])
    state.accept(7)
    assert (state.seen, state.generated_count) == ({}, 1)


def test_state_holds_every_token_of_the_vocabulary() -> None:
    vocab = 5000
    state = SamplingState(
        SamplingParams(max_tokens=vocab, repetition_penalty=1.1), vocab, list(range(0, vocab, 2))
    )
    for token in range(vocab):
        state.accept(token)
    assert state.seen == dict.fromkeys(range(vocab), 1)


# Upper 1e-6 quantiles of the chi-square distribution by degrees of freedom.
CHI_SQUARE = {9: 45.1, 19: 65.4}


@pytest.mark.parametrize(
    ("vocab", "fields"),
    [
        (10, {}),
        (20, {"temperature": 0.7}),
        (20, {"temperature": 1.5, "seed": 2**63 + 5, "choice": 3}),
    ],
)
def test_draws_follow_the_distribution(vocab: int, fields: dict[str, Any]) -> None:
    count = 20_000
    logits = np.random.default_rng(vocab).normal(0, 1, vocab).astype(np.float32)
    weights = np.exp(logits.astype(np.float64) / fields.get("temperature", 1.0))
    expected = count * weights / weights.sum()
    found = np.bincount(draws(logits, count, **fields), minlength=vocab)
    chi_square = float(np.sum((found - expected) ** 2 / expected))
    assert chi_square < CHI_SQUARE[vocab - 1]
    # Neither is it suspiciously even (lower 1e-6 quantiles are 0.4 and 3.0).
    assert chi_square > (0.4 if vocab == 10 else 3.0)


def test_choices_are_independent() -> None:
    a, b = draws(seed=5, choice=0, count=2000), draws(seed=5, choice=1, count=2000)
    same = sum(x == y for x, y in zip(a, b, strict=True))
    p = np.exp(LOGITS.astype(np.float64))
    p /= p.sum()
    chance = float(np.sum(p**2))
    assert abs(same - 2000 * chance) < 6 * (2000 * chance) ** 0.5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("vocab", [1, 7, 64, 5003])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_non_finite_logits_are_a_fault_not_an_exception(
    bad: float, vocab: int, temperature: float
) -> None:
    sampler = Sampler(vocab)
    state = SamplingState(SamplingParams(temperature=temperature, logprobs=0), vocab)
    good = np.random.default_rng(0).normal(0, 1, vocab).astype(np.float32)
    for at in {0, vocab // 2, vocab - 1}:
        logits = good.copy()
        logits[at] = bad
        assert sampler.sample(logits, state, 0)["fault"] == "non_finite"
        assert sampler.score(logits, 0, 0)["fault"] == "non_finite"
        assert sampler.sample(good, state, 0)["fault"] == "none"
    assert sampler.sample(np.full(vocab, bad, np.float32), state, 0)["fault"] == "non_finite"


def test_largest_finite_logits_are_no_fault() -> None:
    limit = np.finfo(np.float32).max
    logits = np.array([limit, -limit, 0, limit], dtype=np.float32)
    assert set(draws(logits)) == {0, 3}
    assert greedy(logits, logit_bias=[(0, 100.0)], prompt=(3,), repetition_penalty=0.01) == 0


def test_one_candidate() -> None:
    assert set(draws(np.zeros(1, np.float32), logprobs=1)) == {0}
    logits = np.zeros(3, np.float32)
    assert set(draws(logits, count=50, min_tokens=100, stop_ids=[0, 2])) == {1}


def test_ties_go_to_the_lowest_id() -> None:
    for vocab in (3, 64, 5000):
        logits = np.zeros(vocab, np.float32)
        logits[[vocab - 1, vocab // 2]] = 1
        logits[0] = -0.0
        assert greedy(logits) == vocab // 2
        assert set(draws(logits, top_k=1)) == {vocab // 2}
        assert set(draws(logits, top_k=3)) <= {vocab // 2, vocab - 1, 0}
    assert greedy(np.array([-0.0, 0.0], np.float32)) == 0
    assert greedy(np.array([0.0, -0.0], np.float32)) == 0


def test_logprobs_ignore_the_sampling_parameters() -> None:
    plain = SamplingState(SamplingParams(logprobs=3, temperature=0.0), VOCAB)
    bent = SamplingState(
        SamplingParams(
            logprobs=3, temperature=0.0, logit_bias=[(50, 100.0)], repetition_penalty=2.0
        ),
        VOCAB,
        [0, 1],
    )
    sampler = Sampler(VOCAB)
    a, b = sampler.sample(LOGITS, plain, 0), sampler.sample(LOGITS, bent, 0)
    assert (a["token"], b["token"]) == (0, 50)
    assert a["top"] == b["top"]
    assert [token for token, _ in a["top"]] == [0, 1, 2]
    assert b["logprob"] == sampler.score(LOGITS, 50, 0)["logprob"] < a["logprob"]


def test_logprobs_off_and_zero() -> None:
    sampler = Sampler(VOCAB)
    off = sampler.sample(LOGITS, SamplingState(SamplingParams(), VOCAB), 0)
    assert (off["logprob"], off["top"]) == (0.0, [])
    zero = sampler.sample(LOGITS, SamplingState(SamplingParams(logprobs=0), VOCAB), 0)
    assert zero["logprob"] < 0
    assert zero["top"] == []
