"""What can be seen of a service from outside, whatever state it is in: the supervisor's answer or
the record it left, both processes as the system shows them, and the engine's beacon.

Reads only, in a bounded time, and never raises for what a dead or hung service left behind.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

from strata_protocol import beacon

from strata.engines import stale
from strata.engines.epoch_beacon import beacon_path
from strata.observe.beacon_text import doing_lines
from strata.observe.status import Record, Status
from strata.observe.status_client import ASK_TIMEOUT_S, Silence, ask_status, read_state
from strata.observe.words import age

ProcessState = Literal["runs", "stopped", "waits in the kernel", "gone"]


class SeenBeacon(Record, frozen=True):
    still_s: float | None  # since its last movement; None where it is of another boot
    phase: str
    step: int
    kernel: str = ""
    doing: tuple[str, ...] = ()  # sentences


class SeenProcess(Record, frozen=True):
    pid: int
    state: ProcessState


class SeenEngine(SeenProcess, frozen=True):
    epoch: int
    beacon: SeenBeacon | None = None


class Sighting(Record, frozen=True):
    """As of one moment. `state` and `reason` are the service's, by all that is known."""

    state: str
    reason: str
    run_dir: str
    source: Literal["socket", "state file", "none"]  # of `status`
    age_s: float = 0.0  # of `status`
    asked_ms: float = 0.0  # from the connection to all that is here
    supervisor: SeenProcess | None = None
    engine: SeenEngine | None = None
    status: Status | None = None


def look(run_dir: Path, timeout_s: float = ASK_TIMEOUT_S) -> Sighting:
    """Takes `timeout_s` at most and a few milliseconds. Raises RunDirError for an answer on the
    status socket that is none."""
    begin_s = time.monotonic()
    left = read_state(run_dir)
    seen = None if left is None else _supervisor(left.status)
    answer: Status | Silence = Silence.NO_ANSWER
    # A stopped process is not waited for.
    if seen is None or seen.state != "stopped":
        answer = ask_status(run_dir, timeout_s)
    if isinstance(answer, Status):
        return Sighting(
            state=answer.state,
            reason=answer.reason,
            run_dir=str(run_dir),
            source="socket",
            age_s=answer.supervisor.record_age_s,
            supervisor=SeenProcess(
                pid=answer.supervisor.pid, state=process_state(answer.supervisor.pid)
            ),
            engine=_engine(run_dir),
            status=answer,
            asked_ms=(time.monotonic() - begin_s) * 1000,
        )
    last = None if left is None else left.status
    is_ending = last is not None and last.state == "stopped"
    if (seen is None or seen.state == "gone") and (holder := _lock_holder(run_dir)) is not None:
        seen, is_ending = holder, False
    state, reason = _without_answer(run_dir, answer, seen, last, is_ending=is_ending)
    return Sighting(
        state=state,
        reason=reason,
        run_dir=str(run_dir),
        source="none" if left is None else "state file",
        age_s=0.0 if left is None else left.age_s,
        supervisor=seen,
        engine=_engine(run_dir),
        status=last,
        asked_ms=(time.monotonic() - begin_s) * 1000,
    )


def process_state(pid: int) -> ProcessState:
    """As the system shows it; elsewhere than on Linux only whether it is there."""
    try:
        # Field 2 may hold blanks and brackets; the state is field 3.
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone" if Path("/proc/self/stat").exists() or not _is_there(pid) else "runs"
    except (OSError, IndexError):
        return "gone"
    match letter:
        case "T" | "t":
            return "stopped"
        case "Z" | "X":
            return "gone"
        case "D":
            return "waits in the kernel"
        case _:
            return "runs"


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _supervisor(last: Status) -> SeenProcess:
    """The process that wrote a record: its number alone may be another's by now."""
    known = last.supervisor
    is_same = known.boot_id == stale.boot_id() and known.start_time == stale.start_time(known.pid)
    return SeenProcess(pid=known.pid, state=process_state(known.pid) if is_same else "gone")


def _lock_holder(run_dir: Path) -> SeenProcess | None:
    """Who holds the lock, where no record says more; None where nobody does."""
    path = run_dir / stale.LOCK_NAME
    try:
        pid, inode = int(path.read_text()), path.stat().st_ino
    except (OSError, ValueError):
        return None
    try:
        # The number in the file may be another process's by now; the system knows who holds it.
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        if not any(row[1] == "FLOCK" and row[5].endswith(f":{inode}") for row in rows):
            return None
    except (OSError, IndexError):
        pass  # not Linux
    state = process_state(pid)
    return None if state == "gone" else SeenProcess(pid=pid, state=state)


def _without_answer(
    run_dir: Path,
    silence: Silence,
    seen: SeenProcess | None,
    last: Status | None,
    *,
    is_ending: bool,
) -> tuple[str, str]:
    """State and sentence where the supervisor says nothing."""
    if seen is None or seen.state == "gone":
        text = f"no supervisor is running for the run directory {run_dir}"
        if last is not None:
            text += f" (the last one, pid {last.supervisor.pid}, left it in state {last.state})"
        return "down", text
    if seen.state == "stopped":
        return "hung", f"the supervisor, pid {seen.pid}, is stopped by a signal or a debugger"
    if silence is Silence.NO_ANSWER:
        return "hung", f"the supervisor, pid {seen.pid}, {seen.state} but does not answer"
    if is_ending:
        return "down", f"the supervisor, pid {seen.pid}, is ending"
    return "loading", f"the supervisor, pid {seen.pid}, {seen.state} and does not listen yet"


def _engine(run_dir: Path) -> SeenEngine | None:
    """The engine that the run directory's record names, and its beacon."""
    record = stale.read_record(run_dir)
    if record is None:
        return None
    is_same = record.boot_id == stale.boot_id() and record.start_time == stale.start_time(
        record.pid
    )
    return SeenEngine(
        pid=record.pid,
        state=process_state(record.pid) if is_same else "gone",
        epoch=record.epoch,
        beacon=_beacon(run_dir, record.epoch),
    )


def _beacon(run_dir: Path, epoch: int) -> SeenBeacon | None:
    try:
        view, _ = beacon.read(beacon_path(run_dir, epoch))
    except OSError:
        return None
    if view is None:
        return None
    still_s = (time.monotonic_ns() - view.moved_ns) / 1e9
    return SeenBeacon(
        still_s=still_s if still_s >= 0 else None,
        phase=view.phase,
        step=view.step,
        kernel=view.kernel,
        doing=tuple(doing_lines(view)),
    )


def engine_text(engine: SeenEngine) -> str:
    """One line of what an engine does, by its beacon."""
    text = f"pid {engine.pid} (start {engine.epoch}) {engine.state}"
    seen = engine.beacon
    if seen is None:
        return f"{text}; it has left no beacon"
    when = "before the machine started" if seen.still_s is None else f"{age(seen.still_s)} ago"
    where = f"; kernel {seen.kernel}" if seen.kernel else ""
    return f"{text}; its beacon moved {when}: phase {seen.phase}, step {seen.step}{where}"
