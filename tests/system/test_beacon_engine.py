"""The real engine's beacon: what it says in service, and what is left of an engine that died."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from strata_protocol import beacon_layout as layout
from strata_protocol import messages as m
from strata_protocol.beacon import BeaconFile, BeaconView, create
from strata_protocol.exit_codes import ExitCode

from tests.system.engine_driver import LIMIT_S, Engine, first_ready, submit

MODES = {"batch": 2, "prefill": 16, "max_context": 512, "kv_tokens": 2048, "threads": 2}
PROMPT = list(range(40))
FOREVER = 100_000


@pytest.fixture(scope="module")
def model(repository: Path) -> Path:
    return repository / "tests/data/oracle/tiny-qwen3.gguf"


@pytest.fixture
def beacon(tmp_path: Path) -> Iterator[BeaconFile]:
    file = create(tmp_path / "beacon")
    yield file
    file.close()


def view_of(beacon: BeaconFile) -> BeaconView:
    view, reason = beacon.read()
    assert view is not None, reason
    return view


def wait_for(beacon: BeaconFile, condition: Callable[[BeaconView], bool]) -> BeaconView:
    deadline = time.monotonic() + LIMIT_S
    while True:
        view, _ = beacon.read()
        if view is not None and condition(view):
            return view
        assert time.monotonic() < deadline, view
        time.sleep(0.001)


def boot_to_death(engine: Engine, model: Path) -> int:
    """Boots until the engine is gone; its exit status."""
    engine.expect(m.Hello)
    engine.send(engine.offer(model, **MODES))
    engine.send(m.Plan(plan=first_ready(engine.expect(m.Caps)).plan))
    while engine.read():
        assert not any(isinstance(message, m.Ready) for message in engine.unread)
    return engine.process.wait(LIMIT_S)


# --- in service --------------------------------------------------------------------------------


def test_beacon_of_a_serving_engine(engine_path: Path, model: Path, beacon: BeaconFile) -> None:
    with Engine(engine_path, beacon_fd=beacon.fd) as engine:
        engine.boot(model, **MODES)
        view = wait_for(beacon, lambda view: view.phase == "ready")
        assert view.pid == engine.process.pid
        assert re.match(r"\d+\.\d+\.\d+ \((gcc|clang)", view.build)
        assert re.fullmatch(r"[0-9a-f]{40}", view.build_id)
        assert "batch 2" in view.plan
        assert (view.mode, view.kernel, view.op, view.step) == ("", "", -1, 0)
        assert view.rss_bytes > 1 << 20
        assert (view.rids, view.steps, view.crash, view.dump) == ((), (), None, None)
        engine.send(submit(7, PROMPT, max_tokens=400), submit(1 << 40, PROMPT, max_tokens=400))
        engine.finish(7, 1 << 40)
        view = wait_for(beacon, lambda view: view.phase == "ready" and view.step > 400)
        steps = [record.step for record in view.steps]
        assert steps == list(range(1, view.step + 1))[-layout.STEPS_KEPT :]
        assert {record.phase for record in view.steps} <= {"prefill", "decode"}
        assert max(record.sequences for record in view.steps) == 2
        assert max(record.rows for record in view.steps) <= 18
        assert all(record.ms < 10_000 for record in view.steps)
        begins = [record.begin_ns for record in view.steps]
        assert begins == sorted(begins)
        assert begins[-1] <= view.moved_ns <= time.monotonic_ns()
    assert not view_of(beacon).exit_called


def test_a_beacon_of_another_size_is_done_without(
    engine_path: Path, model: Path, tmp_path: Path
) -> None:
    with (tmp_path / "short").open("w+b") as file:
        file.truncate(4096)
        with Engine(engine_path, beacon_fd=file.fileno()) as engine:
            engine.boot(model, **MODES)
            engine.send(submit(1, PROMPT, max_tokens=2))
            assert engine.done(1).reason == "length"
            engine.send(m.Drain())
            assert engine.exit_code() == ExitCode.OK
            assert "4096 bytes; it must have 65536" in engine.errors()


def test_a_beacon_that_cannot_be_written_is_refused(engine_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "beacon"
    path.write_bytes(bytes(layout.PAGE_BYTES))
    with path.open("rb") as file, Engine(engine_path, beacon_fd=file.fileno()) as engine:
        assert engine.process.wait(LIMIT_S) == ExitCode.USAGE
        assert "beacon descriptor" in engine.errors()


# --- death -------------------------------------------------------------------------------------

SIGNALS = [
    ("segv", signal.SIGSEGV),
    ("abort", signal.SIGABRT),
    ("ill", signal.SIGILL),
]


@pytest.mark.parametrize("death", SIGNALS, ids=lambda death: death[0])
@pytest.mark.parametrize("mode", ["solo", "batch"])
def test_death_in_a_probe(
    faulty_engine_path: Path, model: Path, beacon: BeaconFile, death: tuple[str, int], mode: str
) -> None:
    action, number = death
    fault = f"attention*:mode={mode},layer>=1@{action}"
    with Engine(faulty_engine_path, beacon_fd=beacon.fd, fault=fault) as engine:
        assert boot_to_death(engine, model) == -number
    view = view_of(beacon)
    assert (view.phase, view.mode, view.layer, view.step) == ("probe", mode, 1, 0)
    assert view.kernel.startswith("attention")
    check_crash(view, number)
    assert view.sequences == (2 if mode == "batch" else 1)


@pytest.mark.parametrize("death", SIGNALS, ids=lambda death: death[0])
def test_death_in_service_that_only_two_sequences_meet(
    faulty_engine_path: Path, model: Path, beacon: BeaconFile, death: tuple[str, int]
) -> None:
    action, number = death
    fault = f"rope*:phase=decode,sequences>1,step>=6@{action}"
    with Engine(faulty_engine_path, beacon_fd=beacon.fd, fault=fault) as engine:
        engine.boot(model, **MODES)
        engine.send(submit(3, PROMPT, max_tokens=20))
        assert engine.done(3).reason == "length"
        engine.send(submit(8, PROMPT, max_tokens=FOREVER), submit(9, PROMPT, max_tokens=FOREVER))
        assert engine.exit_code() == -number
    view = view_of(beacon)
    assert (view.phase, view.mode, view.rids) == ("decode", "", (8, 9))
    assert view.kernel.startswith("rope")
    assert (view.rows, view.sequences) == (2, 2)
    assert view.steps[-1].step == view.step - 1
    check_crash(view, number)


def check_crash(view: BeaconView, number: int) -> None:
    crash = view.crash
    assert crash is not None
    assert crash.is_whole
    assert (crash.signal, crash.is_external) == (number, False)
    assert crash.kernel == view.kernel
    assert re.fullmatch(r"compute|worker-\d+", crash.thread)
    assert (crash.address != 0) == (number != signal.SIGABRT)
    ours = [frame for frame in crash.frames if frame.startswith("strata-engine-cpu-faults+0x")]
    assert len(ours) >= 2, crash.frames
    assert not view.exit_called


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("assert", r"assert: .*fault\.cpp:\d+: false: a fault was asked for"),
        ("terminate", "terminate: a kernel threw"),
    ],
)
def test_the_text_of_a_broken_invariant_is_kept(
    faulty_engine_path: Path, model: Path, beacon: BeaconFile, action: str, text: str
) -> None:
    fault = f"swiglu*:step>=1@{action}"
    with Engine(faulty_engine_path, beacon_fd=beacon.fd, fault=fault) as engine:
        engine.boot(model, **MODES)
        engine.send(submit(5, PROMPT, max_tokens=5))
        assert engine.exit_code() == -signal.SIGABRT
        assert re.search(text, engine.errors())
    view = view_of(beacon)
    assert re.fullmatch(text, view.assert_text)
    check_crash(view, signal.SIGABRT)


@pytest.mark.parametrize("when", ["phase=probe,mode=prefill", "phase=prefill"])
def test_exit_within_a_kernel(
    faulty_engine_path: Path, model: Path, beacon: BeaconFile, when: str
) -> None:
    fault = f"matmul*:{when}@exit1"
    with Engine(faulty_engine_path, beacon_fd=beacon.fd, fault=fault) as engine:
        if "probe" in when:
            assert boot_to_death(engine, model) == 1
        else:
            engine.boot(model, **MODES)
            engine.send(submit(5, PROMPT, max_tokens=5))
            assert engine.exit_code() == 1
    view = view_of(beacon)
    assert view.exit_called
    assert view.exit_status == 1
    assert view.kernel.startswith("matmul")
    assert (view.mode or view.rids[0]) == ("prefill" if "probe" in when else 5)


@pytest.mark.parametrize(
    "words",
    [
        ("throw", ExitCode.DEVICE_LOST, m.ErrorKind.DEVICE_LOST),
        ("oom", ExitCode.OUT_OF_MEMORY, m.ErrorKind.OUT_OF_MEMORY),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("in_probe", [True, False])
def test_last_words_leave_the_place(
    faulty_engine_path: Path,
    model: Path,
    beacon: BeaconFile,
    words: tuple[str, ExitCode, m.ErrorKind],
    in_probe: bool,
) -> None:
    action, code, kind = words
    when = "mode=max_context" if in_probe else "step>=2"
    fault = f"attention*:{when}@{action}"
    with Engine(faulty_engine_path, beacon_fd=beacon.fd, fault=fault) as engine:
        if in_probe:
            assert boot_to_death(engine, model) == code
            assert isinstance(engine.unread[-1], m.Dying)
            assert engine.unread[-1].error_kind is kind
        else:
            engine.boot(model, **MODES)
            engine.send(submit(5, PROMPT, max_tokens=5))
            assert engine.exit_code() == code
            assert engine.dying is not None
            assert engine.dying.error_kind is kind
    view = view_of(beacon)
    assert view.phase == "dying"
    assert view.kernel.startswith("attention")
    assert (view.mode, view.rids) == (("max_context=128", ()) if in_probe else ("", (5,)))
    assert view.crash is None


def test_poisoned_output_fails_the_probe_or_the_request(
    faulty_engine_path: Path, model: Path, beacon: BeaconFile
) -> None:
    fault = "matmul*:token=7@nan"
    with Engine(faulty_engine_path, fault=fault) as engine:
        engine.boot(model, **MODES)
        engine.send(submit(1, [3, 4, 7], max_tokens=3), submit(2, [3, 4, 5], max_tokens=3))
        done = engine.finish(1, 2)[0].done
        assert done is not None
        assert done.error_kind is m.ErrorKind.NUMERIC_FAULT
    with Engine(faulty_engine_path, fault="matmul*:mode=solo@nan", beacon_fd=beacon.fd) as engine:
        assert boot_to_death(engine, model) == ExitCode.MODEL_BAD
        probe = next(message for message in engine.unread if isinstance(message, m.Probe))
        assert (probe.mode, probe.ok) == ("solo", False)


# --- from outside ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a_signal_from_outside_is_told_apart(
    engine_path: Path, model: Path, beacon: BeaconFile, number: signal.Signals
) -> None:
    with Engine(engine_path, beacon_fd=beacon.fd) as engine:
        engine.boot(model, **MODES)
        engine.process.send_signal(number)
        assert engine.exit_code() == -number
    crash = view_of(beacon).crash
    assert crash is not None
    assert (crash.signal, crash.is_external) == (number, True)
    assert crash.sender_pid == os.getpid()
    assert crash.address == 0


def test_dump_of_an_endless_loop(faulty_engine_path: Path, model: Path, beacon: BeaconFile) -> None:
    fault = "matmul*:phase=decode@loop"
    with Engine(faulty_engine_path, beacon_fd=beacon.fd, fault=fault) as engine:
        engine.boot(model, **MODES)
        engine.send(submit(5, PROMPT, max_tokens=FOREVER))
        stuck = wait_for(beacon, lambda view: view.phase == "decode" and "matmul" in view.kernel)
        for _ in range(2):  # as often as one likes
            engine.process.send_signal(signal.SIGUSR2)
            view = wait_for(beacon, lambda view: view.dump is not None and view.dump.is_whole)
        assert view.dump is not None
        assert (view.dump.signal, view.dump.thread) == (signal.SIGUSR2, "compute")
        assert view.dump.is_external
        assert sum(f.startswith("strata-engine-cpu-faults+") for f in view.dump.frames) >= 2
        assert (view.moved_ns, view.kernel, view.rids) == (stuck.moved_ns, stuck.kernel, (5,))
        assert view.crash is None
        # It lives: the reader thread answers while the compute thread is stuck.
        engine.send(m.Ping(nonce=4))
        engine.run_until(lambda: any(pong.nonce == 4 and pong.busy for pong in engine.pongs))
        engine.process.send_signal(signal.SIGABRT)
        assert engine.exit_code() == -signal.SIGABRT
    view = view_of(beacon)
    assert view.crash is not None
    assert view.crash.is_external
    assert view.kernel == stuck.kernel


def test_a_stopped_engine_goes_on(
    faulty_engine_path: Path, model: Path, beacon: BeaconFile
) -> None:
    fault = "matmul*:phase=decode,step>=4@stop"
    with Engine(faulty_engine_path, beacon_fd=beacon.fd, fault=fault) as engine:
        engine.boot(model, **MODES)
        engine.send(submit(5, PROMPT, max_tokens=8))
        pid, status = os.waitpid(engine.process.pid, os.WUNTRACED)
        assert pid == engine.process.pid
        assert os.WIFSTOPPED(status)
        assert view_of(beacon).kernel.startswith("matmul")
        engine.process.send_signal(signal.SIGCONT)
        assert len(engine.finish(5)[0].ids) == 8


# --- the faults' own words ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("matmul*", "no @ACTION"),
        ("matmul*@melt", "melt"),
        ("matmul*:colour=3@segv", "colour"),
        ("matmul*:step@segv", "FIELD OPERATOR VALUE"),
        ("matmul*:step>=x@segv", "whole number"),
        ("matmul*:phase=probed@segv", "probed"),
        ("matmul*:plan.colour=3@segv", "colour"),
        ("convolution*@segv", "no kernel"),
    ],
)
def test_a_fault_that_cannot_be_read_is_refused(
    faulty_engine_path: Path, fault: str, named: str
) -> None:
    with Engine(faulty_engine_path, fault=fault) as engine:
        assert engine.process.wait(LIMIT_S) == ExitCode.CONFIG_REFUSED
        assert named in engine.errors()


def test_the_shipped_engine_knows_no_faults(
    engine_path: Path, model: Path, beacon: BeaconFile
) -> None:
    with Engine(engine_path, beacon_fd=beacon.fd, fault="*@abort") as engine:
        engine.boot(model, **MODES)
        engine.send(submit(1, PROMPT, max_tokens=2))
        assert msgspec.structs.asdict(engine.done(1))["reason"] == "length"
    assert b"STRATA_FAULT" not in engine_path.read_bytes()
