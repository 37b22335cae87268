"""The restart policy on a clock that the tests move."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from strata.engines.exits import ExitClass, Intent, classify, status_text
from strata.engines.restart import (
    HOLD_RETRY_S,
    STARTS_MAX,
    STARTS_WINDOW_S,
    UNREADY_STARTS_MAX,
    Ended,
    Hold,
    RestartPolicy,
    StartAfter,
    StayDown,
    Stopped,
)


def crash(policy: RestartPolicy, now: float, how: ExitClass = ExitClass.SIGNAL) -> object:
    """A crash of a signature of its own."""
    policy.on_started(now)
    policy.on_ready(now)
    return policy.on_exited(Ended(how, signature=f"at {now}"), now)


def test_first_restart_is_at_once_then_delays_double() -> None:
    policy = RestartPolicy(lambda: 1.0)
    now, delays = 0.0, []
    for _ in range(8):
        now += 400  # too far apart for HOLD
        decision = crash(policy, now)
        assert isinstance(decision, StartAfter)
        delays.append(decision.delay_s)
    assert delays == [0, 1, 2, 4, 8, 16, 30, 30]


def test_jitter_shortens_delays() -> None:
    policy = RestartPolicy(lambda: 0.5)
    assert crash(policy, 0) == StartAfter(0.0)
    assert crash(policy, 400) == StartAfter(0.5)


def test_five_crashes_in_ten_minutes_hold_until_one_stays_up() -> None:
    policy = RestartPolicy(lambda: 1.0)
    decisions = [crash(policy, t) for t in (0, 60, 120, 180)]
    assert all(isinstance(d, StartAfter) for d in decisions)
    held = crash(policy, 240)
    assert isinstance(held, Hold)
    assert held.delay_s == HOLD_RETRY_S
    assert isinstance(crash(policy, 240 + HOLD_RETRY_S), Hold)
    policy.on_started(1000)
    policy.on_ready(1000)
    assert isinstance(policy.on_exited(Ended(ExitClass.SIGNAL), 1700), StartAfter)


def test_a_good_spell_forgives() -> None:
    policy = RestartPolicy(lambda: 1.0)
    for t in (0, 1, 2, 3):
        crash(policy, t)
    policy.on_started(10)
    policy.on_ready(10)
    for _ in range(20):
        policy.on_request_finished()
    assert policy.on_exited(Ended(ExitClass.SIGNAL), 611) == StartAfter(0.0)


def test_time_alone_or_requests_alone_forgive_nothing() -> None:
    for served, ready_s in ((0, 2000.0), (1000, 599.0)):
        policy = RestartPolicy(lambda: 1.0)
        assert crash(policy, 0) == StartAfter(0.0)
        policy.on_started(1)
        policy.on_ready(1)
        for _ in range(served):
            policy.on_request_finished()
        assert policy.on_exited(Ended(ExitClass.SIGNAL), 1 + ready_s) == StartAfter(1.0)


def test_kills_from_outside_are_followed_by_a_start_at_once_however_many() -> None:
    policy = RestartPolicy(lambda: 1.0)
    assert [crash(policy, t, ExitClass.EXTERNAL) for t in range(100)] == [StartAfter(0.0)] * 100
    assert crash(policy, 100) == StartAfter(0.0)


def test_kills_from_outside_before_ready_are_slowed_down() -> None:
    policy = RestartPolicy(lambda: 1.0)
    delays = []
    for t in range(7):
        policy.on_started(t)
        delays.append(policy.on_exited(Ended(ExitClass.EXTERNAL), t))
    assert delays == [StartAfter(d) for d in (0, 1, 2, 4, 8, 16, 30)]
    assert crash(policy, 8, ExitClass.EXTERNAL) == StartAfter(0.0)


def test_three_crashes_of_one_signature_are_enough() -> None:
    policy = RestartPolicy(lambda: 1.0)
    decisions = []
    for t in (0, 10, 20):
        policy.on_started(t)
        policy.on_ready(t)
        decisions.append(policy.on_exited(Ended(ExitClass.SIGNAL, "s"), t))
    assert decisions == [
        StartAfter(0.0),
        StartAfter(1.0),
        Hold(HOLD_RETRY_S, "3 crashes of one signature within 10 minutes"),
    ]


def test_engine_that_can_never_start_is_started_at_most_eight_times_in_the_first_hour() -> None:
    policy = RestartPolicy(lambda: 0.5)
    now, starts = 0.0, 0
    while now < STARTS_WINDOW_S:
        starts += 1
        policy.on_started(now)
        decision = policy.on_exited(Ended(ExitClass.SIGNAL, "s"), now + 1)
        assert isinstance(decision, StartAfter | Hold)
        now += 1 + decision.delay_s
    assert 5 <= starts <= UNREADY_STARTS_MAX


def took_mode_out(policy: RestartPolicy, now: float) -> object:
    policy.on_started(now)
    policy.on_ready(now)
    return policy.on_exited(Ended(ExitClass.SIGNAL, took_mode_out=True), now)


def test_crashes_that_take_a_mode_out_restart_at_once_and_count_for_nothing() -> None:
    policy = RestartPolicy(lambda: 1.0)
    assert [took_mode_out(policy, t) for t in range(6)] == [StartAfter(0.0)] * 6
    delays = [crash(policy, t) for t in (10, 70, 130, 190)]
    assert delays == [StartAfter(0.0), StartAfter(1.0), StartAfter(2.0), StartAfter(4.0)]
    assert isinstance(crash(policy, 250), Hold)


def test_not_even_they_start_more_than_twelve_times_an_hour() -> None:
    policy = RestartPolicy(lambda: 1.0)
    decisions = [took_mode_out(policy, t) for t in range(STARTS_MAX)]
    assert decisions[:-1] == [StartAfter(0.0)] * (STARTS_MAX - 1)
    assert decisions[-1] == Hold(STARTS_WINDOW_S - STARTS_MAX + 1, "12 starts within an hour")


def test_refusal_stays_down_and_stop_stops() -> None:
    policy = RestartPolicy(lambda: 1.0)
    assert crash(policy, 0, ExitClass.REFUSE) == StayDown()
    assert crash(policy, 0, ExitClass.STOP) == Stopped()


@given(
    st.lists(
        st.tuples(
            st.sampled_from([ExitClass.SIGNAL, ExitClass.EXTERNAL, ExitClass.HANG, ExitClass.OOM]),
            st.floats(0, 900),
            st.integers(0, 40),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_never_more_than_twelve_starts_an_hour(
    lives: list[tuple[ExitClass, float, int]],
) -> None:
    policy = RestartPolicy(lambda: 0.5)
    now, starts = 0.0, []
    for how, lived_s, served in lives:
        if how is not ExitClass.EXTERNAL:
            starts.append(now)
        policy.on_started(now)
        policy.on_ready(now)
        for _ in range(served):
            policy.on_request_finished()
        now += lived_s
        decision = policy.on_exited(Ended(how, "s"), now)
        assert isinstance(decision, StartAfter | Hold)
        now += decision.delay_s
        assert decision.delay_s >= 0
    for i in range(len(starts) - STARTS_MAX):
        assert starts[i + STARTS_MAX] - starts[i] >= STARTS_WINDOW_S * (1 - 1e-9)


def test_classes_of_exits() -> None:
    cases = [
        (0, Intent.STOP, ExitClass.STOP),
        (-9, Intent.HANG, ExitClass.HANG),
        (-9, None, ExitClass.EXTERNAL),
        (-15, None, ExitClass.EXTERNAL),
        (-11, None, ExitClass.SIGNAL),
        (-6, None, ExitClass.SIGNAL),
        (0, None, ExitClass.EXTERNAL),
        (1, None, ExitClass.EXIT),
        (70, None, ExitClass.EXIT),
        (71, None, ExitClass.OOM),
        (76, None, ExitClass.PROTOCOL),
        (64, None, ExitClass.REFUSE),
        (65, None, ExitClass.REFUSE),
        (69, None, ExitClass.REFUSE),
        (78, None, ExitClass.REFUSE),
    ]
    for returncode, intent, expected in cases:
        assert classify(returncode, intent, was_oom_kill=False) is expected, returncode
    assert classify(-9, None, was_oom_kill=True) is ExitClass.OOM
    assert status_text(-9) == "killed by SIGKILL (9)"
    assert status_text(-64) == "killed by SIGRTMAX (64)"
    assert status_text(3) == "exited with status 3"


def test_what_one_request_did_counts_as_one_whatever_comes_between() -> None:
    policy = RestartPolicy(lambda: 1.0)
    now = 0.0

    def died(signature: str) -> object:
        nonlocal now
        now += 5
        policy.on_started(now)
        policy.on_ready(now)
        return policy.on_exited(Ended(ExitClass.SIGNAL, signature), now)

    assert isinstance(died("a"), StartAfter)
    assert isinstance(died("a"), StartAfter)
    policy.on_convicted("a")
    assert len(policy.state.crashes) == 1
    assert isinstance(died("b"), StartAfter)
    assert isinstance(died("a"), StartAfter)
    policy.on_convicted("a")  # another request: its first crash had another signature
    assert [c.signature for c in policy.state.crashes] == ["a", "b", "a"]
    assert isinstance(died("a"), Hold), "the third; no ladder is known here, so nothing is below"
