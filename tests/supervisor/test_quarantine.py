"""The quarantine on a clock that the tests move."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from strata.engines.blame import Blame
from strata.engines.exits import ExitClass
from strata.engines.quarantine import (
    RECORDS_MAX,
    TRIAL_WAIT_MAX_S,
    Place,
    Quarantine,
    QuarantineState,
)
from strata.engines.restart import STARTS_WINDOW_S, Ended, RestartPolicy, StartAfter
from strata.engines.signature import Signature

WAIT_S = 100.0
HERE = Place(build="1", device="cpu", path="/m.gguf", size=5, mtime_ns=6)


def crash(name: str = "a") -> Signature:
    return Signature("signal", "SIGSEGV (11)", name, (), "decode", "k", ())


@dataclass
class Rig:
    now: float = 1000.0
    wait_s: float = WAIT_S
    quarantine: Quarantine = field(init=False)

    def __post_init__(self) -> None:
        self.quarantine = Quarantine(self.wait_s, lambda: self.now)

    def out(self, place: Place = HERE) -> list[str]:
        return [r.mode for r in self.quarantine.on_start(place).out]

    def crash(self, mode: str | None, name: str = "a", *, is_certain: bool = True) -> list[str]:
        blame = None if mode is None else Blame(mode, is_certain)
        return [r.mode for r in self.quarantine.on_crash(HERE, crash(name), blame)]

    def state(self, mode: str) -> QuarantineState | None:
        return next((r.state for r in self.quarantine.records if r.mode == mode), None)


def test_the_same_crash_without_a_mode_acquits_it() -> None:
    rig = Rig()
    assert rig.crash("kv=f16") == ["kv=f16"]
    assert rig.crash("prefill") == ["prefill"]  # with f32: the same crash
    assert rig.state("kv=f16") is QuarantineState.ACQUITTED
    assert rig.crash(None) == []
    assert rig.out() == []
    assert rig.crash("kv=f16") == []  # not blamed for it again
    assert rig.crash("kv=f16", "another") == ["kv=f16"]


def test_a_smaller_size_is_the_same_mode_still() -> None:
    rig = Rig()
    rig.crash("max_context=8192")
    assert rig.crash("max_context=4096") == ["max_context=4096"]
    assert rig.out() == ["max_context=8192", "max_context=4096"]


def test_a_mode_that_crashed_is_out_until_a_quiet_time_has_passed() -> None:
    rig = Rig()
    assert rig.out() == []
    assert rig.crash("batch") == ["batch"]
    assert rig.out() == ["batch"]
    rig.now += WAIT_S - 1
    assert rig.out() == ["batch"]
    rig.now += 1
    started = rig.quarantine.on_start(HERE)
    assert ([*started.out], [r.mode for r in started.on_trial]) == ([], ["batch"])
    assert rig.state("batch") is QuarantineState.TRIAL
    assert rig.quarantine.on_start(HERE).on_trial == [], "said once"


def test_a_relapse_takes_it_out_at_once_for_twice_as_long() -> None:
    rig = Rig()
    rig.crash("batch")
    wait_s = WAIT_S
    for relapse in range(20):
        rig.now += wait_s
        assert rig.out() == []
        assert rig.crash("batch", f"other {relapse}") == ["batch"]
        wait_s = min(2 * wait_s, TRIAL_WAIT_MAX_S)
        rig.now += wait_s - 1
        assert rig.out() == ["batch"]
        rig.now += 1 - wait_s
    assert wait_s == TRIAL_WAIT_MAX_S
    assert rig.quarantine.records[0].count == 21


def test_the_same_signature_is_a_relapse_whatever_is_blamed() -> None:
    rig = Rig()
    rig.crash("batch")
    rig.now += WAIT_S
    rig.out()
    assert rig.crash(None) == ["batch"]
    rig.now += 2 * WAIT_S
    rig.out()
    assert rig.crash("kv=f16") == ["batch", "kv=f16"]
    rig.now += 4 * WAIT_S
    rig.out()
    assert rig.crash(None, "another") == []


def test_a_good_spell_on_trial_clears() -> None:
    rig = Rig()
    rig.crash("batch")
    assert rig.quarantine.on_good(HERE, 1e6, 1000) == [], "not on trial"
    rig.now += WAIT_S
    rig.out()
    for ready_s, served in ((599.0, 20), (600.0, 19)):
        assert rig.quarantine.on_good(HERE, ready_s, served) == []
    elsewhere = msgspec.structs.replace(HERE, device="other")
    assert rig.quarantine.on_good(elsewhere, 600, 20) == []
    assert [r.mode for r in rig.quarantine.on_good(HERE, 600, 20)] == ["batch"]
    assert rig.quarantine.records == []


def test_a_suspect_is_out_at_the_second_crash_of_one_signature() -> None:
    rig = Rig()
    assert rig.crash("prefill", "a", is_certain=False) == []
    assert rig.out() == []
    assert rig.crash("prefill", "b", is_certain=False) == [], "another signature"
    assert rig.crash("prefill", "b", is_certain=False) == ["prefill"]
    assert rig.out() == ["prefill"]


def test_one_request_alone_is_no_second_evidence() -> None:
    rig = Rig()
    blame = Blame("prefill", is_certain=False)

    def crash_with(*prints: str) -> list[str]:
        taken = rig.quarantine.on_crash(HERE, crash(), blame, frozenset(prints))
        return [record.mode for record in taken]

    assert [crash_with("a"), crash_with("a"), crash_with("a")] == [[], [], []]
    assert rig.state("prefill") is QuarantineState.SUSPECTED
    assert rig.quarantine.records[0].count == 3
    assert crash_with("b") == ["prefill"]
    assert rig.quarantine.records[0].suspects == ("a", "b")


def test_a_conviction_frees_what_was_blamed_for_the_same_crashes() -> None:
    rig = Rig()
    rig.quarantine.on_crash(HERE, crash(), Blame("batch"), frozenset({"a", "b"}))
    rig.quarantine.on_crash(HERE, crash("y"), Blame("kv=f16"), frozenset({"c"}))
    assert [r.mode for r in rig.quarantine.on_convicted(HERE, "b")] == ["batch"]
    assert rig.out() == ["kv=f16"]
    assert rig.state("batch") is QuarantineState.ACQUITTED
    assert rig.quarantine.on_convicted(HERE, "b") == []


def test_suspicion_lapses_and_certainty_ends_it() -> None:
    rig = Rig()
    rig.crash("prefill", is_certain=False)
    rig.now += WAIT_S
    assert rig.out() == []
    assert rig.quarantine.records == []
    rig.crash("prefill", is_certain=False)
    assert rig.crash("prefill", "other") == ["prefill"]


def test_a_crash_in_what_is_out_already_is_nothing_new() -> None:
    rig = Rig()
    rig.crash("batch")
    rig.now += 50
    assert rig.crash("batch") == []
    rig.now += WAIT_S - 1
    assert rig.out() == ["batch"], "but its quiet time starts anew"


def test_records_apply_to_their_build_file_and_device_only() -> None:
    for change in ({"build": "2"}, {"size": 9}, {"mtime_ns": 9}):
        rig = Rig()
        rig.crash("batch")
        other = msgspec.structs.replace(HERE, **change)
        started = rig.quarantine.on_start(other)
        assert [*started.out] == []
        assert [r.mode for r in started.forgotten] == ["batch"]
        assert rig.out() == [], "and it stays forgotten"
    for change in ({"device": "gpu"}, {"path": "/other.gguf"}, {"device": "gpu", "build": "2"}):
        rig = Rig()
        rig.crash("batch")
        assert rig.out(msgspec.structs.replace(HERE, **change)) == []
        assert rig.out() == ["batch"], "another model or device says nothing of this one"


def test_the_header_counts_once_it_is_known() -> None:
    rig = Rig()
    known = msgspec.structs.replace(HERE, header="aa")
    rig.quarantine.on_crash(known, crash(), Blame("batch"))
    assert rig.out() == ["batch"]
    assert rig.quarantine.forget_outdated(known) == []
    changed = msgspec.structs.replace(HERE, header="bb")
    assert [r.mode for r in rig.quarantine.forget_outdated(changed)] == ["batch"]


def test_a_clock_that_was_set_back_does_not_lock_a_mode_out() -> None:
    rig = Rig()
    rig.crash("batch")
    rig.now -= 900
    assert rig.out() == ["batch"]
    rig.now += WAIT_S
    assert rig.out() == []


def test_no_trials_where_the_wait_is_zero() -> None:
    rig = Rig(wait_s=0)
    rig.crash("batch")
    rig.now += 1e9
    assert rig.out() == ["batch"]
    assert rig.quarantine.rows()[0].trial_from is None


def test_rows_say_when_a_trial_is_due() -> None:
    rig = Rig()
    rig.crash("batch")
    (row,) = rig.quarantine.rows()
    assert (row.trial_from, row.first, row.count) == (1000 + WAIT_S, 1000.0, 1)
    rig.now += WAIT_S
    rig.out()
    assert rig.quarantine.rows()[0].trial_from is None


def test_at_most_64_records_and_suspects_go_first() -> None:
    rig = Rig()
    rig.crash("suspect", is_certain=False)
    for n in range(RECORDS_MAX + 5):
        rig.now += 1
        rig.crash(f"max_context={n}", str(n))
    modes = [r.mode for r in rig.quarantine.records]
    assert len(modes) == RECORDS_MAX
    assert "suspect" not in modes
    assert f"max_context={RECORDS_MAX + 4}" in modes
    assert "max_context=4" not in modes


EVENTS = st.one_of(
    st.tuples(st.just("wait"), st.floats(0, 3 * WAIT_S)),
    st.tuples(st.just("start"), st.just(0.0)),
    st.tuples(st.just("good"), st.just(0.0)),
    st.tuples(st.sampled_from(["batch", "prefill?", "kv=f16", ""]), st.integers(0, 2)),
)


@given(st.lists(EVENTS, max_size=60))
def test_whatever_happens(events: list[tuple[str, float]]) -> None:
    """A mode that crashed for certain is out at the next start unless its quiet time has passed,
    no start both offers and withholds a mode, and what is new is reported as new exactly once."""
    rig = Rig()
    crashed: dict[str, float] = {}
    out_before: set[str] = set()
    for what, value in events:
        match what:
            case "wait":
                rig.now += value
            case "good":
                rig.quarantine.on_good(HERE, 600, 20)
            case "start":
                started = rig.quarantine.on_start(HERE)
                out = {r.mode for r in started.out}
                assert out.isdisjoint(r.mode for r in started.on_trial)
                for mode, at in crashed.items():
                    if rig.now - at < WAIT_S:
                        assert mode in out
                    if rig.now - at >= TRIAL_WAIT_MAX_S:
                        assert mode not in out
            case _:
                mode = what.rstrip("?")
                taken = rig.crash(mode or None, str(value), is_certain="?" not in what)
                out = {r.mode for r in rig.quarantine.records if r.is_out}
                assert set(taken) == out - out_before
                acquitted = {m for m in MODES if rig.state(m) is QuarantineState.ACQUITTED}
                assert out_before - out <= acquitted - {mode}
                crashed = {m: at for m, at in crashed.items() if m not in acquitted}
                if mode and "?" not in what:
                    assert mode in out or mode in acquitted
                    if mode in out:
                        crashed[mode] = rig.now
        ids = [r.id for r in rig.quarantine.records]
        assert len(set(ids)) == len(ids)
        out_before = {r.mode for r in rig.quarantine.records if r.is_out}


MODES = ["batch", "prefill", "mtp", "kv=f16", "activations=int8", "max_context=8192"]


@given(
    st.sets(st.sampled_from(MODES)),
    st.sets(st.sampled_from(MODES)),
    st.lists(st.floats(1.0, 20 * 86_400), max_size=8),
    st.randoms(use_true_random=False),
)
def test_guilty_modes_cost_one_crash_each_and_never_lead_to_hold(
    in_probe: set[str], in_step: set[str], quiet: list[float], random: Random
) -> None:
    """An engine whose guilty modes crash it in their probe or on first use, restarted by policy
    through some years of trials: each takes out one mode, and what is left serves."""
    rig = Rig(wait_s=6 * 3600.0)
    policy = RestartPolicy(lambda: 1.0)
    for wait_s in [0.0, *quiet]:
        rig.now += wait_s
        crashes = 0
        while True:
            out = {r.mode for r in rig.quarantine.on_start(HERE).out}
            policy.on_started(rig.now)
            offered = [m for m in MODES if m not in out]
            random.shuffle(offered)
            proven_guilty = [m for m in offered if m in in_probe]
            used_guilty = [m for m in offered if m in in_step]
            if not proven_guilty:
                policy.on_ready(rig.now)
            guilty = (proven_guilty or used_guilty or [None])[0]
            if guilty is None:
                break
            taken = rig.crash(guilty, guilty)
            assert taken == [guilty]
            crashes += 1
            decision = policy.on_exited(Ended(ExitClass.SIGNAL, took_mode_out=True), rig.now)
            assert decision == StartAfter(0.0)
        assert crashes <= len(in_probe | in_step)
        rig.now += STARTS_WINDOW_S  # serves in peace, then is killed from outside
        policy.on_exited(Ended(ExitClass.EXTERNAL), rig.now)
