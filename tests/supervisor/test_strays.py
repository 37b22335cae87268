"""What an engine leaves behind is found by its mark and ended, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from strata.engines import strays
from strata.engines.process import OWNER_MARK, RUN_DIR_MARK
from strata.engines.stale import start_time

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def sleeper(
    started: list[subprocess.Popen[bytes]], mark: str | None, owner: str | None = None
) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **({} if mark is None else {RUN_DIR_MARK: mark})}
    if owner is not None:
        environment[OWNER_MARK] = owner
    process = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)
    started.append(process)
    return process


def test_those_of_this_run_directory_are_ended_and_no_others(
    tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    ours = [sleeper(sleepers, str(tmp_path)) for _ in range(2)]
    others = [sleeper(sleepers, mark) for mark in (None, str(tmp_path / "sub"), f"{tmp_path}2")]
    assert strays.end_strays(tmp_path) == sorted(p.pid for p in ours)
    for process in ours:  # reaped by us already
        assert process.wait(5) in (-signal.SIGKILL, 0)
    assert all(process.poll() is None for process in others)
    assert strays.end_strays(tmp_path) == []


def test_orphans_become_ours_and_are_reaped() -> None:
    """In a process of its own: becoming a parent of orphans is for life."""
    script = """
import os, subprocess, sys
from strata.engines import strays
assert strays.adopt_orphans()
engine = subprocess.Popen(
    [sys.executable, "-c",
     "import os, time\\nif os.fork() == 0:\\n    time.sleep(60)\\nos._exit(0)"],
    start_new_session=True)
engine.wait()
os.killpg(engine.pid, 9)
strays.reap_group(engine.pid)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("none left")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == "none left"


def test_what_a_living_supervisor_started_is_left_to_it(
    tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    """Its lock is gone with the run directory that somebody removed; the engine is not."""
    supervisor = sleeper(sleepers, None)
    started = start_time(supervisor.pid)
    assert started is not None
    owners = {
        "alive": f"{supervisor.pid} {started}",
        "other process of that number": f"{supervisor.pid} {int(started) - 1}",
        "ourselves": f"{os.getpid()} {start_time(os.getpid())}",
        "unreadable": "x",
    }
    engines = {name: sleeper(sleepers, str(tmp_path), owner) for name, owner in owners.items()}
    spared = engines.pop("alive")
    assert strays.end_strays(tmp_path) == sorted(p.pid for p in engines.values())
    assert spared.poll() is None
    supervisor.kill()
    supervisor.wait()
    assert strays.end_strays(tmp_path) == [spared.pid]
