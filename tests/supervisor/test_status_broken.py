"""`status` when things are broken: a hung engine, a supervisor that hangs, is stopped, is gone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from strata.cli_status import show_status
from strata.config_source import load
from strata.engines import stale
from strata.engines.epoch_beacon import beacon_path
from strata.errors import RunDirError
from strata.observe import sighting, status_client
from strata.observe.sighting import Sighting, look
from strata.observe.status import (
    EXIT_STATUS,
    LoadStatus,
    ModelStatus,
    RestartStatus,
    Status,
    SupervisorStatus,
)
from strata.observe.status_client import Silence, ask_status, read_state
from strata.observe.status_socket import StateWriter, StatusServer, aged, write_state
from strata.observe.status_text import sighting_lines
from strata_protocol import beacon
from strata_protocol.beacon_writer import BeaconWriter

from tests.supervisor.test_serve import command, served
from tests.waiting import until

HUNG_ENGINE_S = 0.1
HUNG_SUPERVISOR_S = 0.3


def record(
    state: str = "ready", pid: int = 0, start_time: str = "", boot_id: str | None = None
) -> Status:
    return Status(
        state=state,
        reason="",
        model=ModelStatus(name="m", path="/m.gguf"),
        modes=[],
        engine=None,
        restarts=RestartStatus(starts=1, crashes=0),
        load=LoadStatus(),
        supervisor=SupervisorStatus(
            pid=pid or os.getpid(),
            version="1",
            uptime_s=5.0,
            url="http://127.0.0.1:1",
            run_dir="/run",
            start_time=start_time or stale.start_time(pid or os.getpid()) or "",
            boot_id=stale.boot_id() if boot_id is None else boot_id,
        ),
    )


async def stopped(pid: int) -> None:
    await until(lambda: sighting.process_state(pid) == "stopped")


async def written(run_dir: Path, state: str) -> None:
    """Until the state file says so."""
    await until(lambda: (left := read_state(run_dir)) is not None and left.status.state == state)


def write_beacon(run_dir: Path, epoch: int) -> None:
    made = beacon.create(beacon_path(run_dir, epoch))
    writer = BeaconWriter(made.fd, build="b1")
    writer.move()
    writer.close()
    made.close()


# --- the whole command against a whole service


async def test_stopped_engine_is_seen_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        pid = await s.engine_pid()
        os.kill(pid, signal.SIGSTOP)
        await stopped(pid)
        seen = await asyncio.to_thread(look, s.run_dir)
        assert (seen.state, seen.source) == ("degraded", "socket")
        assert seen.reason == "the engine is stopped by a signal or a debugger"
        assert seen.asked_ms < HUNG_ENGINE_S * 1000
        assert seen.engine is not None
        assert (seen.engine.pid, seen.engine.state) == (pid, "stopped")
        assert any(f"pid {pid} (start 1) stopped" in line for line in sighting_lines(seen))
        os.kill(pid, signal.SIGCONT)


async def test_stopped_supervisor_is_told_from_its_files(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        engine = await s.engine_pid()
        await written(s.run_dir, "ready")
        s.process.send_signal(signal.SIGSTOP)
        await stopped(s.process.pid)
        seen = await asyncio.to_thread(look, s.run_dir)
        assert seen.asked_ms < HUNG_SUPERVISOR_S * 1000
        assert (seen.state, seen.source) == ("hung", "state file")
        assert seen.engine is not None
        assert (seen.engine.pid, seen.engine.state) == (engine, "runs")
        code, text = await command("status", "--run-dir", str(s.run_dir))
        assert code == 4
        assert f"the supervisor, pid {s.process.pid}, is stopped by a signal" in text
        assert "what follows was written" in text
        assert f"pid {engine} (start 1) runs" in text
        assert "READY" in text
        code, text = await command("status", "--json", "--run-dir", str(s.run_dir))
        shown = json.loads(text)
        assert (code, shown["state"], shown["last"]["state"]) == (4, "hung", "ready")
        assert shown["seen"]["supervisor"] == {"pid": s.process.pid, "state": "stopped"}
        s.process.send_signal(signal.SIGCONT)
        code, _ = await command("status", "--run-dir", str(s.run_dir))
        assert code == 0


async def test_killed_supervisor_is_told_from_its_files(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        await written(s.run_dir, "ready")
        s.process.kill()
        await s.process.wait()
        seen = await asyncio.to_thread(look, s.run_dir)
        assert seen.asked_ms < HUNG_SUPERVISOR_S * 1000
        assert (seen.state, seen.source) == ("down", "state file")
        code, text = await command("status", "--run-dir", str(s.run_dir))
        assert code == 4
        assert "no supervisor is running" in text
        assert f"the last one, pid {s.process.pid}, left it in state ready" in text
        assert f"supervisor pid {s.process.pid} is gone" in text


# --- the server's thread


async def test_a_loop_that_hangs_is_answered_for(tmp_path: Path) -> None:
    server = StatusServer(tmp_path, record)
    found: list[Status | Silence] = []
    asked = threading.Event()

    def ask() -> None:
        found.append(ask_status(tmp_path))
        asked.set()

    try:
        threading.Thread(target=ask).start()
        begin_s = time.monotonic()
        assert asked.wait(5)  # on the loop, which stands still meanwhile
        assert time.monotonic() - begin_s < HUNG_SUPERVISOR_S
    finally:
        server.close()
    assert isinstance(found[0], Status)
    assert found[0].state == "ready"  # for so short a time a loop may stand still
    assert found[0].supervisor.loop_still_s > 0
    assert found[0].supervisor.record_age_s > 0


async def test_a_loop_that_moves_answers_itself(tmp_path: Path) -> None:
    states = ["loading", "ready"]
    server = StatusServer(tmp_path, lambda: record(states.pop(0)))
    try:
        found = await asyncio.to_thread(ask_status, tmp_path, 5.0)
    finally:
        server.close()
    assert isinstance(found, Status)
    assert (found.state, found.supervisor.record_age_s) == ("ready", 0.0)
    assert not (tmp_path / status_client.SOCKET_NAME).exists()


def test_a_loop_that_stands_still_for_long_is_hung() -> None:
    short = aged(record(), made_s=90.0, beat_s=99.0, now=100.0)
    assert (short.state, short.supervisor.record_age_s) == ("ready", 10.0)
    assert short.supervisor.uptime_s == 15.0
    long = aged(record(), made_s=90.0, beat_s=97.0, now=100.0)
    assert long.state == "hung"
    assert EXIT_STATUS[long.state] == 4
    assert long.reason == "the supervisor's event loop has not moved for 3.0 s; before: ready"


async def test_state_writer_notes_what_it_writes(tmp_path: Path) -> None:
    noted: list[Status] = []
    await StateWriter(tmp_path, record, noted.append).write()
    left = read_state(tmp_path)
    assert left is not None
    assert noted == [left.status]
    assert left.age_s < 60


# --- what is known without an answer


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Path]:
    """A run directory whose socket takes connections and never answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / status_client.SOCKET_NAME))
        listener.listen()
        yield tmp_path


def test_a_supervisor_that_does_not_answer(silent: Path) -> None:
    write_state(silent, record("degraded"))
    seen = look(silent, timeout_s=0.05)
    assert (seen.state, seen.source) == ("hung", "state file")
    assert seen.reason == f"the supervisor, pid {os.getpid()}, runs but does not answer"
    assert seen.asked_ms < HUNG_SUPERVISOR_S * 1000


def test_an_answer_that_is_none_is_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / status_client.SOCKET_NAME))
        listener.listen()

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.sendall(b'{"state": 7}')

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RunDirError, match=r"status\.sock: not a status"):
            look(tmp_path, timeout_s=5.0)
        thread.join()


def test_the_number_of_a_supervisor_may_be_anothers(tmp_path: Path) -> None:
    for mine in (record(start_time="1"), record(boot_id="another boot")):
        write_state(tmp_path, mine)
        seen = look(tmp_path)
        assert (seen.state, seen.supervisor and seen.supervisor.state) == ("down", "gone")


def test_a_supervisor_that_starts_holds_the_lock(tmp_path: Path) -> None:
    write_state(tmp_path, record("stopped", start_time="1"))  # of the one before
    lock = stale.RunDirLock(tmp_path)
    try:
        seen = look(tmp_path)
        assert seen.state == "loading"
        assert seen.reason == f"the supervisor, pid {os.getpid()}, runs and does not listen yet"
    finally:
        lock.close()
    assert look(tmp_path).state == "down"  # the file names us still, but nobody holds it


def test_an_engine_left_behind_is_shown_with_its_beacon(tmp_path: Path) -> None:
    write_state(tmp_path, record(start_time="1"))
    stale.write_record(tmp_path, os.getpid(), 7, "run")
    write_beacon(tmp_path, 7)
    seen = look(tmp_path)
    assert seen.engine is not None
    assert (seen.engine.state, seen.engine.epoch) == ("runs", 7)
    assert seen.engine.beacon is not None
    assert seen.engine.beacon.still_s is not None
    text = "\n".join(sighting_lines(seen))
    assert f"pid {os.getpid()} (start 7) runs; its beacon moved" in text


def test_damaged_files_are_no_reason_to_say_nothing(tmp_path: Path) -> None:
    for name in ("state.json", "engine.json", "lock", "beacon-1"):
        (tmp_path / name).write_bytes(b"\xff{")
    seen = look(tmp_path)
    assert (seen.state, seen.source, seen.engine) == ("down", "none", None)
    assert sighting_lines(seen) == [f"no supervisor is running for the run directory {tmp_path}"]


@pytest.mark.parametrize(("state", "status"), sorted(EXIT_STATUS.items()))
async def test_exit_status_says_the_state(
    tmp_path: Path, state: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    server = StatusServer(tmp_path, lambda: record(state))
    settings = load({"run_dir": str(tmp_path)}, None)
    try:
        found = await asyncio.to_thread(show_status, settings, as_json=True, watch=False)
    finally:
        server.close()
    assert found == status
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["seen"]["source"]) == (state, "socket")


def test_sightings_can_be_written(tmp_path: Path) -> None:
    seen = look(tmp_path)
    assert msgspec.json.decode(msgspec.json.encode(seen), type=Sighting) == seen
