"""Real processes: a scripted engine dies in a mode, and the next one starts without it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from strata.engines import quarantine_file
from strata.engines.crash_memory import CrashMemory
from strata.engines.epoch_beacon import FILES_KEPT, EpochBeacon, beacon_path
from strata.engines.exits import ExitClass
from strata.engines.owner_view import EngineState
from strata.engines.quarantine import QuarantineState
from strata.serving.request import Failed, Finished
from strata_protocol import beacon
from strata_protocol.messages import Hello

from tests.supervisor.conftest import EAGER, Rig, RigMaker, collect
from tests.supervisor.crash_facts import exited, plan, view
from tests.supervisor.test_engine_faults import status_of
from tests.waiting import until

FATAL = [signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT]


def offers(folder: Path) -> list[list[str]]:
    """The quarantine list of each engine start that came as far as OFFER."""
    return [json.loads(x) for x in (folder / "script.json.offers").read_text().splitlines()]


async def serve_together(rig: Rig, count: int = 4) -> None:
    handles = [await rig.submit([n], max_tokens=6) for n in range(1, count + 1)]
    for handle in handles:
        assert isinstance((await collect(handle))[-1], Finished)


async def provoke(rig: Rig, count: int = 4) -> None:
    """Requests long enough to share steps, whatever becomes of them."""
    for handle in [await rig.submit([n], max_tokens=200) for n in range(1, count + 1)]:
        await collect(handle)


@pytest.mark.parametrize("number", FATAL)
async def test_fatal_signal_in_a_probe_takes_the_mode_out(
    make_rig: RigMaker, tmp_path: Path, number: signal.Signals
) -> None:
    async with make_rig({"die_at": "probe:batch", "signal": number}) as rig:
        await rig.ready(starts=2)
        assert offers(tmp_path) == [[], ["batch"]]
        exited = rig.observer.exits[0]
        assert exited.exit_class is ExitClass.SIGNAL
        assert (
            f"killed by {number.name} ({number.value}) in phase probe of mode batch" in exited.text
        )
        assert "kernel matmul_fake, layer 3" in exited.text
        status = status_of(rig)
        assert (status.restarts.starts, status.restarts.crashes) == (2, 0)
        assert status.restarts.boot_attempts == 1
        (row,) = status.quarantine
        assert (row.mode, row.state, row.count) == ("batch", QuarantineState.QUARANTINED, 1)
        assert row.sentence == (
            f"{number.name} ({number.value}) in kernel matmul_fake while proving batch"
        )
        await serve_together(rig)


@pytest.mark.parametrize("status", [0, 1, 64, 70, 78, 255])
async def test_exit_in_a_probe_takes_the_mode_out_whatever_its_number(
    make_rig: RigMaker, tmp_path: Path, status: int
) -> None:
    async with make_rig({"die_at": "probe:batch", "exit": status}) as rig:
        await rig.ready(starts=2)
        assert offers(tmp_path) == [[], ["batch"]]
        assert rig.observer.exits[0].exit_class is ExitClass.EXIT
        assert "by a call of exit()" in rig.observer.exits[0].text


async def test_assertion_in_a_probe_is_quoted(make_rig: RigMaker) -> None:
    text = "/x/y/pages.cpp:12: count (17) < 4"
    dies = {"die_at": "probe:batch", "signal": signal.SIGABRT, "assert_text": text}
    async with make_rig(dies) as rig:
        await rig.ready(starts=2)
        assert status_of(rig).quarantine[0].sentence.endswith("pages.cpp:12: count (N) < N")
        assert text in rig.observer.exits[0].text


async def test_hang_in_a_probe_takes_the_mode_out(make_rig: RigMaker, tmp_path: Path) -> None:
    async with make_rig({"silent_at": "probe:batch"}, patience=EAGER) as rig:
        await rig.ready(starts=2)
        assert offers(tmp_path) == [[], ["batch"]]
        exited = rig.observer.exits[0]
        assert exited.exit_class is ExitClass.HANG
        assert "in phase probe of mode batch" in exited.text


async def test_engine_stopped_in_a_probe_is_waited_for(make_rig: RigMaker) -> None:
    async with make_rig({"stop_at": "probe:batch"}, patience=EAGER) as rig:
        await rig.observer.until(
            lambda: (epoch := rig.owner.view.epoch) is not None and epoch.is_stopped
        )
        os.kill(rig.pid, signal.SIGCONT)
        await rig.ready()
        assert not rig.observer.exits


async def test_each_mode_that_dies_in_its_probe_goes_and_the_rest_boots(
    make_rig: RigMaker, tmp_path: Path
) -> None:
    modes = ["batch", "prefill", "mtp", "max_context"]
    dies = [{"die_at": f"probe:{mode}", "probes": modes} for mode in modes[:3]]
    dies = [{**d, "signal": signal.SIGSEGV} for d in dies]
    async with make_rig(*dies, {"probes": modes}) as rig:
        await rig.ready(starts=4)
        assert offers(tmp_path)[-1] == modes[:3]
        assert status_of(rig).restarts.boot_attempts == 3
        assert rig.owner.view.crashes == 0


async def test_two_sequences_crash_once_and_never_again(make_rig: RigMaker, tmp_path: Path) -> None:
    async with make_rig({"die_at": "shared", "signal": signal.SIGSEGV}) as rig:
        await rig.ready()
        await provoke(rig)
        await rig.ready(starts=2)
        await serve_together(rig)
        assert offers(tmp_path) == [[], ["batch"]]
        assert (rig.observer.starts, rig.owner.view.crashes) == (2, 1)
        assert " sequences, " in rig.observer.exits[0].text
        assert status_of(rig).restarts.boot_attempts == 0


async def test_a_hang_in_a_shared_step_takes_the_batch_out(
    make_rig: RigMaker, tmp_path: Path
) -> None:
    async with make_rig({"stuck_at": "shared"}, patience=EAGER) as rig:
        await rig.ready()
        await provoke(rig)
        await rig.ready(starts=2)
        await serve_together(rig)
        assert offers(tmp_path) == [[], ["batch"]]
        assert rig.observer.exits[0].exit_class is ExitClass.HANG


async def test_drafts_crash_once_and_never_again(make_rig: RigMaker, tmp_path: Path) -> None:
    async with make_rig({"die_at": "draft", "signal": signal.SIGSEGV, "spec": 2}) as rig:
        await rig.ready()
        await provoke(rig, 1)
        await rig.ready(starts=2)
        await serve_together(rig, 1)
        assert offers(tmp_path) == [[], ["mtp"]]


async def test_prompt_rows_are_out_at_the_second_request_with_one_signature(
    make_rig: RigMaker, tmp_path: Path
) -> None:
    dies = {"die_at": "long", "signal": signal.SIGSEGV}
    async with make_rig(dies, dies, dies, {}) as rig:
        await rig.ready()
        # What the same request does twice may be its own doing: it is refused, the mode is not out.
        assert isinstance((await collect(await rig.submit([1, 2, 3])))[-1], Failed)
        await rig.ready(starts=3)
        assert isinstance((await collect(await rig.submit([4, 5, 6])))[-1], Finished)
        assert offers(tmp_path) == [[], [], [], ["prefill"]]


async def test_a_single_decode_row_implicates_nothing(make_rig: RigMaker, tmp_path: Path) -> None:
    dies = {"die_at": "submit", "signal": signal.SIGSEGV}
    async with make_rig(dies, dies, {}) as rig:
        await rig.ready()
        await collect(await rig.submit([1]))  # it was alone in both, and is refused from now on
        await rig.ready(starts=3)
        assert offers(tmp_path) == [[], [], []]
        assert status_of(rig).quarantine == []


@pytest.mark.parametrize("at", ["probe:batch", "shared"])
@pytest.mark.parametrize(
    "how",
    [{"signal": signal.SIGKILL}, {"signal": signal.SIGSEGV, "handler": "external"}, {"exit": 71}],
)
async def test_kills_from_outside_and_lack_of_memory_take_nothing_out(
    make_rig: RigMaker, tmp_path: Path, at: str, how: dict[str, object]
) -> None:
    async with make_rig({"die_at": at, **how}, {}) as rig:
        await rig.ready()
        await provoke(rig)
        await rig.ready(starts=2)
        assert offers(tmp_path) == [[], []]
        is_probe, is_memory = at.startswith("probe"), "exit" in how
        assert rig.owner.view.crashes == (is_memory and not is_probe)
        assert rig.owner.view.boot_attempts == (is_memory and is_probe)


async def test_kill_9_in_the_middle_of_two_streams_takes_nothing_out(
    make_rig: RigMaker, tmp_path: Path
) -> None:
    async with make_rig({"tokens_max": 2}, {}) as rig:
        await rig.ready()
        handles = [await rig.submit([n], max_tokens=9) for n in (1, 2)]
        for handle in handles:
            await anext(aiter(handle))
        os.kill(rig.pid, signal.SIGKILL)
        await rig.ready(starts=2)
        assert offers(tmp_path) == [[], []]


async def test_an_engine_that_does_not_heed_the_list_ends_in_hold(
    make_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.engines.restart.DELAY_MAX_S", 0.01)
    deaf = {"die_at": "probe:batch", "signal": signal.SIGSEGV, "ignore_quarantine": True}
    async with make_rig(deaf) as rig:
        await rig.state(EngineState.HOLD)
        assert len(rig.observer.exits) == 6, "the one that took the mode out does not count"


async def test_a_restarted_supervisor_remembers(make_rig: RigMaker, tmp_path: Path) -> None:
    dies = {"die_at": "probe:batch", "signal": signal.SIGSEGV}
    async with make_rig(dies) as rig:
        await rig.ready(starts=2)
    (tmp_path / "script.json.offers").unlink()
    async with make_rig(dies) as rig:
        await rig.ready()
        assert offers(tmp_path) == [["batch"]]
        assert rig.observer.exits == []


@pytest.mark.parametrize("what", ["file", "build"])
async def test_another_file_or_build_starts_afresh(
    make_rig: RigMaker, tmp_path: Path, what: str
) -> None:
    async with make_rig({"die_at": "probe:batch", "signal": signal.SIGSEGV}, {}) as rig:
        await rig.ready(starts=2)
    if what == "file":
        os.utime(tmp_path / "model.gguf", ns=(1, 1))
    (tmp_path / "script.json.offers").unlink()
    async with make_rig({"build": "other"} if what == "build" else {}) as rig:
        await rig.ready()
        assert offers(tmp_path) == [[]]
        assert status_of(rig).quarantine == []


async def test_trial_and_relapse(make_rig: RigMaker, tmp_path: Path) -> None:
    now = 1e9
    dies = {"die_at": "shared", "signal": signal.SIGSEGV}
    async with make_rig(dies, {}, dies, {}, clock=lambda: now, quarantine_trial_s=3600) as rig:
        await rig.ready()
        await provoke(rig)
        await rig.ready(starts=2)
        now += 3600
        os.kill(rig.pid, signal.SIGKILL)
        await rig.ready(starts=3)
        assert status_of(rig).quarantine[0].state is QuarantineState.TRIAL
        await provoke(rig)
        await rig.ready(starts=4)
        (row,) = status_of(rig).quarantine
        assert (row.state, row.count) == (QuarantineState.QUARANTINED, 2)
        assert row.trial_from == now + 7200
        assert offers(tmp_path) == [[], ["batch"], [], ["batch"]]


async def test_a_passed_trial_clears(
    make_rig: RigMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.engines.quarantine.GOOD_READY_S", 0.0)
    monkeypatch.setattr("strata.engines.crash_memory.TRIAL_LOOK_S", 0.02)
    now = 1e9
    dies = {"die_at": "probe:batch", "signal": signal.SIGSEGV}
    async with make_rig(dies, {}, {}, clock=lambda: now) as rig:
        await rig.ready(starts=2)
        now += 7 * 3600
        os.kill(rig.pid, signal.SIGKILL)
        await rig.ready(starts=3)
        await serve_together(rig, 19)
        assert len(status_of(rig).quarantine) == 1
        await serve_together(rig, 1)
        await until(lambda: quarantine_file.read(tmp_path / "run") == [])
        assert status_of(rig).quarantine == []


async def test_a_change_by_hand_is_noticed_at_the_next_start(
    make_rig: RigMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with make_rig({"die_at": "probe:batch", "signal": signal.SIGSEGV}, {}) as rig:
        await rig.ready(starts=2)
        with quarantine_file.locked(tmp_path / "run"):
            quarantine_file.write(tmp_path / "run", [])
        os.kill(rig.pid, signal.SIGKILL)
        await rig.ready(starts=3)
        assert offers(tmp_path)[-1] == []
        assert "the quarantine of mode batch was cleared by hand" in caplog.text


async def test_a_run_directory_that_is_gone_costs_neither_memory_nor_service(
    make_rig: RigMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = tmp_path / "run"
    dies = {"die_at": "shared", "signal": signal.SIGSEGV}
    async with make_rig(dies, {}) as rig:
        await rig.ready()
        shutil.rmtree(run_dir)
        run_dir.write_text("not a directory")
        await provoke(rig)
        await rig.ready(starts=2)
        assert offers(tmp_path)[-1] == ["batch"]
        assert "the quarantine is kept in memory until it can be written" in caplog.text
        assert f"{beacon_path(run_dir, 2)} cannot be made" in caplog.text


async def test_beacons_of_the_last_epochs_are_kept(
    make_rig: RigMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.engines.restart.DELAY_MAX_S", 0.01)
    run_dir = tmp_path / "run"
    async with make_rig({}) as rig:
        for start in range(1, FILES_KEPT + 2):
            await rig.ready(starts=start)
            os.kill(rig.pid, signal.SIGKILL)
        await rig.ready(starts=FILES_KEPT + 2)
        kept = sorted(p.name for p in run_dir.glob("beacon-*"))
        assert kept == [f"beacon-{n}" for n in range(3, FILES_KEPT + 3)]
        view, problem = beacon.read(beacon_path(run_dir, FILES_KEPT + 2))
        assert view is not None, problem
        assert view.pid == rig.pid


async def test_no_engine_starts_once_it_was_told_to_stop(
    make_rig: RigMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    async with make_rig() as rig:

        def make(_: Path, _epoch: int) -> None:
            loop.call_soon_threadsafe(rig.owner.stop)

        monkeypatch.setattr(EpochBeacon, "make", make)
        async with asyncio.timeout(10):
            await rig.task
        assert [(e.exit_class, e.pid) for e in rig.observer.exits] == [(ExitClass.STOP, 0)]
        assert not (tmp_path / "script.json.starts").exists()


async def test_builds_of_one_version_are_told_apart_by_the_executable(tmp_path: Path) -> None:
    model, engine = tmp_path / "m.gguf", tmp_path / "engine"
    model.write_bytes(b"GGUF")
    engine.write_bytes(b"first build")
    memory = CrashMemory(tmp_path, (model,), engine, 3600, lambda: 1e9)
    hello = Hello(proto_min=1, proto_max=1, build="1.0", backend="cpu", device="d", pid=1)

    async def out() -> list[str]:
        await memory.on_start()
        return [record.mode for record in memory.offer(hello)]

    assert await out() == []
    died = exited(view(phase="probe", mode="batch"))
    assert memory.on_exited(died, plan(), 0.0, 0).taken_out == ("batch",)
    await memory.save()
    os.utime(engine, ns=(1, 1))
    assert await out() == ["batch"], "the same build, installed again"
    engine.write_bytes(b"other build")
    assert await out() == []


async def test_an_engine_that_is_gone_before_its_keeper_begins_stops_it(tmp_path: Path) -> None:
    """As one that takes over and dies before the owner turns to it: nothing is waited for."""
    memory = CrashMemory(tmp_path, tmp_path / "m.gguf", tmp_path / "engine", 3600, lambda: 1e9)
    keeper = asyncio.create_task(memory.keep(lambda: 0.0, lambda: 0))
    memory.stop_keeping()
    async with asyncio.timeout(20):
        await keeper
