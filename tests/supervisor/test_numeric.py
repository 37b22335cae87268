"""Logits that are not finite in shared steps: who runs again alone, when the mode is in doubt."""

from __future__ import annotations

from strata.serving.effects import Doubt, Effect
from strata.serving.request import Failed, Finished
from strata.serving.scheduler import Scheduler
from strata_protocol.messages import (
    Done,
    ErrorKind,
    FinishReason,
    Resume,
    Submit,
    Tokens,
    TokensItem,
)

from tests.supervisor.test_recovery import begin, events, messages
from tests.supervisor.test_scheduler import facts, scheduler, spec


def spoilt(rid: int) -> Done:
    return done(rid, FinishReason.ERROR, ErrorKind.NUMERIC_FAULT, "numeric_fault")


def done(rid: int, reason: FinishReason, kind: ErrorKind | None = None, code: str = "") -> Done:
    return Done(
        rid=rid, reason=reason, prompt_tokens=1, cached_tokens=0, output_tokens=3,
        error_kind=kind, code=code, text="the logits at position 9 are not finite",
    )  # fmt: skip


def doubts(effects: list[Effect]) -> list[str]:
    return [e.mode for e in effects if isinstance(e, Doubt)]


def shared(count: int) -> tuple[Scheduler, list[int]]:
    s = scheduler()
    s.on_ready(facts(batch=8), 0)
    return s, begin(s, count)


def tokens(rid: int, offset: int, count: int) -> Tokens:
    return Tokens(step=2, items=[TokensItem(rid=rid, offset=offset, ids=[1] * count)])


def test_those_hit_in_one_step_run_alone_one_after_another_and_are_one_doubt() -> None:
    s, rids = shared(3)
    sent: list[object] = []
    for rid in rids:
        effects = s.on_done(spoilt(rid), 1)
        assert events(effects) == []  # nobody hears of it
        sent += messages(effects)
    found = []
    for rid in rids:
        (message,) = sent
        assert isinstance(message, Resume)
        assert (message.rid, message.generated) == (rid, [0, 1, 2])
        effects = s.on_done(done(rid, FinishReason.LENGTH), 2)
        assert [(r, type(e)) for r, e in events(effects)] == [(rid, Finished)]
        found += doubts(effects)
        sent = messages(effects)
    assert found == ["batch"]
    assert s.in_flight == 0


def test_what_is_spoilt_alone_too_is_told_and_puts_no_mode_in_doubt() -> None:
    s, rids = shared(2)
    s.on_done(spoilt(rids[0]), 1)
    effects = s.on_done(done(rids[1], FinishReason.LENGTH), 2)
    assert doubts(effects) == []  # it had not been hit
    assert [m.rid for m in messages(effects) if isinstance(m, Resume)] == rids[:1]
    effects = s.on_done(spoilt(rids[0]), 3)
    ((_, failed),) = events(effects)
    assert isinstance(failed, Failed)
    assert failed.kind is ErrorKind.NUMERIC_FAULT
    assert doubts(effects) == []


def test_a_request_that_never_shared_a_step_is_told_at_once() -> None:
    s, (rid,) = shared(1)
    ((_, failed),) = events(s.on_done(spoilt(rid), 1))
    assert isinstance(failed, Failed)


def test_enough_tokens_alone_are_an_answer_and_a_second_step_is_a_second_doubt() -> None:
    s, rids = shared(2)
    other = rids[1]
    for time in (1, 2):
        s.on_done(spoilt(rids[0]), time)
        s.on_done(done(other, FinishReason.LENGTH), time)
        received = 3 + 16 * (time - 1)
        assert doubts(s.on_tokens(tokens(rids[0], received, 16), time)) == ["batch"]
        other, effects = s.submit(spec(4), time)
        assert [m.rid for m in messages(effects) if isinstance(m, Submit)] == [other]


def test_once_the_mode_is_out_requests_run_one_at_a_time_until_the_next_engine() -> None:
    s = scheduler()
    s.on_ready(facts(batch=8), 0)
    s.on_shared_steps_out()
    rids = [s.submit(spec(4), 0)[0] for _ in range(3)]
    for rid in rids:
        assert s.in_flight == 1
        s.on_done(done(rid, FinishReason.LENGTH), 1)
    s.on_ready(facts(batch=8), 2)
    for _ in range(3):
        s.submit(spec(4), 2)
    assert s.in_flight == 3
