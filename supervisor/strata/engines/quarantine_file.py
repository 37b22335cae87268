"""The quarantine's file in the run directory: read, replaced as a whole, shared with the command
line under a lock. What it cannot read it sets aside; it never stops a start.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from strata.engines.modes.quarantined import is_mode
from strata.engines.quarantine import RECORDS_MAX, QuarantineRecord

FILE_NAME = "quarantine.json"
LOCK_NAME = "quarantine.lock"
ASIDE_NAME = "quarantine.json.unreadable"
VERSION = 1

log = logging.getLogger("strata.engine")


class _Contents(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    records: list[QuarantineRecord]


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    version: int


class UnreadableError(Exception):
    """The file is there and is no quarantine of this version; the text says why."""


@dataclass(frozen=True, slots=True)
class Synced:
    """What `QuarantineFile.sync` found."""

    records: Sequence[QuarantineRecord] = ()  # in the file that were not ours
    cleared: frozenset[str] = frozenset()  # ids of ours that somebody removed from the file
    problem: str = ""  # why the file could not be written: the memory is all there is


def read(run_dir: Path) -> list[QuarantineRecord] | None:
    """The records on disk; None where there is no file. Raises OSError, UnreadableError."""
    try:
        data = (run_dir / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            raise UnreadableError(f"it has version {version}, this supervisor reads {VERSION}")
        contents = msgspec.json.decode(data, type=_Contents)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableError(str(error)) from None
    strange = [r for r in contents.records if not is_mode(r.mode)]
    if strange:
        raise UnreadableError(f"it names a mode {strange[0].mode[:40]!r}, which is none")
    by_id = {r.id: r for r in contents.records}
    return list(by_id.values())[-RECORDS_MAX:]


def write(run_dir: Path, records: Sequence[QuarantineRecord]) -> None:
    """Replaces the file as a whole, on disk when this returns. Raises OSError."""
    partial = run_dir / (FILE_NAME + ".new")
    contents = _Contents(version=VERSION, records=list(records))
    data = msgspec.json.format(msgspec.json.encode(contents))
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:  # noqa: PTH123  the mode is that of os.open
        file.write(data + b"\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(run_dir / FILE_NAME)
    folder = os.open(run_dir, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Held while the file is read and written as one act. Raises OSError."""
    fd = os.open(run_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class QuarantineFile:
    """The supervisor's end of the file. `sync` may run in any thread, one at a time."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._seen: frozenset[str] = frozenset()  # ids that were in the file when last seen
        self._lock = threading.Lock()
        self._version = (0, 0, 0)  # of the file that `_on_disk` was read from
        self._on_disk: frozenset[str] | None = None  # ids in it

    def sync(self, records: Sequence[QuarantineRecord]) -> Synced:
        """Writes `records` without those that somebody removed from the file since the last call.

        A file that is gone is written again: `quarantine clear` leaves an empty one.
        """
        with self._lock:
            try:
                if records:
                    self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
                with locked(self._run_dir):
                    return self._sync(records)
            except OSError as error:
                if not records:
                    return Synced()  # nothing is lost
                path = self._run_dir / FILE_NAME
                return Synced(problem=f"{path} cannot be written: {error.strerror or error}")

    def cleared(self) -> frozenset[str]:
        """Ids of records that somebody removed since the last call of `sync`, which takes them
        over. Reads the file only where it has changed; one that cannot be read clears nothing."""
        path = self._run_dir / FILE_NAME
        try:
            stat = path.stat()
            version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if version != self._version:
                found = read(self._run_dir)
                self._on_disk = None if found is None else frozenset(r.id for r in found)
                self._version = version
        except (OSError, UnreadableError):
            return frozenset()
        return frozenset() if self._on_disk is None else self._seen - self._on_disk

    def _sync(self, records: Sequence[QuarantineRecord]) -> Synced:
        try:
            found = read(self._run_dir)
        except UnreadableError as error:
            set_aside(self._run_dir, str(error))
            found = None
        if found is None:
            self._seen = frozenset()
        on_disk = {r.id: r for r in found or ()}
        cleared = self._seen - on_disk.keys()
        ours = {r.id: r for r in records if r.id not in cleared}
        added = [r for r in on_disk.values() if r.id not in ours and r.id not in self._seen]
        together = [*ours.values(), *added]
        if together != list(on_disk.values()):
            write(self._run_dir, together)
        self._seen = frozenset(r.id for r in together)
        return Synced(records=added, cleared=cleared)


def set_aside(run_dir: Path, why: str) -> None:
    """Keeps a file that cannot be understood under another name. Raises OSError."""
    path, aside = run_dir / FILE_NAME, run_dir / ASIDE_NAME
    path.replace(aside)
    log.warning("%s cannot be understood (%s); set aside as %s", path, why, aside.name)
