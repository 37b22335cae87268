"""The restart policy on the ladder: steps down, steps up, pins, memory."""

from __future__ import annotations

import msgspec
import pytest
from strata.engines.exits import ExitClass
from strata.engines.restart import (
    CLEAN_S,
    HOLD_RETRY_MAX_S,
    HOLD_RETRY_S,
    STEP_UP_EVERY_S,
    Ended,
    Hold,
    RestartPolicy,
    StartAfter,
    Step,
)
from strata.engines.rungs import Ladder

from tests.supervisor.ladders import ladder, without


class Service:
    """A policy with engines on a ladder. `now` moves with what is done."""

    def __init__(self, found: Ladder | None = None) -> None:
        self.policy = RestartPolicy(lambda: 1.0)
        self.ladder = found or ladder()
        self.now = 0.0
        self.step_up: Step | None = None

    @property
    def rung(self) -> str:
        return self.policy.state.rung

    def start(self, *, is_ready: bool = True) -> None:
        self.policy.on_started(self.now)
        _, self.step_up = self.policy.choose(self.ladder, self.now)
        if is_ready:
            self.policy.on_ready(self.now)

    def end(
        self, signature: str = "s", how: ExitClass = ExitClass.SIGNAL, axis: str = ""
    ) -> StartAfter | Hold:
        self.now += 1.0
        decision = self.policy.on_exited(Ended(how, signature, axis), self.now)
        assert isinstance(decision, StartAfter | Hold)
        self.now += decision.delay_s
        return decision

    def die(self, signature: str = "s", **facts: object) -> StartAfter | Hold:
        self.start(is_ready=facts.pop("is_ready", True) is True)
        return self.end(signature, **facts)  # type: ignore[arg-type]

    def serve(self, seconds: float, requests: int = 0) -> None:
        for _ in range(requests):
            self.policy.on_request_finished()
        self.now += seconds


def fallen(rungs: int = 1, signature: str = "s") -> Service:
    service = Service()
    for _ in range(rungs * 3):
        service.die(signature)
    return service


def test_three_of_one_signature_go_one_rung_down() -> None:
    service = Service()
    decisions = [service.die() for _ in range(3)]
    why = "3 crashes of one signature within 10 minutes"
    assert [d.step for d in decisions] == [None, None, Step("full", "no-drafts", why)]
    service.start()
    assert service.rung == "no-drafts"


def test_five_of_any_go_one_rung_down_and_old_ones_do_not_count() -> None:
    service = Service()
    steps = [service.die(str(i)).step for i in range(5)]
    assert [step is not None for step in steps] == [False] * 4 + [True]
    service = Service()
    for i in range(4):
        service.die(str(i))
    service.now += 600
    assert all(service.die(str(i)).step is None for i in range(4))


def test_implicated_axis_comes_first() -> None:
    service = Service()
    for _ in range(2):
        service.die(axis="prefill")
    step = service.die(axis="prefill").step
    assert step is not None
    assert step.new == "prefill-1"


def test_below_the_last_rung_is_hold_with_a_start_every_five_minutes() -> None:
    service = fallen(4)
    assert service.policy.rung_count == 5
    for _ in range(2):
        service.die()
    assert service.rung == "prefill-1"
    held = service.die()
    assert isinstance(held, Hold)
    retries = [service.die() for _ in range(2)]
    assert all(isinstance(d, Hold) and d.delay_s >= HOLD_RETRY_S for d in [held, *retries])


def test_lack_of_memory_goes_down_at_once_and_never_to_the_same_again() -> None:
    service = Service()
    names = []
    for _ in range(3):
        service.start(is_ready=False)
        names.append(service.rung)
        service.end(how=ExitClass.OOM)
    assert names == ["full", "no-drafts", "batch-1"]
    service.start(is_ready=False)
    assert service.rung == "context-4096"
    step = service.end(how=ExitClass.OOM).step  # no smaller rung: less is asked for (test_less.py)
    assert step is not None
    assert step.new == "context-4096 with at most kv_tokens 16384"


def test_death_before_ready_on_every_rung_alike_does_not_try_them_all() -> None:
    service = Service()
    names = []
    decision: StartAfter | Hold = StartAfter(0.0)
    while isinstance(decision, StartAfter):
        service.start(is_ready=False)
        names.append(service.rung)
        decision = service.end()
    assert names == ["full"] * 3 + ["no-drafts", "prefill-1"]
    delays = [decision.delay_s, *(service.die(is_ready=False).delay_s for _ in range(4))]
    assert delays[:3] == [300, 600, 1200]
    assert all(d <= max(HOLD_RETRY_MAX_S, 3600.0) for d in delays)


def test_step_up_comes_at_a_start_after_half_an_hour_without_a_crash() -> None:
    service = fallen()
    service.start()
    service.serve(CLEAN_S - 2)
    service.end(how=ExitClass.EXTERNAL)
    service.start()
    assert service.rung == "no-drafts"
    service.serve(2)
    service.end(how=ExitClass.EXTERNAL)
    service.start()
    assert service.rung == "full"
    assert service.step_up == Step("no-drafts", "full", "no crash for long enough")
    assert service.policy.state.limit is None


def test_only_one_rung_at_a_time() -> None:
    service = fallen(2)
    service.start()
    assert service.rung == "batch-1"
    service.serve(CLEAN_S)
    service.end(how=ExitClass.EXTERNAL)
    service.start()
    assert service.rung == "no-drafts"
    service.end(how=ExitClass.EXTERNAL)
    service.start()
    assert service.rung == "no-drafts"


def test_idle_engine_is_asked_to_make_room_every_six_hours_at_most() -> None:
    service = fallen(2)
    service.start()
    assert not service.policy.is_step_up_due(service.now + CLEAN_S)
    service.now += STEP_UP_EVERY_S
    assert service.policy.is_step_up_due(service.now)
    assert service.policy.on_made_room(service.now) == StartAfter(0.0)
    service.start()
    assert service.rung == "no-drafts"
    assert not service.policy.is_step_up_due(service.now + CLEAN_S)
    service.now += STEP_UP_EVERY_S
    service.policy.on_made_room(service.now)
    service.start()
    assert service.rung == "full"
    assert not service.policy.is_step_up_due(service.now + 10 * STEP_UP_EVERY_S)


def step_up(service: Service) -> None:
    service.start()
    service.serve(CLEAN_S)
    service.end(how=ExitClass.EXTERNAL)
    service.start()


def test_a_repeat_up_there_goes_down_at_once_and_pins_the_rung() -> None:
    service = fallen()
    step_up(service)
    assert service.rung == "full"
    step = service.end("s").step
    assert step == Step("full", "no-drafts", "the crash that led down before came again", True)
    step_up(service)
    assert service.rung == "no-drafts"
    assert not service.policy.is_step_up_due(service.now + 100 * STEP_UP_EVERY_S)
    service.policy.on_place("another build", service.now)
    service.start()
    assert service.rung == "full"


def test_another_signature_up_there_is_a_crash_like_others() -> None:
    service = fallen()
    step_up(service)
    assert service.end("other").step is None
    service.start()
    assert service.rung == "full"


def test_a_good_spell_up_there_forgets_the_fall() -> None:
    service = fallen()
    step_up(service)
    service.serve(600, requests=20)
    assert service.end("s").step is None
    assert service.policy.state.falls == []


def test_pin_holds_below_it_too() -> None:
    service = fallen()
    step_up(service)
    service.end("s")  # pins no-drafts
    for _ in range(3):
        service.die("t")
    service.start()
    assert service.rung == "batch-1"
    service.serve(CLEAN_S)
    service.end(how=ExitClass.EXTERNAL)
    service.start()
    assert service.rung == "no-drafts"


def test_ladder_that_lost_rungs_keeps_the_limit() -> None:
    service = fallen()
    service.ladder = without(ladder(), "full", "no-drafts")
    service.start()
    assert service.rung == "batch-1"
    service.end(how=ExitClass.EXTERNAL)
    service.ladder = ladder()
    service.start()
    assert service.rung == "no-drafts"


def test_ladder_of_one_rung_leads_to_hold() -> None:
    service = Service(ladder().top)
    assert [type(service.die()) for _ in range(3)] == [StartAfter, StartAfter, Hold]


def test_death_before_caps_has_no_rung_to_go_to() -> None:
    policy = RestartPolicy(lambda: 1.0)
    for now in (0, 1):
        policy.on_started(now)
        assert isinstance(policy.on_exited(Ended(ExitClass.SIGNAL, "s"), now), StartAfter)
    policy.on_started(2)
    assert isinstance(policy.on_exited(Ended(ExitClass.OOM, "s"), 2), Hold)


@pytest.mark.parametrize("is_clean", [True, False])
def test_another_supervisor_goes_on_where_the_last_one_was(is_clean: bool) -> None:
    service = Service(ladder().top)
    for _ in range(3):
        service.start()
        service.now += 1
        service.policy.on_exited(Ended(ExitClass.SIGNAL, "s"), service.now)
    state = msgspec.json.decode(
        msgspec.json.encode(service.policy.state), type=type(service.policy.state)
    )
    if is_clean:
        state.next_start = None
    again = RestartPolicy(lambda: 1.0, state)
    decision = again.first_start(service.now + 100)
    why = "3 crashes of one signature within 10 minutes"
    assert decision == (StartAfter(0.0) if is_clean else Hold(200.0, why))
    again.on_started(service.now + 300)
    again.choose(service.ladder, service.now + 300)
    again.on_ready(service.now + 300)
    assert isinstance(again.on_exited(Ended(ExitClass.SIGNAL, "s"), service.now + 301), Hold)


def test_supervisors_in_a_loop_start_no_more_engines_than_one() -> None:
    policy, now, starts = RestartPolicy(lambda: 1.0), 0.0, 0
    while now < 3600:
        decision = policy.first_start(now)
        assert isinstance(decision, StartAfter | Hold)
        now += decision.delay_s
        if now >= 3600:
            break
        policy.on_started(now)
        starts += 1
        now += 1  # supervisor and engine are both killed
        policy = RestartPolicy(lambda: 1.0, policy.state)
    assert starts == 8
