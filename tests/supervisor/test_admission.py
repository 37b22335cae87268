"""Who is accepted, who is refused and when to come back: the pure parts, under a virtual clock."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strata.engines.port import EngineLost
from strata.serving.admission import Admission, Closure, Queue, Reservation, SchedulerLimits
from strata.serving.deadline import deadline_exceeded, deadline_s
from strata.serving.effects import Deliver, Effect, Send
from strata.serving.needs import Mode
from strata.serving.open_requests import SUBMIT_AHEAD
from strata.serving.recorder import NullRecorder
from strata.serving.request import (
    CancelReason,
    EngineFacts,
    Failed,
    Finished,
    RejectedError,
    RequestSpec,
)
from strata.serving.scheduler import Scheduler
from strata.serving.wait_estimate import RELOAD_S_UNKNOWN, SERVICE_S_UNKNOWN, WaitEstimate
from strata_protocol.features import FIELDS
from strata_protocol.messages import (
    Cancel,
    Done,
    ErrorKind,
    FinishReason,
    ModelFacts,
    ModePlan,
    SamplingParams,
    Submit,
)

BATCH = 2


class Counts(NullRecorder):
    """Counts what serving reports."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def on_accepted(self) -> None:
        self.seen["accepted"] += 1

    def on_rejected(self, code: str) -> None:
        self.seen[code] += 1

    def on_deadline(self, where: str) -> None:
        self.seen["late in " + where] += 1

    def on_cancelled(self, why: CancelReason) -> None:
        self.seen["cancelled by " + why.value] += 1


def facts(batch: int = BATCH) -> EngineFacts:
    plan = ModePlan(
        batch=batch, max_context=100, kv="f16", prefill=8, activations="f32", threads=1,
        kv_tokens=300,
    )  # fmt: skip
    return EngineFacts(ModelFacts(), plan, serving=[Mode("batch", frozenset(FIELDS))])


def spec(
    prompt: int = 1, key: str = "", priority: int = 0, timeout_ms: int = 0, spent_s: float = 0
) -> RequestSpec:
    params = SamplingParams(max_tokens=10)
    return RequestSpec("r", [7] * prompt, params, key, priority, timeout_ms, spent_s)


def scheduler(counts: Counts | None = None, **limits: float) -> Scheduler:
    values = {"queue_requests": 4, "queue_tokens": 0, "request_timeout_s": 0} | limits
    return Scheduler(SchedulerLimits(**values), counts or Counts(), lambda: 0.5)  # type: ignore[arg-type]


def done(rid: int, reason: FinishReason = FinishReason.STOP) -> Done:
    return Done(rid=rid, reason=reason, prompt_tokens=1, cached_tokens=0, output_tokens=0)


def submits(effects: list[Effect]) -> list[Submit]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Submit)]


def ends(effects: list[Effect]) -> dict[int, str]:
    found: dict[int, str] = {}
    for effect in effects:
        if isinstance(effect, Deliver) and isinstance(effect.event, Failed | Finished):
            event = effect.event
            found[effect.rid] = event.code if isinstance(event, Failed) else event.reason.value
    return found


# --- bounds


def test_what_is_being_prepared_counts_as_waiting() -> None:
    counts = Counts()
    s = scheduler(counts)
    places = [s.reserve("a", 0) for _ in range(4)]
    with pytest.raises(RejectedError, match="4 are being prepared") as rejected:
        s.reserve("b", 0)
    assert (rejected.value.code, rejected.value.kind) == ("queue_full", ErrorKind.OVERLOADED)
    places[0].release()
    places[0].release()  # once only
    s.submit(spec(), 0)
    with pytest.raises(RejectedError):
        s.reserve("b", 0)
    places[1].release()
    s.reserve("b", 0)
    assert counts.seen == {"accepted": 1, "queue_full": 2}


def test_free_places_of_the_engine_are_no_waiting() -> None:
    s = scheduler(queue_requests=0)
    with pytest.raises(RejectedError):
        s.reserve("a", 0)
    s.on_ready(facts(), 0)
    held = [s.reserve("a", 0) for _ in range(BATCH + SUBMIT_AHEAD)]
    with pytest.raises(RejectedError):
        s.reserve("a", 0)
    for place in held:
        place.release()
        s.submit(spec(), 0)
    with pytest.raises(RejectedError):
        s.submit(spec(), 0)


def test_a_key_may_have_so_many_and_others_are_not_touched() -> None:
    s = scheduler(key_requests=2, queue_requests=100)
    s.on_ready(facts(), 0)
    first, _ = s.submit(spec(key="a"), 0)
    place = s.reserve("a", 0)
    for ask in (lambda: s.reserve("a", 0), lambda: s.submit(spec(key="a"), 0)):
        with pytest.raises(RejectedError, match="key_requests = 2") as rejected:
            ask()
        assert rejected.value.code == "rate_limit_exceeded"
        assert rejected.value.retry_after_s == SERVICE_S_UNKNOWN
    s.submit(spec(key="b"), 0)
    place.release()
    s.submit(spec(key="a"), 0)
    s.on_done(done(first), 1)
    s.submit(spec(key="a"), 1)


@pytest.mark.parametrize("is_final", [True, False])
def test_a_closed_service_says_so_before_anything_is_read(is_final: bool) -> None:
    s = scheduler()
    closure = Closure("engine_hold", "it does not start", 300)
    if is_final:
        s.on_draining(closure)
    else:
        waiting, _ = s.submit(spec(), 0)
        (effect,) = s.on_closed(closure, 0)
        assert isinstance(effect, Deliver)
        assert effect == Deliver(
            waiting,
            Failed(ErrorKind.OVERLOADED, "engine_hold", "it does not start", None, 55),
        )
    with pytest.raises(RejectedError) as rejected:
        s.reserve("a", 0)
    assert (rejected.value.code, rejected.value.retry_after_s) == ("engine_hold", 55)


def test_parked_requests_count_as_waiting() -> None:
    s = scheduler(queue_requests=4)
    s.on_ready(facts(), 0)
    for _ in range(4):
        s.submit(spec(), 0)
    s.on_lost(EngineLost("killed", is_external=True), 1)
    assert (s.waiting, s.parked) == (4, 4)
    with pytest.raises(RejectedError, match="4 requests"):
        s.reserve("a", 1)


# --- order


def test_the_engine_is_told_batch_from_interactive_and_no_more() -> None:
    s = scheduler(queue_requests=100)
    sent = s.on_ready(facts(), 0)
    for priority in (5, -100, 0, 1):
        sent += s.submit(spec(priority=priority), 0)[1]
    assert [m.priority for m in submits(sent)] == [-1, 0, 0, -1]


def test_lower_priority_is_sent_first() -> None:
    s = scheduler(queue_requests=100)
    rids = {p: s.submit(spec(priority=p), 0)[0] for p in (3, 0, -2, 1)}
    assert [m.rid for m in submits(s.on_ready(facts(), 0))] == [rids[p] for p in (-2, 0, 1, 3)]


# --- deadlines


def test_the_shorter_limit_counts_and_is_named() -> None:
    both = spec(timeout_ms=1500, spent_s=0.5)
    assert deadline_s(both, 600, 100) == 101
    assert deadline_s(both, 1, 100) == 100.5
    assert deadline_s(spec(spent_s=2), 0, 100) == math.inf
    assert "x-request-timeout-ms = 1500" in deadline_exceeded(both, 600).text
    assert "request_timeout_s = 1 s" in deadline_exceeded(both, 1).text


def test_late_on_arrival_is_refused() -> None:
    counts = Counts()
    s = scheduler(counts)
    s.on_ready(facts(), 0)
    with pytest.raises(RejectedError, match="x-request-timeout-ms = 100") as rejected:
        s.submit(spec(timeout_ms=100, spent_s=0.1), 5)
    assert rejected.value.code == "deadline_exceeded"
    assert counts.seen == {"deadline_exceeded": 1, "late in arrival": 1}


def test_late_in_the_queue_is_never_sent() -> None:
    counts = Counts()
    s = scheduler(counts)
    late, _ = s.submit(spec(timeout_ms=1000), 0)
    fresh, _ = s.submit(spec(), 0)
    # No tick came in between: the engine becomes ready exactly when it is too late.
    effects = s.on_ready(facts(), 1)
    assert ends(effects) == {late: "deadline_exceeded"}
    assert [m.rid for m in submits(effects)] == [fresh]
    assert counts.seen["late in queue"] == 1


def test_late_in_the_engine_is_cancelled_once() -> None:
    counts = Counts()
    s = scheduler(counts)
    s.on_ready(facts(), 0)
    rid, _ = s.submit(spec(timeout_ms=1000), 0)
    assert s.on_tick(0.9) == []
    assert s.on_tick(1.1) == [Send(Cancel(rid=rid))]
    assert s.on_tick(1.2) == []
    assert ends(s.on_done(done(rid, FinishReason.CANCELLED), 1.3)) == {rid: "deadline_exceeded"}
    assert counts.seen["late in engine"] == counts.seen["cancelled by deadline"] == 1


def test_a_reload_longer_than_the_client_waits_is_said_at_once() -> None:
    s = scheduler()
    s.on_tick(0)
    s.submit(spec(timeout_ms=10), 0)  # how long a load takes is not known yet
    s.on_ready(facts(), 20)
    s.on_lost(EngineLost("killed", is_external=True), 100)
    with pytest.raises(RejectedError, match=r"ready in 18.0 s") as rejected:
        s.submit(spec(timeout_ms=5000), 102)
    assert rejected.value.code == "model_loading"
    assert rejected.value.retry_after_s == pytest.approx(18 + SERVICE_S_UNKNOWN / BATCH)
    s.submit(spec(timeout_ms=30_000), 102)
    s.submit(spec(), 102)


# --- the estimate


def test_the_wait_is_what_was_measured() -> None:
    estimate = WaitEstimate()
    assert estimate.wait_s(0, 4, 0) == RELOAD_S_UNKNOWN + SERVICE_S_UNKNOWN / 4
    estimate.on_ready(0, was_held=False)
    assert estimate.wait_s(3, 4, 0) == SERVICE_S_UNKNOWN
    for n in range(40):
        estimate.on_finished(30, n * 0.5, others_wait=True)
    # One ended every half second, however long each took.
    assert estimate.wait_s(9, 4, 20) == pytest.approx(10 * 0.5, rel=0.1)
    # Nothing has ended for a minute: that counts.
    assert estimate.wait_s(9, 4, 80) > 20
    estimate.on_finished(30, 90, others_wait=False)
    assert estimate.wait_s(3, 4, 90) == estimate.service_s  # no rate without a queue
    assert estimate.service_s > SERVICE_S_UNKNOWN


def test_a_reload_takes_as_long_as_earlier_ones() -> None:
    estimate = WaitEstimate()
    estimate.on_time(1)
    assert estimate.reload_left_s(5) is None
    estimate.on_ready(11, was_held=False)
    assert estimate.reload_left_s(11) == 0
    estimate.on_away(100)
    estimate.on_away(103)  # another start failed: still the same absence
    assert estimate.reload_left_s(104) == pytest.approx(6)
    assert estimate.reload_left_s(140) == pytest.approx(10)  # late: nobody knows
    estimate.on_ready(500, was_held=True)  # a hold is no reload
    estimate.on_away(1000)
    assert estimate.reload_left_s(1000) == pytest.approx(10)
    estimate.on_ready(1020, was_held=False)
    estimate.on_away(2000)
    assert estimate.reload_left_s(2000) == pytest.approx(15)


@given(
    waiting=st.integers(0, 300),
    service_s=st.floats(0.001, 1000),
    jitter=st.floats(0, 0.999),
    away=st.booleans(),
)
def test_retry_after_is_within_what_clients_obey(
    waiting: int, service_s: float, jitter: float, away: bool
) -> None:
    limits = SchedulerLimits(0, 0, 0)
    admission = Admission(limits, NullRecorder(), lambda: jitter)
    if not away:
        admission.facts = facts()
        admission.estimate.on_ready(0, was_held=False)
    admission.estimate.on_finished(service_s, 0, others_wait=True)
    queue = Queue(waiting, waiting, 0)
    with pytest.raises(RejectedError) as rejected:
        admission.reserve("a", queue, 1)
    wait_s = admission.wait_s(queue, 1)
    retry_s = rejected.value.retry_after_s
    assert retry_s is not None
    assert 1 <= retry_s <= 55
    if 1.25 < wait_s < 55 / 1.2:
        assert 0.79 * wait_s <= retry_s <= 1.21 * wait_s


# --- everything together: a queue under any load


KEYS = "abc"
STEP = st.tuples(st.sampled_from(KEYS), st.integers(1, 99), st.integers(-1, 1), st.integers(0, 3))


@settings(deadline=None, max_examples=150)
@given(
    load=st.lists(STEP, max_size=120),
    queue_requests=st.integers(0, 6),
    key_requests=st.sampled_from([0, 0, 2, 3]),
    losses=st.sets(st.integers(0, 120)),
)
def test_bounded_and_one_end_each_under_any_load(
    load: list[tuple[str, int, int, int]],
    queue_requests: int,
    key_requests: int,
    losses: set[int],
) -> None:
    """Requests come in any order and are prepared for a while; the engine ends some, and dies."""
    counts = Counts()
    s = scheduler(counts, queue_requests=queue_requests, key_requests=key_requests)
    ended: Counter[int] = Counter()
    accepted: dict[int, str] = {}
    running: list[int] = []
    preparing: list[tuple[RequestSpec, Reservation]] = []
    refusals: list[tuple[RejectedError, bool]] = []

    def see(effects: list[Effect]) -> None:
        running.extend(m.rid for m in submits(effects))
        for rid in ends(effects):
            ended[rid] += 1
            if rid in running:
                running.remove(rid)

    now = 0.0
    see(s.on_ready(facts(), now))
    for at, (key, prompt, priority, finished) in enumerate(load):
        now += 0.1
        timeout_ms = 400 if prompt % 3 == 0 else 0
        before = s.waiting
        try:
            place = s.reserve(key, now)
        except RejectedError as error:
            is_full = before + len(preparing) >= queue_requests
            refusals.append((error, is_full))
        else:
            preparing.append((spec(prompt, key, priority, timeout_ms), place))
        if len(preparing) > at % 3:
            wanted, place = preparing.pop(0)
            place.release()
            try:
                rid, effects = s.submit(wanted, now)
            except RejectedError:
                pass
            else:
                accepted[rid] = wanted.key
                see(effects)
        open_keys = Counter(key for rid, key in accepted.items() if not ended[rid])
        assert not key_requests or max(open_keys.values(), default=0) <= key_requests
        for rid in running[:finished]:
            see(s.on_done(done(rid), now))
        if at in losses:
            running.clear()
            see(s.on_lost(EngineLost("killed", is_external=True), now))
            assert s.waiting <= queue_requests + BATCH + SUBMIT_AHEAD
            see(s.on_tick(now))
            see(s.on_ready(facts(), now))
        assert s.waiting <= queue_requests + BATCH + SUBMIT_AHEAD
        see(s.on_tick(now))
    for _, place in preparing:
        place.release()
    see(s.end_all(Failed(ErrorKind.OVERLOADED, "shutting_down", ""), now))
    for error, is_full in refusals:
        assert error.retry_after_s is not None
        assert is_full or error.code == "rate_limit_exceeded"
    assert set(ended) == set(accepted)
    assert set(ended.values()) <= {1}
    assert counts.seen["accepted"] == len(accepted)
    s.on_ready(facts(), now)
    assert s.reserve("a", now) is not None  # nothing is left that takes a place
    assert not s._admission._open - Counter("a")
