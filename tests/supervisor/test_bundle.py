"""Real processes: what is written down of every way in which an engine can end."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
from strata.engines.owner_view import EngineState
from strata.engines.process import launch
from strata.observe import bundle_store
from strata.observe.bundle import BUNDLE_BYTES_MAX, FILES
from strata.observe.bundle_store import Bundle, bundle_ids, crashes_path, read_bundle
from strata.observe.bundle_text import bundle_text
from strata.observe.bundle_writer import BundleWriter, utc_now
from strata.serving.request import Finished

from tests.supervisor.conftest import EAGER, Rig, RigMaker, collect
from tests.supervisor.test_engine_faults import status_of
from tests.waiting import until

SEGV = {"signal": signal.SIGSEGV}


async def until_written(rig: Rig, run_dir: Path, count: int = 1) -> list[Bundle]:
    """The bundles, newest first, once there are `count`."""
    await until(lambda: len(bundle_ids(run_dir)) >= count and bool(rig.owner.last_bundle()))
    return [read_bundle(run_dir, one) for one in bundle_ids(run_dir)]


@pytest.mark.parametrize(
    ("behaviour", "exit_class", "says"),
    [
        ({"die_at": "submit", **SEGV}, "signal", "SIGSEGV (11)"),
        ({"die_at": "submit", "signal": signal.SIGABRT, "assert_text": "x.cpp:3: a < b"},
         "signal", "x.cpp:3: a < b"),
        ({"die_at": "submit", "exit": 70}, "exit", "status 70"),
        ({"die_at": "submit", "exit": 71}, "oom", "for lack of memory"),
        ({"die_at": "submit", "exit": 74}, "exit", "faults of the device and its driver"),
        ({"die_at": "hello", **SEGV}, "signal", "engine unknown"),
        ({"die_at": "progress", **SEGV}, "signal", "SIGSEGV (11)"),
        ({"die_at": "probe:batch", **SEGV}, "signal", "Mode batch was taken out"),
        ({"stuck_at": "submit"}, "hang", "has not ended"),
        ({"silent_at": "run"}, "hang", "no message"),
        ({"garbage_at": "run"}, "protocol", "proto.magic"),
        ({"close_at": "run"}, "protocol", "closed its event pipe"),
    ],
)  # fmt: skip
async def test_every_class_of_crash_leaves_a_bundle(
    make_rig: RigMaker, tmp_path: Path, behaviour: dict[str, object], exit_class: str, says: str
) -> None:
    async with make_rig(behaviour, {}, patience=EAGER) as rig:
        handle = await rig.submit([1, 2, 3], max_tokens=2)
        await rig.observer.until(lambda: bool(rig.observer.exits))
        (found,) = await until_written(rig, tmp_path / "run")
        assert isinstance((await collect(handle))[-1], Finished)
        assert found.problems == []
        assert found.meta is not None
        assert found.meta.exit_class == exit_class
        assert (found.meta.epoch, found.meta.pid) == (1, rig.observer.exits[0].pid)
        assert found.meta.left_out == []
        assert found.id.endswith(found.meta.signature[:8])
        text = bundle_text(found, utc_now())
        assert says in text
        assert found.meta.sentence in text
        for part in ("happened", "it was doing", "we did about it", "you can do"):
            assert f"\nWhat {part}\n" in text
        assert status_of(rig).restarts.last is not None
        assert status_of(rig).restarts.last.bundle == found.id  # type: ignore[union-attr]


@pytest.mark.parametrize("kept", [0o755, 0o000])
async def test_an_engine_that_cannot_be_launched_leaves_a_bundle(
    make_rig: RigMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Out of processes: class boot, tried again."""
    calls = []

    def fail(*args: object, **keywords: object) -> object:
        calls.append(args)
        if len(calls) == 1:
            raise OSError(errno.EAGAIN if kept else errno.ENOMEM, "no more processes")
        return launch(*args, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr("strata.engines.epoch.launch", fail)
    async with make_rig() as rig:
        (found,) = await until_written(rig, tmp_path / "run")
        assert found.meta is not None
        assert (found.meta.exit_class, found.meta.pid) == ("boot", 0)
        text = bundle_text(found, utc_now())
        assert "fake-engine cannot be started: no more processes" in text
        assert "can be run by this user" in text
        await rig.ready(starts=2)


async def test_kills_from_outside_and_stops_leave_none(make_rig: RigMaker, tmp_path: Path) -> None:
    async with make_rig({}, {}) as rig:
        await rig.ready()
        os.kill(rig.pid, signal.SIGKILL)
        await rig.ready(starts=2)
        assert status_of(rig).restarts.last is not None
        assert status_of(rig).restarts.last.bundle == ""  # type: ignore[union-attr]
    assert not crashes_path(tmp_path / "run").exists()


async def test_what_a_bundle_holds(make_rig: RigMaker, tmp_path: Path) -> None:
    dies = {"die_at": "shared", **SEGV, "stderr_bytes": 600_000}
    async with make_rig(dies, {}) as rig:
        await rig.ready()
        handles = [
            await rig.submit([n, 2, 3], max_tokens=200, stop_ids=[7, 8], temperature=0.5)
            for n in (1, 2, 3, 4)
        ]
        for handle in handles:
            await collect(handle)
        (found,) = await until_written(rig, tmp_path / "run")
    names = {path.name for path in found.path.iterdir()}
    assert names == set(FILES) - {"status.json"}  # this rig gives no status
    assert sum(path.stat().st_size for path in found.path.iterdir()) <= BUNDLE_BYTES_MAX
    for path in (found.path, *found.path.iterdir()):
        assert path.stat().st_mode & 0o077 == 0, f"{path} is for its owner only"
    meta, view = found.meta, found.beacon
    assert meta is not None
    assert view is not None
    assert view.crash is not None
    assert meta.blamed_mode == "batch"
    assert meta.taken_out == ["batch"]
    assert (meta.decision, meta.delay_s) == ("start", 0.0)
    assert (meta.signal_name, meta.si_code, meta.thread) == ("SIGSEGV (11)", 1, "compute")
    assert meta.plan is not None
    assert meta.plan.batch == 4
    assert meta.still_s is not None
    assert meta.still_s < 20
    assert len(found.head) == 64 << 10
    assert len(found.tail) == 256 << 10
    assert found.tail.endswith("a line of log\n")
    in_step = [r for r in found.requests if r.was_in_step]
    assert {r.rid for r in in_step} == set(view.rids)
    assert len(in_step) > 1
    assert in_step[0].prompt_tokens == 3
    assert all(len(r.fingerprint) == 32 for r in in_step)
    assert len({r.fingerprint for r in in_step}) == len(in_step)
    assert in_step[0].params == {"max_tokens": 200, "temperature": 0.5, "stop_ids": 2}
    types = {(f.to_engine, f.type) for f in found.frames}
    assert {(True, "OFFER"), (True, "SUBMIT"), (False, "HELLO"), (False, "READY")} <= types
    assert all(f.at_s <= 0 < f.bytes for f in found.frames)
    assert [f.at_s for f in found.frames] == sorted(f.at_s for f in found.frames)
    assert found.memory is not None
    assert found.memory.total_bytes > 0
    assert found.config == {"batch": "4"}


async def test_a_hold_is_what_was_decided(
    make_rig: RigMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.engines.restart.DELAY_MAX_S", 0.01)
    async with make_rig({"die_at": "ready", "exit": 70}) as rig:
        await rig.state(EngineState.HOLD)
        found = await until_written(rig, tmp_path / "run", 5)
    assert [b.meta.decision for b in found if b.meta] == ["hold", *["start"] * 4]
    assert [b.meta.epoch for b in found if b.meta] == [5, 4, 3, 2, 1]
    assert "Held for 5m00s: it ended on this rung as on the one above" in bundle_text(
        found[0], utc_now()
    )
    assert "held" in bundle_text(found[0], utc_now()).partition("What you can do")[2]


@pytest.mark.parametrize("where", ["mkdir", "write", "rename"])
async def test_a_full_disk_costs_the_bundle_and_one_warning(
    make_rig: RigMaker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    is_full = True

    def full(original):  # type: ignore[no-untyped-def]
        def call(path: Path, *args: object, **keywords: object) -> object:
            if is_full and "crashes" in path.parts:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(path, *args, **keywords)

        return call

    if where == "write":
        monkeypatch.setattr(bundle_store, "_write", full(bundle_store._write))
    else:
        monkeypatch.setattr(Path, where, full(getattr(Path, where)))
    dies = {"die_at": "submit", "exit": 70}
    async with make_rig(dies, dies, dies, {}) as rig:
        await collect(await rig.submit([1], max_tokens=1))
        await rig.ready(starts=3)
    run_dir = tmp_path / "run"
    warnings = [r for r in caplog.records if "cannot be written" in r.getMessage()]
    assert [r.getMessage().count("No space left on device") for r in warnings] == [1]
    assert bundle_ids(run_dir) == []
    folder = crashes_path(run_dir)
    assert not folder.exists() or list(folder.iterdir()) == [], "nothing half-written stays"
    caplog.clear()
    is_full = False
    (tmp_path / "script.json.starts").unlink()
    async with make_rig({"die_at": "submit", "exit": 70}, {}) as rig:
        assert isinstance((await collect(await rig.submit([1], max_tokens=1)))[-1], Finished)
        await until_written(rig, run_dir)
    assert "cannot be written" not in caplog.text


async def test_a_run_directory_that_is_gone_is_made_again(
    make_rig: RigMaker, tmp_path: Path
) -> None:
    async with make_rig({"die_at": "submit", **SEGV}, {}) as rig:
        await rig.ready()
        shutil.rmtree(tmp_path / "run")
        assert isinstance((await collect(await rig.submit([1], max_tokens=1)))[-1], Finished)
        (found,) = await until_written(rig, tmp_path / "run")
        assert found.meta is not None
        assert any("beacon.bin" in name for name in found.meta.left_out)
        assert found.beacon is not None, "what was read before is kept"
        assert found.tail.endswith("a line of log"), "and so are the last lines"


async def test_a_disk_that_hangs_does_not_hold_the_next_engine_up(
    make_rig: RigMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    write = bundle_store.write_bundle

    def slow(*args: object) -> None:
        assert goes_on.wait(20)
        write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("strata.observe.bundle_writer.write_bundle", slow)
    async with make_rig({"die_at": "submit", **SEGV}, {}) as rig:
        assert isinstance((await collect(await rig.submit([1], max_tokens=1)))[-1], Finished)
        assert bundle_ids(tmp_path / "run") == []
        goes_on.set()
        await until_written(rig, tmp_path / "run")


def test_closing_a_writer_that_never_wrote(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path, lambda _: [], config={})
    writer.close()
    assert writer.bundle_of(1) == ""
    assert list(tmp_path.iterdir()) == []
