"""The scheduler against a model of an engine that may die, stall, repeat itself or lag.

Whatever happens, every accepted request ends exactly once, its tokens come in order without loss
or repetition, what had begun goes on where it was, and after a crash its suspects run alone.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from strata.engines.port import EngineLost
from strata.serving.admission import Closure, SchedulerLimits
from strata.serving.effects import Deliver, Effect, Fault, Send
from strata.serving.entry import CREDIT_WINDOW
from strata.serving.needs import Mode
from strata.serving.open_requests import SUBMIT_AHEAD
from strata.serving.recorder import NullRecorder
from strata.serving.recovery import LOSSES_MAX
from strata.serving.request import (
    EngineFacts,
    Failed,
    Finished,
    RejectedError,
    RequestSpec,
    TokensReady,
)
from strata.serving.scheduler import CANCEL_GRACE_S, Scheduler
from strata_protocol.features import FIELDS
from strata_protocol.messages import (
    Cancel,
    Credit,
    Done,
    ErrorKind,
    FinishReason,
    ModelFacts,
    ModePlan,
    PromptLogprobs,
    Resume,
    SamplingParams,
    Submit,
    Tokens,
    TokensItem,
)

BATCH = 1


def facts(batch: int = BATCH, max_context: int = 100, kv_tokens: int = 300) -> EngineFacts:
    plan = ModePlan(
        batch=batch, max_context=max_context, kv="f16", prefill=8, activations="f32", threads=1,
        kv_tokens=kv_tokens,
    )  # fmt: skip
    return EngineFacts(ModelFacts(), plan, serving=[Mode("batch", frozenset(FIELDS))])


def spec(prompt: int = 1, key: str = "", max_tokens: int = 1000, token: int = 7) -> RequestSpec:
    return RequestSpec("r", [token] * prompt, SamplingParams(max_tokens=max_tokens), key)


def scheduler(
    requests: int = 100, tokens: int = 0, timeout_s: float = 0, park_s: float = 330
) -> Scheduler:
    limits = SchedulerLimits(requests, tokens, timeout_s, park_s=park_s)
    return Scheduler(limits, NullRecorder(), lambda: 0.5)


def killed(cause: str = "it was killed") -> EngineLost:
    return EngineLost(cause, is_external=True)


def draining(rid: int) -> Done:
    return Done(
        rid=rid, reason=FinishReason.ERROR, prompt_tokens=1, cached_tokens=0, output_tokens=0,
        error_kind=ErrorKind.OVERLOADED, code="engine_draining", text="",
    )  # fmt: skip


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.s = scheduler(requests=6, tokens=200, timeout_s=50, park_s=40)
        self.up = False
        self.draining = False  # the engine was told to end and has refused a request
        self.writable = True
        self.engine: dict[int, int] = {}  # rid -> tokens produced by this engine
        self.credit: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.got: dict[int, int] = {}  # rid -> tokens delivered
        self.consumed: dict[int, int] = {}
        self.ended: dict[int, Failed | Finished] = {}
        self.losses: dict[int, int] = {}
        self.spared: set[int] = set()  # met a crash that led down the ladder
        self.stalled: set[int] = set()  # were out of credit once, and may all come back

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(Submit() as m):
                    assert self.up
                    assert not self.draining
                    assert m.rid not in self.engine
                    assert self.got[m.rid] == 0, "what had begun started over"
                    # One that is out of credit keeps no place from others.
                    running = [r for r, n in self.engine.items() if n < self.credit[r]]
                    assert len(running) < BATCH + SUBMIT_AHEAD
                    self.engine[m.rid] = 0
                    self.credit[m.rid] = m.credit
                case Send(Resume() as m):
                    assert self.up
                    assert not self.draining
                    assert m.rid not in self.engine
                    assert m.generated == list(range(self.got[m.rid])) != []
                    self.engine[m.rid] = self.got[m.rid]
                    self.credit[m.rid] = m.credit
                case Send(Cancel(rid=rid)):
                    assert rid in self.engine
                    self.cancelled.add(rid)
                case Send(Credit(rid=rid, upto=upto)):
                    assert upto > self.credit[rid]
                    self.credit[rid] = upto
                case Deliver(rid, event):
                    assert rid not in self.ended, "an event after the terminal one"
                    match event:
                        case TokensReady(ids, _):
                            assert list(ids) == list(range(self.got[rid], self.got[rid] + len(ids)))
                            self.got[rid] += len(ids)
                        case Failed() | Finished():
                            self.ended[rid] = event
                case Fault(text):
                    raise AssertionError(text)

    @rule(prompt=st.integers(1, 120), key=st.sampled_from("abc"))
    def submit(self, prompt: int, key: str) -> None:
        try:
            rid, effects = self.s.submit(spec(prompt, key, token=len(self.got) // 2), self.now)
        except RejectedError as error:
            codes = {"queue_full", "context_length_exceeded", "closed", "request_quarantined"}
            if error.code not in codes:
                raise
            return
        self.got[rid] = self.consumed[rid] = 0
        self.perform(effects)

    @precondition(lambda self: not self.up)
    @rule()
    def ready(self) -> None:
        self.up = True
        self.writable = True
        self.perform(self.s.on_ready(facts(), self.now))

    @precondition(lambda self: self.up)
    @rule(
        data=st.data(),
        external=st.booleans(),
        blamed=st.sampled_from(["", "", "batch"]),
        is_lower=st.booleans(),
    )
    def lost(self, data: st.DataObject, external: bool, blamed: str, is_lower: bool) -> None:
        had = sorted(self.engine)
        named = data.draw(st.sets(st.sampled_from(had))) if had else set()
        self.up = self.draining = False
        self.engine.clear()
        open_before = {r for r in had if r not in self.ended and r not in self.cancelled}
        self.cancelled.clear()
        died = EngineLost("it died", tuple(named), external, blamed_mode=blamed, is_lower=is_lower)
        self.perform(self.s.on_lost(died, self.now))
        if not external and (open_before & named) - self.ended.keys():
            assert self.s.recovery.trials.is_on
        for rid in open_before:
            is_spared = is_lower and rid not in self.spared  # once
            self.spared |= {rid} if is_lower else set()
            self.losses[rid] = self.losses.get(rid, 0) + (not is_spared)
            event = self.ended.get(rid)
            if event is not None and self.losses[rid] <= LOSSES_MAX:
                assert isinstance(event, Failed)
                assert event.code == "request_quarantined"

    @precondition(lambda self: not self.up)
    @rule()
    def hold(self) -> None:
        self.perform(self.s.on_closed(Closure("closed", "held", 5), self.now))
        assert self.s.waiting == sum(n > 0 and r not in self.ended for r, n in self.got.items())
        assert self.s.waiting == self.s.parked

    @precondition(lambda self: bool(self.engine))
    @rule(data=st.data(), back=st.integers(0, 3))
    def step(self, data: st.DataObject, back: int) -> None:
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.engine)), min_size=1))
        items = []
        for rid in sorted(chosen):
            done = self.engine[rid]
            count = min(data.draw(st.integers(1, 300)), self.credit[rid] - done)
            start = max(done - back, 0)  # repeats some of what was sent
            items.append(TokensItem(rid=rid, offset=start, ids=list(range(start, done + count))))
            self.engine[rid] = done + count
            if self.engine[rid] == self.credit[rid]:
                self.stalled.add(rid)
        self.perform(self.s.on_tokens(Tokens(step=1, items=items), self.now))
        for rid in chosen:
            if rid not in self.ended:  # by its deadline, without the engine
                assert self.got[rid] == self.engine[rid]

    @precondition(lambda self: not all(self.engine.values()))
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        """The engine drains: it sends back what has no token yet."""
        rid = data.draw(st.sampled_from(sorted(r for r, n in self.engine.items() if not n)))
        had_ended = rid in self.ended
        del self.engine[rid]
        self.draining = True
        self.perform(self.s.on_done(draining(rid), self.now))
        assert (rid in self.ended) == (had_ended or rid in self.cancelled)

    @precondition(lambda self: bool(self.engine))
    @rule(data=st.data(), error=st.booleans())
    def done(self, data: st.DataObject, error: bool) -> None:
        rid = data.draw(st.sampled_from(sorted(self.engine)))
        was_shared = self.s._entries[rid].was_shared if rid in self.s._entries else False
        produced = self.engine.pop(rid)
        reason = FinishReason.ERROR if error else FinishReason.STOP
        if rid in self.cancelled:
            reason = FinishReason.CANCELLED
        message = Done(
            rid=rid, reason=reason, prompt_tokens=1, cached_tokens=0, output_tokens=produced,
            error_kind=ErrorKind.NUMERIC_FAULT if error else None,
        )  # fmt: skip
        self.perform(self.s.on_done(message, self.now))
        assert rid in self.ended or (error and was_shared)  # it goes again, alone

    @precondition(lambda self: bool(self.got))
    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.got)))
        count = self.got[rid] - self.consumed[rid]
        self.consumed[rid] += count
        self.perform(self.s.on_consumed(rid, count))

    @precondition(lambda self: bool(self.got))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.got)))
        was_waiting = rid not in self.engine and rid not in self.ended
        self.perform(self.s.cancel(rid, self.now))
        if was_waiting:
            assert rid in self.ended

    @rule(by=st.floats(0, 30))
    def time_passes(self, by: float) -> None:
        self.now += by
        self.perform(self.s.on_tick(self.now))

    @precondition(lambda self: self.up)
    @rule(writable=st.booleans())
    def pipe(self, writable: bool) -> None:
        self.writable = writable
        self.perform(self.s.on_writable(writable, self.now))

    @invariant()
    def bounds_hold(self) -> None:
        able = [r for r, n in self.engine.items() if n < self.credit[r] and r not in self.ended]
        if self.s.recovery.trials.is_on:
            assert len(able) <= 1, "a suspect does not run alone"
        assert self.s.in_flight == len(self.engine)
        assert self.s.waiting == len(self.got) - len(self.ended.keys() | self.engine.keys())
        if (
            self.up
            and not self.draining
            and not self.s.recovery.trials.is_on
            and self.writable
            and self.s._line.aside is None  # those wait until nothing runs
            and len(self.engine) < BATCH + SUBMIT_AHEAD
        ):
            assert self.s.waiting == 0, "a place is free and somebody waits"

    def teardown(self) -> None:
        failed = Failed(ErrorKind.OVERLOADED, "shutting_down", "")
        self.perform(self.s.end_all(failed, self.now))
        assert set(self.ended) == set(self.got)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_requeued_go_first_in_their_former_order() -> None:
    s = scheduler()
    s.on_ready(facts(batch=2), 0)
    for n in range(6):
        s.submit(spec(), float(n))
    assert s.in_flight == 4
    s.on_lost(killed(), 7)
    sent = [e.message.rid for e in s.on_ready(facts(batch=2), 8) if isinstance(e, Send)]
    assert sent == [1, 2, 3, 4]


def test_queue_full_names_the_limits_and_when_to_come_back() -> None:
    s = scheduler(requests=2)
    s.submit(spec(), 0)
    s.submit(spec(), 0)
    with pytest.raises(RejectedError) as rejected:
        s.submit(spec(), 0)
    assert rejected.value.kind is ErrorKind.OVERLOADED
    assert rejected.value.code == "queue_full"
    assert "queue_requests = 2" in rejected.value.text
    assert rejected.value.retry_after_s is not None
    assert 1 <= rejected.value.retry_after_s <= 55


def test_queue_is_bounded_by_prompt_tokens_but_one_always_fits() -> None:
    s = scheduler(tokens=50)
    s.submit(spec(80), 0)
    with pytest.raises(RejectedError, match="queue_tokens = 50"):
        s.submit(spec(1), 0)


def test_queue_of_zero_serves_what_fits_at_once() -> None:
    s = scheduler(requests=0)
    with pytest.raises(RejectedError):
        s.submit(spec(), 0)
    s.on_ready(facts(batch=1), 0)
    for _ in range(1 + SUBMIT_AHEAD):
        s.submit(spec(), 0)
    with pytest.raises(RejectedError):
        s.submit(spec(), 0)


def test_prompt_longer_than_the_context_is_refused_with_numbers() -> None:
    s = scheduler()
    rid, _ = s.submit(spec(100), 0)  # the limit is not known yet
    effects = s.on_ready(facts(), 0)
    assert [e.rid for e in effects if isinstance(e, Deliver)] == [rid]
    s.submit(spec(99), 0)
    with pytest.raises(RejectedError) as rejected:
        s.submit(spec(100), 0)
    assert rejected.value.kind is ErrorKind.INVALID_REQUEST
    assert rejected.value.code == "context_length_exceeded"
    assert "100 tokens" in rejected.value.text
    s.submit(spec(100, max_tokens=0), 0)  # scoring a prompt needs no room for an answer


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(RejectedError, match="empty"):
        scheduler().submit(spec(0), 0)


def test_credit_is_granted_as_the_reader_reads() -> None:
    s = scheduler()
    s.on_ready(facts(max_context=10_000), 0)
    rid, effects = s.submit(spec(), 0)
    assert isinstance(effects[0], Send)
    assert isinstance(effects[0].message, Submit)
    assert effects[0].message.credit == CREDIT_WINDOW
    tokens = TokensItem(rid=rid, offset=0, ids=[1] * CREDIT_WINDOW)
    s.on_tokens(Tokens(step=1, items=[tokens]), 0)
    assert s.on_consumed(rid, 10) == []
    granted = s.on_consumed(rid, CREDIT_WINDOW - 10)
    assert granted == [Send(Credit(rid=rid, upto=2 * CREDIT_WINDOW))]
    over = TokensItem(rid=rid, offset=CREDIT_WINDOW, ids=[1] * (CREDIT_WINDOW + 1))
    assert isinstance(s.on_tokens(Tokens(step=2, items=[over]), 0)[-1], Fault)


@pytest.mark.parametrize("message", ["tokens", "done"])
def test_messages_for_unknown_requests_are_faults(message: str) -> None:
    s = scheduler()
    s.on_ready(facts(), 0)
    if message == "tokens":
        effects = s.on_tokens(Tokens(step=1, items=[TokensItem(rid=9, offset=0, ids=[1])]), 0)
    else:
        done = Done(
            rid=9, reason=FinishReason.STOP, prompt_tokens=1, cached_tokens=0, output_tokens=0
        )
        effects = s.on_done(done, 0)
    assert isinstance(effects[-1], Fault)


def test_freed_place_is_filled_at_once() -> None:
    s = scheduler()
    s.on_ready(facts(batch=1), 0)
    rids = [s.submit(spec(), 0)[0] for _ in range(4)]
    done = Done(
        rid=rids[0], reason=FinishReason.STOP, prompt_tokens=1, cached_tokens=0, output_tokens=0
    )
    effects = s.on_done(done, 1)
    assert [e.rid for e in effects if isinstance(e, Deliver)] == [rids[0]]
    sent = [e.message for e in effects if isinstance(e, Send)]
    assert [m.rid for m in sent] == [rids[3]]


def test_cancel_is_sent_once() -> None:
    s = scheduler()
    s.on_ready(facts(), 0)
    rid, _ = s.submit(spec(), 0)
    assert s.cancel(rid, 1) == [Send(Cancel(rid=rid))]
    assert s.cancel(rid, 2) == []
    (effect,) = s.on_lost(killed(), 3)
    assert isinstance(effect, Deliver)
    assert isinstance(effect.event, Finished)
    assert effect.event.reason is FinishReason.CANCELLED


def test_deadline_in_the_line_costs_no_computation() -> None:
    s = scheduler(timeout_s=10)
    s.submit(spec(), 0)
    assert s.on_tick(9.9) == []
    (effect,) = s.on_tick(10)
    assert isinstance(effect, Deliver)
    assert isinstance(effect.event, Failed)
    assert effect.event.code == "deadline_exceeded"
    assert s.on_ready(facts(), 11) == []


def test_cancel_that_the_engine_does_not_answer_ends_in_time() -> None:
    s = scheduler(timeout_s=10)
    s.on_ready(facts(batch=1), 0)
    late, cancelled, waiting = (s.submit(spec(), 0)[0] for _ in range(3))
    s.submit(spec(), 8)
    s.cancel(cancelled, 4)
    assert s.on_tick(4 + CANCEL_GRACE_S - 0.1) == []
    (effect,) = s.on_tick(4 + CANCEL_GRACE_S)
    assert isinstance(effect, Deliver)
    assert isinstance(effect.event, Finished)
    assert (effect.rid, effect.event.reason) == (cancelled, FinishReason.CANCELLED)
    assert s.on_tick(10) == [Send(Cancel(rid=late)), Send(Cancel(rid=waiting))]
    ends = s.on_tick(10 + CANCEL_GRACE_S)
    assert [e.rid for e in ends if isinstance(e, Deliver)] == [late, waiting]
    assert all(isinstance(e, Deliver) and isinstance(e.event, Failed) for e in ends)
    # Its place is taken until the engine lets go, and what it still says of it is no fault.
    assert (s.in_flight, s.waiting) == (3, 1)
    assert s.on_tokens(Tokens(step=1, items=[TokensItem(rid=late, offset=0, ids=[1])]), 16) == []
    assert s.on_prompt_logprobs(PromptLogprobs(rid=late, offset=1, logprobs=[])) == []
    done = Done(
        rid=late, reason=FinishReason.CANCELLED, prompt_tokens=1, cached_tokens=0, output_tokens=0
    )
    (sent,) = s.on_done(done, 16)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Submit)
    assert isinstance(s.on_done(done, 16)[-1], Fault)


def test_what_a_draining_engine_refuses_waits_for_the_next_in_order() -> None:
    s = scheduler()
    s.on_ready(facts(batch=1), 0)
    rids = [s.submit(spec(), 0)[0] for _ in range(5)]
    assert [s.on_done(draining(rid), 1) for rid in rids[:3]] == [[], [], []]
    assert (s.in_flight, s.waiting) == (0, 5)
    assert s.submit(spec(), 1)[1] == []
    s.on_lost(killed("it ended"), 2)
    sent = [e.message.rid for e in s.on_ready(facts(batch=3), 3) if isinstance(e, Send)]
    assert sent == rids


def test_end_of_a_drain_makes_late_messages_no_fault() -> None:
    s = scheduler()
    s.on_ready(facts(), 0)
    rid, _ = s.submit(spec(), 0)
    s.end_all(Failed(ErrorKind.OVERLOADED, "shutting_down", ""), 1)
    assert s.on_tokens(Tokens(step=1, items=[TokensItem(rid=rid, offset=0, ids=[1])]), 1) == []


def test_a_reader_that_does_not_read_keeps_no_place() -> None:
    s = scheduler()
    s.on_ready(facts(batch=1, max_context=10_000), 0)
    rids = [s.submit(spec(), 0)[0] for _ in range(1 + SUBMIT_AHEAD)]
    last, effects = s.submit(spec(), 0)
    assert effects == []
    window = TokensItem(rid=rids[0], offset=0, ids=[1] * CREDIT_WINDOW)
    effects = s.on_tokens(Tokens(step=1, items=[window]), 0)
    assert [e.message.rid for e in effects if isinstance(e, Send)] == [last]
    assert s.waiting == 0
