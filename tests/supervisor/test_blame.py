"""What an end of the engine implicates, and what makes two crashes the same one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strata.engines.blame import Blame, axis_of, blame
from strata.engines.exits import ExitClass, Intent, beacon_text, classify
from strata.engines.signature import normalised, signature, top_frames
from strata_protocol.beacon import BeaconView
from strata_protocol.beacon_layout import PHASES
from strata_protocol.exit_codes import ExitCode

from tests.supervisor.crash_facts import crash, exited, plan, view

OWN_DOING = [ExitClass.SIGNAL, ExitClass.HANG, ExitClass.EXIT]


def of(beacon: BeaconView, exit_class: ExitClass = ExitClass.SIGNAL, **plan_changes: object) -> str:
    found = blame(exit_class, None, beacon, plan(**plan_changes))
    if found is None:
        return ""
    return found.mode + ("" if found.is_certain else "?")


@pytest.mark.parametrize("how", OWN_DOING)
@pytest.mark.parametrize(
    ("facts", "guilty"),
    [
        ({"mode": "batch", "sequences": 2}, "batch"),
        ({"mode": "prefill", "rows": 8}, "prefill"),
        ({"mode": "max_context=4096"}, "max_context=4096"),
        ({"mode": "mtp", "sequences": 2}, "batch_mtp"),
        ({"mode": "mtp"}, "mtp"),
        ({"mode": "batch_mtp", "sequences": 2}, "batch_mtp"),
        ({"mode": "solo", "kernel": "attention_f16_avx2"}, "kv=f16"),
        ({"mode": "solo", "kernel": "kv_append_f16"}, "kv=f16"),
        ({"mode": "solo", "kernel": "matmul_q4_0_rows16"}, "activations=int8"),
        ({"mode": "solo", "kernel": "quantize_rows"}, "activations=int8"),
        ({"mode": "solo", "kernel": "rms_norm"}, ""),
        ({"mode": "solo", "kernel": "rms_norm", "rows": 8}, "prefill"),
        ({"mode": "solo"}, ""),
    ],
)
def test_death_in_a_probe_implicates_what_was_proven(
    how: ExitClass, facts: dict[str, object], guilty: str
) -> None:
    assert of(view(phase="probe", **facts), how) == guilty
    assert of(view(phase="dying", **facts), how) == guilty, "last words change the phase only"
    assert of(view(phase="probe", crash=None, **facts), how) == guilty, "a handler may fail too"


def test_the_plain_path_falls_through_to_what_it_can_do_without() -> None:
    attention = view(phase="probe", mode="solo", kernel="attention", rows=8)
    assert of(attention, kv="f32") == "prefill"
    matmul = view(phase="probe", mode="solo", kernel="matmul")
    assert of(matmul, activations="f32") == ""
    by_record = view(phase="probe", mode="solo", kernel="", crash=crash(kernel="attention"))
    assert of(by_record) == "kv=f16"


@pytest.mark.parametrize("how", OWN_DOING)
@pytest.mark.parametrize(
    ("facts", "guilty"),
    [
        ({"phase": "decode", "sequences": 2, "rows": 2}, "batch"),
        ({"phase": "prefill", "sequences": 2, "rows": 9}, "batch"),
        ({"phase": "decode", "sequences": 2, "rows": 6}, "batch_mtp"),
        ({"phase": "decode", "sequences": 1, "rows": 3}, "mtp"),
        ({"phase": "prefill", "sequences": 1, "rows": 9}, "prefill?"),
        ({"phase": "decode", "sequences": 1, "rows": 1}, ""),
        ({"phase": "ready", "sequences": 2, "rows": 2}, ""),
        ({"phase": "drain", "sequences": 2, "rows": 2}, ""),
        ({"phase": "dying", "sequences": 2, "rows": 2}, ""),
        ({"phase": "dying", "sequences": 2, "rows": 2, "kernel": "matmul"}, "batch"),
    ],
)
def test_death_in_a_step_implicates_what_shared_it(
    how: ExitClass, facts: dict[str, object], guilty: str
) -> None:
    assert of(view(**facts), how, spec=2) == guilty


def test_rows_are_drafts_only_where_the_plan_drafts() -> None:
    assert of(view(phase="decode", sequences=2, rows=6), spec=0) == "batch"


def test_threads_that_do_not_compute_implicate_nothing() -> None:
    for thread, guilty in (("reader", ""), ("writer", ""), ("worker-1", "batch"), ("", "batch")):
        facts = view(phase="decode", sequences=2, crash=crash(thread=thread))
        assert of(facts) == guilty, thread


def test_a_signal_in_a_step_without_a_word_of_its_own_implicates_nothing() -> None:
    assert of(view(phase="decode", sequences=2, crash=None)) == ""
    assert of(view(phase="decode", sequences=2, crash=None), ExitClass.HANG) == "batch"


def test_a_lost_device_is_no_modes_fault() -> None:
    step = view(phase="decode", sequences=2, crash=None)
    assert blame(ExitClass.EXIT, ExitCode.DEVICE_LOST, step, plan()) is None
    assert blame(ExitClass.EXIT, ExitCode.INTERNAL, step, plan()) == Blame("batch")


@given(
    st.sampled_from([c for c in ExitClass if c not in OWN_DOING]),
    st.sampled_from(PHASES),
    st.sampled_from(["", "solo", "batch", "mtp"]),
    st.integers(1, 4),
    st.integers(1, 9),
)
def test_ends_from_outside_and_for_memory_implicate_nothing(
    exit_class: ExitClass, phase: str, mode: str, sequences: int, rows: int
) -> None:
    assert of(view(phase=phase, mode=mode, sequences=sequences, rows=rows), exit_class) == ""


def test_what_the_beacon_adds_to_an_exits_class() -> None:
    sent = view(phase="decode", crash=crash(is_external=True, sender_pid=4))
    assert classify(-11, None, was_oom_kill=False, beacon=sent) is ExitClass.EXTERNAL
    assert classify(-6, None, was_oom_kill=False, beacon=sent) is ExitClass.SIGNAL
    assert classify(-11, Intent.HANG, was_oom_kill=False, beacon=sent) is ExitClass.HANG
    for status in (0, 1, 64, 78):
        for phase in ("probe", "prefill", "decode"):
            called = view(phase=phase, exit_called=True, crash=None)
            found = classify(status, None, was_oom_kill=False, beacon=called)
            assert found is ExitClass.EXIT, (status, phase)
        at_rest = view(phase="handshake", exit_called=True, crash=None)
        assert classify(78, None, was_oom_kill=False, beacon=at_rest) is ExitClass.REFUSE
    memory = view(phase="decode", exit_called=True, crash=None)
    assert classify(71, None, was_oom_kill=False, beacon=memory) is ExitClass.OOM


def test_text_says_what_it_was_doing() -> None:
    probe = view(phase="probe", mode="batch", kernel="matmul_q4", layer=3)
    assert beacon_text(probe) == "in phase probe of mode batch, kernel matmul_q4, layer 3"
    step = view(phase="decode", sequences=2, rows=6, exit_called=True)
    assert beacon_text(step) == "in phase decode, 2 sequences, 6 rows, by a call of exit()"
    sent = view(crash=crash(is_external=True, sender_pid=44))
    assert beacon_text(sent) == "in phase ready, sent by process 44"
    failed = view(phase="map", assert_text="ops.cpp:4: n > 0", crash=crash(thread="worker-2"))
    assert beacon_text(failed) == "in phase map, in the thread worker-2: ops.cpp:4: n > 0"


def test_signature_is_the_same_whatever_does_not_matter() -> None:
    first = signature(exited(view(phase="decode", sequences=2, kernel="k")), plan())
    for same in (
        view(phase="decode", sequences=3, rows=3, kernel="k", layer=5, step=99, pid=1, rids=(4,)),
        view(phase="decode", sequences=2, kernel="k", crash=crash(address=123)),
        view(phase="decode", sequences=2, kernel="", crash=crash(kernel="k")),
    ):
        assert signature(exited(same), plan()).id == first.id


def test_signature_differs_by_all_that_matters() -> None:
    facts: dict[str, object] = {"phase": "decode", "sequences": 2, "kernel": "k"}
    all_of_them = [
        exited(view(**facts)),
        exited(view(**{**facts, "kernel": "other"})),
        exited(view(**{**facts, "phase": "prefill"})),
        exited(view(**{**facts, "sequences": 1})),
        exited(view(**{**facts, "rows": 6})),
        exited(view(**facts, crash=crash(frames=("strata-engine-cpu+0x20",)))),
        exited(view(**facts, assert_text="a.cpp:1: x")),
        exited(view(**facts, assert_text="a.cpp:2: x")),
        exited(view(**facts), signal=7),
        exited(view(**facts), ExitClass.HANG),
        exited(view(**facts), ExitClass.EXIT, status=1),
        exited(view(phase="probe", mode="batch")),
        exited(view(phase="probe", mode="mtp")),
        exited(None),
    ]
    ids = [signature(e, plan(spec=2)).id for e in all_of_them]
    assert len(set(ids)) == len(ids)


def test_sentences_of_signatures() -> None:
    probe = exited(view(phase="probe", mode="batch", kernel="matmul_q4"))
    assert signature(probe, plan()).sentence.startswith(
        "SIGSEGV (11) in kernel matmul_q4 while proving batch"
    )
    hang = exited(view(phase="decode", sequences=2, rows=4, crash=None), ExitClass.HANG)
    assert signature(hang, plan(spec=1)).sentence == (
        "hang in a step of decode with several sequences and drafts"
    )
    failed = exited(view(phase="map", assert_text="/src/engine/x.cpp:4: 17 < 3"))
    assert signature(failed, None).sentence == "SIGSEGV (11) in phase map: x.cpp:4: N < N"


def test_normalised_assertions() -> None:
    text = "/home/a/engine/cpu/x.cpp:41: rows (3) <= 16 at 0xdeadbeef, rows16\n in matmul_q4_0"
    assert normalised(text) == "x.cpp:41: rows (N) <= N at 0x, rows16 in matmul_q4_0"


def test_top_frames_are_the_engines_own() -> None:
    frames = ("libc+0x1", "?+0x9", *(f"strata-engine-cpu+{n:#x}" for n in range(9)))
    assert top_frames(frames) == tuple(f"strata-engine-cpu+{n:#x}" for n in range(3))
    assert top_frames(("libc+0x1", "?+0x2")) == ("libc+0x1",)


def test_a_lower_rung_where_nothing_is_blamed() -> None:
    many, one = view(sequences=8, phase="decode", rows=8), view(sequences=1, phase="decode")
    assert blame(ExitClass.EXIT, ExitCode.DEVICE_LOST, many, plan()) is None
    assert axis_of(many, None, plan()) == "batch"
    assert axis_of(one, None, plan()) == ""
    attention = view(sequences=1, phase="decode", kernel="attention_f16")
    assert axis_of(attention, None, plan(kv="f16")) == "kv"
    assert axis_of(attention, None, plan(kv="f32")) == ""
    assert axis_of(view(sequences=8, phase="idle"), None, plan()) == ""
    assert axis_of(many, Blame("max_context=4096"), plan()) == "max_context"
