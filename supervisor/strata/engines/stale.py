"""Orphan safety on our side: the record of the running engine, and ending one left behind.

An engine is known by pid *and* start time *and* boot id, never by name, so a recycled pid is
never touched. The record is written right after launch and removed after the exit is known.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from strata.errors import RunDirError

RECORD_NAME = "engine.json"
NEXT_NAME = "engine-next.json"  # of an engine that is proven beside the one that serves
LOCK_NAME = "lock"
END_WAIT_S = 10.0
_IS_LINUX: Final = os.uname().sysname == "Linux"


@dataclass(frozen=True, slots=True)
class EngineRecord:
    pid: int
    start_time: str  # as the system counts it, compared for equality only
    boot_id: str
    epoch: int
    run_id: str


def boot_id() -> str:
    """Changes with every boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import psutil  # noqa: PLC0415  slow to import, and Linux does without it

        return f"boot-{psutil.boot_time():.0f}"


def start_time(pid: int) -> str | None:
    """Start time of a live process; None where there is none (a zombie counts as none)."""
    if _IS_LINUX:
        try:
            # Field 2 may hold blanks and brackets; the state is field 3, the start time field 22.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in ("Z", "X") else fields[19]
    import psutil  # noqa: PLC0415  slow to import, and Linux does without it

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return repr(process.create_time())
    except psutil.Error:
        return None


def write_record(run_dir: Path, pid: int, epoch: int, run_id: str, name: str = RECORD_NAME) -> None:
    """Remembers the engine just launched. Atomic; makes a run directory that is gone. Raises
    OSError."""
    found = start_time(pid)
    if found is None:
        return  # gone already; its exit is about to be reported
    record = EngineRecord(pid, found, boot_id(), epoch, run_id)
    partial = run_dir / (name + ".new")
    text = json.dumps(asdict(record))
    try:
        partial.write_text(text)
    except FileNotFoundError:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.write_text(text)
    partial.replace(run_dir / name)


def promote_record(run_dir: Path) -> None:
    """The engine beside the one that serves has taken over. Raises OSError."""
    (run_dir / NEXT_NAME).replace(run_dir / RECORD_NAME)


def forget_record(run_dir: Path, epoch: int | None = None) -> None:
    """Of one engine start, or of all. Raises OSError."""
    for name in (RECORD_NAME, NEXT_NAME):
        record = read_record(run_dir, name) if epoch is not None else None
        if record is None or record.epoch == epoch:
            (run_dir / name).unlink(missing_ok=True)


def read_record(run_dir: Path, name: str = RECORD_NAME) -> EngineRecord | None:
    """The record of a former run, or None where there is none or it cannot be understood."""
    try:
        return EngineRecord(**json.loads((run_dir / name).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def end_stale_engine(run_dir: Path) -> EngineRecord | None:
    """Ends the engine a former supervisor of this run directory left behind, and waits for it.

    Returns its record where there was one alive, else None. Call it with the lock held and
    before the event loop serves: it may wait up to END_WAIT_S. Raises RunDirError when the
    process does not go away (a second engine beside it would not fit in memory) or its record
    cannot be removed.
    """
    found = [_end_recorded(run_dir, name) for name in (RECORD_NAME, NEXT_NAME)]
    try:
        forget_record(run_dir)
    except OSError as error:  # what cannot be removed now could not be written later
        raise RunDirError(f"{error.filename}: {error.strerror}") from None
    return next((record for record in found if record is not None), None)


def _end_recorded(run_dir: Path, name: str) -> EngineRecord | None:
    record = read_record(run_dir, name)
    if record is None or record.boot_id != boot_id() or start_time(record.pid) != record.start_time:
        return None
    with contextlib.suppress(ProcessLookupError):
        # It led its own session, so its group is its pid.
        os.killpg(record.pid, signal.SIGKILL)
    if not _wait_gone(record):
        raise RunDirError(
            f"the engine {record.pid} of an earlier run does not end; its process is stuck"
        )
    return record


def _wait_gone(record: EngineRecord) -> bool:
    if _IS_LINUX:
        try:
            watch = os.pidfd_open(record.pid)
        except OSError:
            return start_time(record.pid) != record.start_time
        try:
            poll = select.poll()
            poll.register(watch, select.POLLIN)
            poll.poll(END_WAIT_S * 1000)
        finally:
            os.close(watch)
        return start_time(record.pid) != record.start_time
    import psutil  # noqa: PLC0415  slow to import, and Linux does without it

    with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        psutil.Process(record.pid).wait(END_WAIT_S)
    return start_time(record.pid) != record.start_time


class RunDirLock:
    """At most one supervisor per run directory, for as long as the object is open."""

    def __init__(self, run_dir: Path) -> None:
        """Creates the directory (mode 0700) where needed. Raises RunDirError."""
        try:
            run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Unbuffered: what a full disk does not take must not come up again at the close.
            self._file = (run_dir / LOCK_NAME).open("a+b", buffering=0)
        except FileExistsError:
            raise RunDirError(f"run directory {run_dir}: is not a directory") from None
        except OSError as error:
            raise RunDirError(f"run directory {run_dir}: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().decode(errors="replace").strip() or "unknown"
            self._file.close()
            raise RunDirError(
                f"run directory {run_dir} is in use by another supervisor (pid {holder});"
                " give this one its own with --run-dir"
            ) from None
        try:
            self._file.truncate(0)
            self._file.write(b"%d\n" % os.getpid())
        except OSError as error:
            self._file.close()
            raise RunDirError(
                f"run directory {run_dir} cannot be written: {error.strerror}"
            ) from None

    def close(self) -> None:
        self._file.close()
