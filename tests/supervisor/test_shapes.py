"""Kinds of requests that end engines though no two are the same: apart, cleared, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strata.engines.port import EngineLost
from strata.serving.effects import Deliver, Effect, Send
from strata.serving.poison import TRIAL_TOKENS
from strata.serving.request import Failed, RejectedError, RequestSpec
from strata.serving.scheduler import Scheduler
from strata.serving.shapes import (
    CRASHES_MIN,
    LANE_S,
    LANE_WAIT_S,
    PASSES_MAX,
    REFUSED_AFTER,
    Shape,
    Shapes,
)
from strata_protocol.messages import Done, FinishReason, SamplingParams, Submit, Tokens, TokensItem

from tests.supervisor.test_scheduler import facts, scheduler

LONG = 40  # tokens of a prompt of the deadly kind


def spec(number: int, prompt: int = LONG, logprobs: int = -1) -> RequestSpec:
    params = SamplingParams(max_tokens=500, temperature=0.0, logprobs=logprobs)
    return RequestSpec("r", [number] * prompt, params, "")


def sent(effects: list[Effect]) -> list[int]:
    return [e.message.rid for e in effects if isinstance(e, Send) and isinstance(e.message, Submit)]


def failures(effects: list[Effect]) -> dict[int, str]:
    return {
        e.rid: e.event.code
        for e in effects
        if isinstance(e, Deliver) and isinstance(e.event, Failed)
    }


def tokens(rid: int, count: int, offset: int = 0) -> Tokens:
    return Tokens(step=1, items=[TokensItem(rid=rid, offset=offset, ids=[1] * count)])


def done(rid: int, count: int) -> Done:
    return Done(
        rid=rid, reason=FinishReason.LENGTH, prompt_tokens=1, cached_tokens=0, output_tokens=count
    )


def suspects(*numbers: int, prompt: int = LONG) -> set[tuple[Shape, bytes]]:
    return {(Shape.of(spec(n, prompt)), bytes([n])) for n in numbers}


def test_a_shape_is_a_class_of_length_and_what_is_needed() -> None:
    assert Shape.of(spec(1, 32)) == Shape.of(spec(2, 63))
    assert Shape.of(spec(1, 63)) != Shape.of(spec(1, 64))
    assert Shape.of(spec(1)) != Shape.of(spec(1, logprobs=2))
    assert Shape.of(spec(1, logprobs=2)).text == "prompts of 32 to 63 tokens with logprobs"
    assert Shape.of(spec(1, 1)).text == "prompts of 1 tokens"


def test_one_request_makes_no_kind_and_mixed_crashes_say_nothing() -> None:
    shapes = Shapes()
    for now in range(9):
        shapes.on_crash(suspects(1), now)
        shapes.on_crash(suspects(2) | suspects(3, prompt=4), now)
    assert shapes.apart(9) == []


def test_apart_for_an_hour_then_free() -> None:
    shapes = Shapes()
    for now in range(CRASHES_MIN):
        assert shapes.apart(now) == []
        shapes.on_crash(suspects(now), now)
    assert shapes.is_apart(spec(99), 3)
    assert not shapes.is_apart(spec(99, 4), 3)
    assert shapes.is_apart(spec(99), LANE_S + 1)
    assert not shapes.is_apart(spec(99), LANE_S + 2)


def test_crashes_far_apart_do_not_add_up() -> None:
    shapes = Shapes()
    for number in range(9):
        shapes.on_crash(suspects(number), number * LANE_S * 0.6)
    assert shapes.apart(9 * LANE_S * 0.6) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 900)), max_size=40))
def test_whatever_happens_no_shape_stays_apart_without_crashes(
    events: list[tuple[int, bool, float]],
) -> None:
    shapes, now = Shapes(), 0.0
    for number, is_crash, wait_s in events:
        now += wait_s
        if is_crash:
            shapes.on_crash(suspects(number), now)
        else:
            was = shapes.is_apart(spec(number), now)
            shapes.on_passed(spec(number), now)
            assert was or not shapes.is_apart(spec(number), now)
    assert shapes.apart(now + LANE_S + 1) == []


def apart_scheduler(timeout_s: float = 0) -> tuple[Scheduler, float]:
    """One that has seen enough of the deadly kind, and is up again."""
    s, now = scheduler(timeout_s=timeout_s), 0.0
    s.on_ready(facts(batch=4), now)
    for number in range(CRASHES_MIN):
        now += 1
        rid, effects = s.submit(spec(number), now)
        assert sent(effects) == [rid]
        s.on_lost(EngineLost("it died", (rid,)), now)
        s.cancel(rid, now)
        s.on_ready(facts(batch=4), now)
    return s, now


def test_the_kind_waits_until_nothing_else_runs_and_then_goes_alone() -> None:
    s, now = apart_scheduler()
    other, effects = s.submit(spec(50, prompt=3), now)
    assert sent(effects) == [other]
    lone, effects = s.submit(spec(51), now)
    assert (sent(effects), s.waiting) == ([], 1)
    beside, effects = s.submit(spec(52, prompt=3), now)
    assert sent(effects) == [beside], "others go on meanwhile"
    late, effects = s.submit(spec(53, prompt=3), now + LANE_WAIT_S)
    assert sent(effects) == [], "not for ever"
    assert sent(s.on_done(done(other, 1), now)) == [late], "the clock of the others goes back"
    for rid in (beside, late):
        effects = s.on_done(done(rid, 1), now + LANE_WAIT_S)
    assert sent(effects) == [lone]
    last, effects = s.submit(spec(54, prompt=3), now)
    assert sent(effects) == []
    assert sent(s.on_tokens(tokens(lone, TRIAL_TOKENS), now)) == [last], "it has passed"


def test_some_that_live_clear_the_kind() -> None:
    s, now = apart_scheduler()
    for number in range(60, 60 + PASSES_MAX):
        assert s.recovery.shapes.apart(now)
        rid, effects = s.submit(spec(number), now)
        assert sent(effects) == [rid]
        s.on_tokens(tokens(rid, 5), now)
        s.on_done(done(rid, 5), now)
    assert s.recovery.shapes.apart(now) == []


def test_those_that_are_convicted_alone_get_the_kind_refused() -> None:
    s, now = apart_scheduler()
    for number in range(70, 70 + REFUSED_AFTER):
        rid, effects = s.submit(spec(number), now)
        assert sent(effects) == [rid]
        assert failures(s.on_lost(EngineLost("it died", (rid,)), now)) == {}
        assert [a.is_refused for a in s.recovery.shapes.apart(now)] == [False]
        assert sent(s.on_ready(facts(batch=4), now)) == [rid], "once more, alone"
        effects = s.on_lost(EngineLost("it died", (rid,)), now)
        assert failures(effects) == {rid: "request_quarantined"}
        s.on_ready(facts(batch=4), now)
    assert [a.is_refused for a in s.recovery.shapes.apart(now)] == [True]
    with pytest.raises(RejectedError, match=r"prompts of 32 to 63 tokens.* are refused"):
        s.submit(spec(99), now)
    rid, effects = s.submit(spec(99, prompt=3), now)
    assert sent(effects) == [rid]
    rid, _ = s.submit(spec(99), now + LANE_S)
    assert rid


def test_one_that_waits_apart_can_be_cancelled_and_expires() -> None:
    s, now = apart_scheduler()
    s.submit(spec(50, prompt=3), now)
    lone, _ = s.submit(spec(51), now)
    assert s.waiting == 1
    s.cancel(lone, now)
    assert s.waiting == 0


def test_one_that_is_late_is_not_sent_when_its_turn_comes() -> None:
    s, now = apart_scheduler(timeout_s=50)
    other, _ = s.submit(spec(50, prompt=3), now)
    lone, _ = s.submit(spec(51), now - 40)
    effects = s.on_done(done(other, 1), now + 20)
    assert sent(effects) == []
    assert list(failures(effects)) == [lone]


def test_another_build_forgets() -> None:
    s, now = apart_scheduler()
    s.on_lost(EngineLost("the engine is replaced", is_external=True, is_planned=True), now)
    s.on_ready(replace(facts(batch=4), build="another"), now)
    assert s.recovery.shapes.apart(now) == []
