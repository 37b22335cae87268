"""When an engine hangs and when it only looks like it, on a clock of our own."""

from __future__ import annotations

import pytest
from strata.engines.hang import Fine, Glance, Hang, HangWatch, Limits, Report, Verdict, Vitals
from strata_protocol.messages import ModePlan, Pong, Progress, Ready

from tests.supervisor.crash_facts import plan


def ready() -> Ready:
    facts: ModePlan = plan()
    return Ready(plan=facts, load_ms=1, warm_ms=1, kv_pages=1, page_tokens=32)


class Engine:
    """A watched engine: what it shows and what the system says of it. A second a look."""

    def __init__(self, *, is_running: bool = True, has_beacon: bool = True) -> None:
        self.now = 100.0
        self.watch = HangWatch(Limits(), 6.0, self.now)
        self.phase = "ready"
        self.moves = 0
        self.vitals = Vitals("S")
        self.has_beacon = has_beacon
        self.answers = True  # PINGs
        self.busy = False
        self.slept_s = 0.0
        self.moved_s = 0.0
        self.verdicts: list[tuple[float, Verdict]] = []
        if is_running:
            self.watch.on_message(ready(), self.now)

    def look(self, late_s: float = 0.0) -> Verdict:
        self.now += 1.0 + late_s
        if self.answers:
            self.watch.on_message(Pong(nonce=1, step=7, busy=self.busy), self.now)
        glance = Glance(self.phase, self.moves, self.moved_s) if self.has_beacon else None
        verdict: Verdict = Fine()
        if self.watch.on_look(self.now, self.slept_s, late_s=late_s, glance=glance):
            verdict = self.watch.judge(self.now, self.vitals)
        if not isinstance(verdict, Fine):
            self.verdicts.append((self.now, verdict))
        return verdict

    def run(self, seconds: int, every: int = 0) -> list[Verdict]:
        """Looks for so long; moves every so many seconds. Ends at a hang."""
        found = []
        for second in range(seconds):
            if every and second % every == 0:
                self.moves += 1
            verdict = self.look()
            if not isinstance(verdict, Fine):
                found.append(verdict)
            if isinstance(verdict, Hang):
                break
        return found

    def until_hang(self, at_most: int = 200) -> float:
        """Seconds until it is said to hang."""
        began = self.now
        assert isinstance(self.run(at_most)[-1], Hang)
        return self.now - began


@pytest.mark.parametrize("phase", ["prefill", "decode", "probe", "dying"])
def test_no_movement_in_work_for_ten_seconds_is_a_hang_though_pings_are_answered(
    phase: str,
) -> None:
    engine = Engine()
    engine.phase = phase
    engine.look()
    assert 9 <= engine.until_hang() <= 10
    assert engine.verdicts[-1][1] == Hang(f"no movement for 10.0 s in phase {phase}")


@pytest.mark.parametrize("phase", ["ready", "drain"])
def test_idle_engine_may_stand_still_for_ever(phase: str) -> None:
    engine = Engine()
    engine.phase = phase
    assert engine.run(3600) == []


def test_long_prefill_is_no_hang_while_it_moves() -> None:
    engine = Engine()
    engine.phase = "prefill"
    assert engine.run(1800, every=9) == []


def test_usual_of_a_phase_gives_it_more_time_up_to_a_minute() -> None:
    quick, slow, slowest = Engine(), Engine(), Engine()
    for engine, every in ((quick, 1), (slow, 5), (slowest, 9)):
        engine.phase = "prefill"
        assert engine.run(200, every=every) == []
    assert quick.watch.limit_s("prefill") == 10
    assert 24 <= slow.until_hang() <= 40
    assert slowest.watch.limit_s("prefill") == 60
    assert slowest.watch.limit_s("decode") == 10  # each phase has its own
    assert 57 <= slowest.until_hang() <= 61


def test_loading_gets_half_a_minute_and_progress_counts_as_movement() -> None:
    engine = Engine(is_running=False)
    engine.answers = False
    engine.phase = "map"
    for _ in range(20):
        engine.watch.on_message(Progress(phase="map", done=1, total=2), engine.now)
        assert engine.run(25) == []
    assert 4 <= engine.until_hang() <= 6


def test_before_the_beacon_says_more_the_handshake_has_its_own_time() -> None:
    for has_beacon in (True, False):
        engine = Engine(is_running=False, has_beacon=has_beacon)
        engine.answers = False
        engine.phase = "launch"
        engine.watch.wait_for("HELLO", 10.0)
        assert 9 <= engine.until_hang() <= 11
        assert engine.verdicts[-1][1] == Hang("no HELLO for 10.0 s")


def test_both_threads_silent_is_a_hang_of_the_process() -> None:
    engine = Engine()
    engine.run(30)
    engine.answers = False
    assert 9 <= engine.until_hang() <= 11
    assert engine.verdicts[-1][1] == Hang("no message for 10.0 s")


def test_reader_that_is_silent_while_the_beacon_moves_gets_longer() -> None:
    engine = Engine()
    engine.phase = "decode"
    engine.answers = False
    assert engine.run(29, every=1) == []
    found = engine.run(5, every=1)
    assert found == [Hang("no message for 30.0 s, though its beacon moves")]


def test_without_a_beacon_the_messages_decide() -> None:
    silent = Engine(has_beacon=False)
    silent.answers = False
    assert 29 <= silent.until_hang() <= 31
    stuck = Engine(has_beacon=False)
    stuck.busy = True
    assert 29 <= stuck.until_hang() <= 32
    assert "step 7 has not ended" in str(stuck.verdicts[-1][1])


def test_stopped_process_is_reported_once_and_never_ended() -> None:
    for phase in ("decode", "ready", "probe"):
        engine = Engine()
        engine.phase, engine.answers = phase, False
        engine.vitals = Vitals("T")
        (report,) = engine.run(603)
        assert isinstance(report, Report)
        assert report.code == "hang.stopped"
        engine.vitals = Vitals("S")
        assert engine.run(5) == []  # the time in which it was stopped does not count


def test_process_that_waits_in_the_kernel_is_reported_and_not_ended() -> None:
    engine = Engine()
    engine.phase = "prefill"
    engine.vitals = Vitals("D")
    (report,) = engine.run(600)
    assert isinstance(report, Report)
    assert report.code == "hang.in_kernel"
    assert "no second engine" in report.text
    engine.vitals = Vitals("S")
    assert isinstance(engine.look(), Hang)


def test_disk_that_answers_in_time_is_not_even_reported() -> None:
    engine = Engine()
    engine.phase = "prefill"
    engine.vitals = Vitals("D")
    assert engine.run(35) == []


def test_memory_pressure_doubles_the_time_once_and_says_so() -> None:
    engine = Engine()
    engine.phase = "decode"
    engine.look()
    engine.vitals = Vitals("S", 0, 35.0)
    assert 18 <= engine.until_hang() <= 21
    codes = [v.code for _, v in engine.verdicts if isinstance(v, Report)]
    assert codes == ["hang.pressure"]
    calm = Engine()
    calm.phase = "decode"
    calm.vitals = Vitals("S", 0, 20.0)
    assert calm.until_hang() <= 11


def test_storm_of_page_faults_doubles_the_time() -> None:
    engine = Engine()
    engine.phase = "decode"
    engine.look()
    for second in range(15):
        engine.vitals = Vitals("S", second * 5000)
        assert not isinstance(engine.look(), Hang)
    assert engine.until_hang() <= 6


def test_doubled_time_ends_with_the_spell() -> None:
    engine = Engine()
    engine.phase = "decode"
    engine.vitals = Vitals("S", 0, 35.0)
    assert len(engine.run(15)) == 1
    engine.moves += 1
    engine.look()
    engine.vitals = Vitals("S")
    assert engine.until_hang() <= 11


def test_our_own_lateness_proves_nothing() -> None:
    engine = Engine()
    engine.phase = "decode"
    engine.run(9)
    assert isinstance(engine.look(late_s=30.0), Fine)
    assert engine.run(8) == []
    assert isinstance(engine.run(5)[-1], Hang)


def test_movement_that_was_seen_late_is_no_spell() -> None:
    engine = Engine()
    engine.phase = "decode"
    engine.run(3)
    engine.moves, engine.moved_s = 1, engine.now + 0.1  # right before we were late ourselves
    assert isinstance(engine.look(late_s=30.0), Fine)
    assert engine.run(8) == []


def test_spell_counts_from_the_movement_and_not_from_the_look() -> None:
    engine = Engine()
    engine.phase = "decode"
    engine.look()
    engine.moves, engine.moved_s = 1, engine.now + 0.2
    engine.look()
    assert engine.watch.is_over(engine.moved_s + 10.0)
    assert not engine.watch.is_over(engine.moved_s + 9.9)


def test_sleep_of_the_machine_proves_nothing() -> None:
    engine = Engine()
    engine.phase = "decode"
    engine.run(8)
    engine.slept_s += 3600
    assert engine.run(9) == []
    assert isinstance(engine.run(5)[-1], Hang)


def test_many_small_latenesses_do_not_hide_a_hang() -> None:
    engine = Engine()
    engine.phase = "decode"
    verdicts = [engine.look(late_s=0.9) for _ in range(8)]
    assert any(isinstance(v, Hang) for v in verdicts)


def test_engine_that_goes_on_after_it_was_asked_is_no_longer_over() -> None:
    engine = Engine()
    engine.phase = "decode"
    engine.until_hang()
    assert engine.watch.is_over(engine.now)
    engine.moves += 1
    engine.look()
    assert not engine.watch.is_over(engine.now)
