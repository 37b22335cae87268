"""The restart policy's memory on disk: clocks, reboots, damage, a full disk."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from strata.engines.restart_state import WAIT_MAX_S, CrashNote, Fall, RestartState, StartNote
from strata.engines.restart_store import ASIDE_NAME, FILE_NAME, Clocks, RestartStore

from tests.supervisor.ladders import ladder


@dataclass
class Machine:
    steady: float = 5000.0
    wall: float = 1e9
    boot: str = "first"

    @property
    def clocks(self) -> Clocks:
        return Clocks(lambda: self.steady, lambda: self.wall, lambda: self.boot)


def state(now: float) -> RestartState:
    rung = ladder().rungs[1].plan
    return RestartState(
        place="here",
        starts=[StartNote(at=now - 100), StartNote(at=now - 50, became_ready=True)],
        crashes=[CrashNote(at=now - 40, signature="s", was_ready=True)],
        limit=ladder().limit(1),
        falls=[Fall(at=now - 40, plan=rung, signature="s", was_ready=True)],
        stepped=now - 40,
        next_start=now + 20,
        clean_s=7.0,
    )


def test_nothing_on_disk_is_nothing_remembered(tmp_path: Path) -> None:
    assert RestartStore(tmp_path).load() == RestartState()


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    machine = Machine()
    saved = state(machine.steady)
    RestartStore(tmp_path, machine.clocks).save(saved)
    assert RestartStore(tmp_path, machine.clocks).load() == saved
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("jump_s", [-1e6, 1e6])
def test_wall_clock_that_jumps_changes_nothing_within_one_boot(
    tmp_path: Path, jump_s: float
) -> None:
    machine = Machine()
    saved = state(machine.steady)
    RestartStore(tmp_path, machine.clocks).save(saved)
    machine.wall += jump_s
    machine.steady += 10
    assert RestartStore(tmp_path, machine.clocks).load() == saved


def test_after_a_reboot_the_wall_clock_tells_how_much_time_has_passed(tmp_path: Path) -> None:
    machine = Machine()
    RestartStore(tmp_path, machine.clocks).save(state(machine.steady))
    machine.boot, machine.steady, machine.wall = "second", 12.0, machine.wall + 30
    assert RestartStore(tmp_path, machine.clocks).load() == state(12.0 - 30)


def test_after_a_reboot_a_clock_that_was_set_back_counts_as_no_time(tmp_path: Path) -> None:
    machine = Machine()
    RestartStore(tmp_path, machine.clocks).save(state(machine.steady))
    machine.boot, machine.steady, machine.wall = "second", 12.0, machine.wall - 1e8
    assert RestartStore(tmp_path, machine.clocks).load() == state(12.0)


def test_a_machine_set_back_to_an_earlier_state_waits_no_longer(tmp_path: Path) -> None:
    machine = Machine()
    RestartStore(tmp_path, machine.clocks).save(state(machine.steady))
    machine.steady -= 4000  # the same boot
    assert RestartStore(tmp_path, machine.clocks).load() == state(machine.steady)


def test_times_of_the_future_are_brought_back_to_now(tmp_path: Path) -> None:
    machine = Machine()
    future = 1e300
    lies = RestartState(
        starts=[StartNote(at=future)] * 12,
        crashes=[CrashNote(at=future, signature="s", was_ready=False)],
        stepped=future,
        next_start=future,
    )
    RestartStore(tmp_path, machine.clocks).save(lies)
    found = RestartStore(tmp_path, machine.clocks).load()
    assert {note.at for note in (*found.starts, *found.crashes)} == {machine.steady}
    assert (found.stepped, found.next_start) == (machine.steady, machine.steady + WAIT_MAX_S)


DEEP = '{"version": 1, "x": ' + "[" * 200_000


@pytest.mark.parametrize(
    "text",
    [DEEP, "", "{", "[]", '{"version": 2}', '{"version": 1}', '{"version": "1"}', "\0" * 100],
)
def test_file_that_cannot_be_understood_is_set_aside(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    assert RestartStore(tmp_path).load() == RestartState()
    assert (tmp_path / ASIDE_NAME).read_text() == text
    assert not (tmp_path / FILE_NAME).exists()
    assert "set aside" in caplog.text


def test_full_disk_is_told_once_and_leaves_the_old_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    machine = Machine()
    store = RestartStore(tmp_path, machine.clocks)
    first = state(machine.steady)
    store.save(first)

    def no_room(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_room)
        store.save(RestartState(place="other"))
        store.save(RestartState(place="other"))
    assert caplog.text.count("cannot be written: No space left on device") == 1
    assert RestartStore(tmp_path, machine.clocks).load() == first
    store.save(RestartState(place="other"))
    assert "is written again" in caplog.text
    assert RestartStore(tmp_path, machine.clocks).load().place == "other"


def test_run_directory_that_is_gone_costs_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not made again: others would put new files in the place of those that were there."""
    run_dir = tmp_path / "run"
    RestartStore(run_dir).save(RestartState(place="x"))
    assert "cannot be written: No such file" in caplog.text
    assert not run_dir.exists()
