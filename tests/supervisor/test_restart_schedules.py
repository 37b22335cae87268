"""The restart policy under thousands of seeded schedules on a virtual clock: faults that depend on
the rung, kills from outside, lack of memory, supervisors that are ended in between.

A schedule has a bad time, in which everything goes wrong that its faults allow, and then a good
time, in which nothing does and the engine is idle now and then.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import msgspec
import pytest
from strata.engines.exits import ExitClass
from strata.engines.restart import (
    HOLD_RETRY_MAX_S,
    STARTS_MAX,
    STARTS_WINDOW_S,
    STEP_UP_EVERY_S,
    UNREADY_STARTS_MAX,
    Ended,
    Hold,
    RestartPolicy,
    StartAfter,
)
from strata.engines.restart_state import RestartState
from strata.engines.rungs import Ladder

from tests.supervisor.ladders import ladder, without

SCHEDULES = 2000
CHUNKS = 8
BAD_TIME_S = 6 * 3600.0
RUNGS = ("full", "no-drafts", "batch-1", "context-4096", "prefill-1")


@dataclass
class Faults:
    """What goes wrong in one schedule."""

    bad_rungs: int  # the first so many rungs crash
    dies_before_caps: float  # probability
    dies_before_ready: float
    oom_bytes: int  # rungs that need more run out of memory
    external: float
    supervisor_ends: float
    signatures: int
    lives_s: float  # mean

    @classmethod
    def drawn(cls, rng: random.Random) -> Faults:
        return cls(
            bad_rungs=rng.choice([0, 1, 1, 2, 3, 5]),
            dies_before_caps=rng.choice([0.0, 0.0, 0.3, 1.0]),
            dies_before_ready=rng.choice([0.0, 0.0, 0.5, 1.0]),
            oom_bytes=rng.choice([0, 2000, 2000, 950, 500]),
            external=rng.choice([0.0, 0.2, 0.9]),
            supervisor_ends=rng.choice([0.0, 0.0, 0.1, 0.5]),
            signatures=rng.choice([1, 2, 50]),
            lives_s=rng.choice([0.5, 20.0, 400.0, 3000.0]),
        )


@dataclass
class World:
    rng: random.Random
    faults: Faults
    policy: RestartPolicy
    now: float = 0.0
    counted: list[tuple[float, bool]] = field(default_factory=list)  # starts, became ready
    is_good: bool = False

    def ladder(self) -> Ladder:
        """Now and then a mode is in quarantine."""
        found = ladder()
        if not self.is_good and self.rng.random() < 0.1:
            return without(found, self.rng.choice(RUNGS[1:]))
        return found

    def wait(self, decision: object) -> None:
        assert isinstance(decision, StartAfter | Hold), decision
        assert 0 <= decision.delay_s <= STARTS_WINDOW_S
        if isinstance(decision, StartAfter):
            assert decision.delay_s <= 30
        assert self.policy.state.next_start == pytest.approx(self.now + decision.delay_s)
        self.now += decision.delay_s
        if self.rng.random() < self.faults.supervisor_ends:
            self.change_supervisor(was_told=self.rng.random() < 0.5)

    def change_supervisor(self, *, was_told: bool) -> None:
        data = msgspec.json.encode(self.policy.state)
        state = msgspec.json.decode(data, type=RestartState)
        if was_told:
            state.next_start = None
        self.policy = RestartPolicy(lambda: self.rng.uniform(0.5, 1.0), state)
        self.now += self.rng.random() * 5
        decision = self.policy.first_start(self.now)
        assert isinstance(decision, StartAfter | Hold)
        assert decision.delay_s <= STARTS_WINDOW_S
        self.now += decision.delay_s

    def live(self) -> None:
        """One engine of the bad time."""
        rng, faults, policy = self.rng, self.faults, self.policy
        policy.on_started(self.now)
        started, was_ready = self.now, False
        signature = f"s{rng.randrange(faults.signatures)}"
        how = ExitClass.SIGNAL
        if rng.random() >= faults.dies_before_caps:
            found = self.ladder()
            index, _ = policy.choose(found, self.now)
            if faults.oom_bytes and found.bytes[index] > faults.oom_bytes:
                how = ExitClass.OOM
            elif rng.random() >= faults.dies_before_ready:
                policy.on_ready(self.now)
                was_ready = True
                self.now += rng.expovariate(1 / faults.lives_s)
                for _ in range(rng.randrange(40)):
                    policy.on_request_finished()
                if RUNGS.index(found.rungs[index].name) >= faults.bad_rungs:
                    how = ExitClass.EXTERNAL  # nothing else ends it
        if rng.random() < faults.external:
            how = ExitClass.EXTERNAL
        if how is not ExitClass.EXTERNAL:
            self.counted.append((started, was_ready))
        elif was_ready and self.counted:  # that one became ready ends a row
            self.counted[-1] = (self.counted[-1][0], True)
        took_mode_out = how is ExitClass.SIGNAL and rng.random() < 0.05
        axis = rng.choice(["", "batch", "prefill"])
        ended = Ended(how, signature, axis, took_mode_out)
        before = (policy.state.limit, policy.state.less)
        decision = policy.on_exited(ended, self.now)
        is_step = isinstance(decision, StartAfter | Hold) and decision.step is not None
        # What may run changes with a step that is told, and with nothing else.
        assert is_step == ((policy.state.limit, policy.state.less) != before)
        self.wait(decision)

    def prosper(self) -> str:
        """The good time; returns the rung at its end."""
        self.is_good = True
        self.faults.supervisor_ends = 0.0
        policy = self.policy
        policy.on_started(self.now)
        policy.choose(self.ladder(), self.now)
        policy.on_ready(self.now)
        for _ in range(len(RUNGS) + 1):
            for _ in range(20):
                policy.on_request_finished()
            self.now += STEP_UP_EVERY_S + 60
            policy.look(self.now)
            if policy.is_step_up_due(self.now):
                assert policy.on_made_room(self.now) == StartAfter(0.0)
                policy.on_started(self.now)
                policy.choose(self.ladder(), self.now)
                policy.on_ready(self.now)
        return policy.state.rung


def check_ceiling(starts: list[tuple[float, bool]]) -> None:
    times = [at for at, _ in starts]
    for first, last in zip(times, times[STARTS_MAX:], strict=False):
        assert last - first >= STARTS_WINDOW_S * (1 - 1e-9)
    unready: list[float] = []
    for at, was_ready in starts:
        unready = [] if was_ready else [*unready, at]
        if len(unready) > UNREADY_STARTS_MAX:
            waited_s = unready[-1] - unready[-1 - UNREADY_STARTS_MAX]
            assert waited_s >= STARTS_WINDOW_S * (1 - 1e-9)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_bounds_hold_and_all_is_well_again_after_a_good_time(chunk: int) -> None:
    count = SCHEDULES // CHUNKS
    for seed in range(chunk * count, (chunk + 1) * count):
        rng = random.Random(seed)
        world = World(rng, Faults.drawn(rng), RestartPolicy(lambda: rng.uniform(0.5, 1.0)))  # noqa: B023
        lives = 0
        while world.now < BAD_TIME_S and lives < 300:
            world.live()
            lives += 1
        assert lives >= 3, seed  # it goes on trying
        check_ceiling(world.counted)
        rung = world.prosper()
        state = world.policy.state
        assert not state.is_held, seed
        if state.pin is None:
            assert rung == "full", seed
        else:
            assert rung == ladder().rungs[ladder().find(state.pin)].name, seed


def test_hold_of_an_engine_that_served_is_tried_every_five_minutes_within_the_ceiling() -> None:
    policy, now, starts = RestartPolicy(lambda: 1.0), 0.0, []
    while now < 10 * 3600:
        policy.on_started(now)
        starts.append(now)
        policy.choose(ladder().top, now)
        policy.on_ready(now)
        now += 1
        decision = policy.on_exited(Ended(ExitClass.SIGNAL, "s"), now)
        assert isinstance(decision, StartAfter | Hold)
        now += decision.delay_s
    later = [b - a for a, b in itertools.pairwise(starts[5:])]
    assert min(later) >= 299
    assert max(later) <= HOLD_RETRY_MAX_S
    assert len(starts) >= 100
