"""The restart policy's memory on disk: `restart.json` in the run directory.

Written as a whole before each start and after each end, so that a crash loop is bounded also where
the supervisor itself is ended and started again. Times are kept with the boot they belong to:
within one boot the steady clock tells how much time has passed, whatever was done to the wall
clock; after a reboot the wall clock does, and one that was set back counts as no time at all.
What cannot be read is set aside; what cannot be written is told once and kept in memory.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from strata.engines.restart_state import RestartState, moved, not_after
from strata.engines.stale import boot_id
from strata.engines.steady import boottime_s

FILE_NAME = "restart.json"
ASIDE_NAME = "restart.json.unreadable"
VERSION = 1

log = logging.getLogger("strata.engine")


@dataclass(frozen=True, slots=True)
class Clocks:
    """`steady`: the policy's clock, which starts anew with each boot of the machine."""

    steady: Callable[[], float] = boottime_s
    wall: Callable[[], float] = time.time
    boot: Callable[[], str] = boot_id


class _Contents(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    boot: str
    wall_s: float  # when it was written
    steady_s: float
    state: RestartState


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    version: int


class RestartStore:
    """`load` and `save` may run in any thread, one at a time. Neither raises."""

    def __init__(self, run_dir: Path, clocks: Clocks | None = None) -> None:
        self._path = run_dir / FILE_NAME
        self._clocks = clocks or Clocks()
        self._problem = ""

    def load(self) -> RestartState:
        """What was remembered, on the steady clock of now; nothing where there is no file."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return RestartState()
        except OSError as error:
            log.warning("%s cannot be read: %s", self._path, error.strerror)
            return RestartState()
        try:
            version = msgspec.json.decode(data, type=_Version).version
            if version != VERSION:
                raise ValueError(f"it has version {version}, this supervisor reads {VERSION}")
            contents = msgspec.json.decode(data, type=_Contents)
        except (ValueError, RecursionError) as error:  # a DecodeError is a ValueError
            self._set_aside(str(error))
            return RestartState()
        return self._as_of_now(contents)

    def save(self, state: RestartState) -> None:
        """Replaces the file, on disk when this returns."""
        contents = _Contents(
            version=VERSION,
            boot=self._clocks.boot(),
            wall_s=self._clocks.wall(),
            steady_s=self._clocks.steady(),
            state=state,
        )
        problem = ""
        try:
            self._write(msgspec.json.encode(contents))
        except OSError as error:
            problem = f"{self._path} cannot be written: {error.strerror or error}"
        if problem and problem != self._problem:
            log.warning("%s; restarts are counted in memory until it can", problem)
        elif self._problem and not problem:
            log.info("%s is written again", self._path)
        self._problem = problem

    def _as_of_now(self, contents: _Contents) -> RestartState:
        clocks = self._clocks
        # Written later than now: the machine was set back to an earlier state, or the file lies.
        is_ahead = contents.steady_s > clocks.steady()
        if contents.boot == clocks.boot() and not is_ahead:
            return not_after(contents.state, clocks.steady())
        passed_s = max(clocks.wall() - contents.wall_s, 0.0)
        by_s = clocks.steady() - passed_s - contents.steady_s
        return not_after(moved(contents.state, by_s), clocks.steady())

    def _write(self, data: bytes) -> None:
        partial = self._path.with_name(FILE_NAME + ".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = os.open(partial, flags, 0o600)
        with open(fd, "wb") as file:  # noqa: PTH123  the mode is that of os.open
            file.write(data + b"\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)

    def _set_aside(self, why: str) -> None:
        aside = self._path.with_name(ASIDE_NAME)
        log.warning("%s cannot be understood (%s); set aside as %s", self._path, why, ASIDE_NAME)
        try:
            self._path.replace(aside)
        except OSError as error:
            log.warning("%s cannot be set aside: %s", self._path, error.strerror)
