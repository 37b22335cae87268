"""Processes that an engine has started and left behind, and engines that a killed supervisor left.

They are known by the run directory in the environment that they inherited, never by name: while we
hold that directory's lock and run no engine, whoever carries it is left over, unless the supervisor
that started it lives: the lock of a directory that was removed and made anew keeps nobody out, so a
live owner is looked for by pid and start time, and what is its own is left to it. The process is
held by a descriptor while its environment is read, so that no other one of its number is ended.
Linux only; elsewhere the process group and the record (stale.py) are all there is.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from strata.engines.process import EPOCH_MARK, OWNER_MARK, RUN_DIR_MARK
from strata.engines.stale import start_time

END_WAIT_S = 5.0
REAP_WAIT_S = 1.0
REAP_LOOK_S = 0.01
_PR_SET_CHILD_SUBREAPER = 36

log = logging.getLogger("strata.engine")


def adopt_orphans() -> bool:
    """Orphans among our descendants become our children from now on, so that their end is seen.
    Returns whether the system can do that."""
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def end_strays(run_dir: Path, epoch: int | None = None) -> list[int]:
    """Kills what carries the run directory's mark, and that of `epoch` where it is given, and waits
    for it, up to END_WAIT_S. Returns the processes that it ended. Call it while no engine of this
    run directory, or of that epoch, is to live."""
    if not hasattr(os, "pidfd_open"):
        return []
    marks = {f"{RUN_DIR_MARK}={run_dir}".encode()}
    if epoch is not None:
        marks.add(f"{EPOCH_MARK}={epoch}".encode())
    found: dict[int, int] = {}
    try:
        for pid in _own_processes():
            fd = _open_marked(pid, marks)
            if fd is not None:
                found[pid] = fd
        for fd in found.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        _wait(list(found.values()))
    finally:
        for fd in found.values():
            os.close(fd)
    for pid in found:
        with contextlib.suppress(ChildProcessError):  # not ours, or not an orphan
            os.waitpid(pid, os.WNOHANG)
    return sorted(found)


def reap_group(group: int) -> None:
    """Takes the exit of those of an ended engine's group that became our children. They have been
    killed; the engine itself must have been waited for."""
    until = time.monotonic() + REAP_WAIT_S
    with contextlib.suppress(ChildProcessError):  # none is left
        while time.monotonic() < until:
            pid, _ = os.waitpid(-group, os.WNOHANG)
            if pid == 0:
                time.sleep(REAP_LOOK_S)


def _own_processes() -> list[int]:
    uid, own = os.getuid(), os.getpid()
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != own:
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid:
                    pids.append(int(entry.name))
    return pids


def _open_marked(pid: int, marks: set[bytes]) -> int | None:
    """A descriptor of the process where it carries all of the marks."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if marks <= set(environment):
            if (owner := _living_owner(environment)) is None:
                return fd
            log.warning(
                "process %d carries the mark of this run directory, but the supervisor %d that"
                " started it is alive: it is left alone",
                pid,
                owner,
            )
    except OSError:
        pass  # gone, or not ours to read
    os.close(fd)
    return None


def _living_owner(environment: Sequence[bytes]) -> int | None:
    """The other supervisor that started a process and lives; None where there is none."""
    prefix = f"{OWNER_MARK}=".encode()
    for entry in environment:
        if entry.startswith(prefix):
            pid, _, started = entry[len(prefix) :].decode(errors="replace").partition(" ")
            if pid.isdigit() and int(pid) != os.getpid() and start_time(int(pid)) == started:
                return int(pid)
    return None


def _wait(fds: list[int]) -> None:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    until = time.monotonic() + END_WAIT_S
    waiting = set(fds)
    while waiting and (left_s := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(left_s * 1000):
            poll.unregister(fd)
            waiting.discard(fd)
