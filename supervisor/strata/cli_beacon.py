"""`beacon`: what an engine of a run directory does or did last, also after its death and without
the supervisor's help.

Exit status: 0 it was read, 73 there is none or it cannot be read, 78 no such engine start.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from strata_protocol import beacon
from strata_protocol.beacon import BeaconView

from strata.cli_crashes import run_dir_of
from strata.config_source import Settings
from strata.engines import stale
from strata.engines.epoch_beacon import beacon_path
from strata.errors import ConfigError, RunDirError
from strata.observe.beacon_text import crash_lines, doing_lines, step_lines
from strata.observe.words import age, printable

WATCH_S = 1.0
_FILE = re.compile(r"beacon-(\d+)")


@dataclass(frozen=True, slots=True)
class Seen:
    """A beacon as of one moment."""

    epoch: int
    path: Path
    view: BeaconView
    is_running: bool
    still_s: float | None  # since the last movement; None where it is of another boot


def show_beacon(settings: Settings, epoch: int | None, *, as_json: bool, watch: bool) -> int:
    """Prints the beacon of engine start `epoch`, or of the newest; with `watch` again each second
    until interrupted. Raises ConfigError, RunDirError."""
    run_dir = run_dir_of(settings)
    console = Console(highlight=False, soft_wrap=True)
    while True:
        seen = look(run_dir, epoch)
        if watch and console.is_terminal and not as_json:
            console.clear()
        if as_json:
            print(msgspec.json.encode(_record(seen)).decode())
        else:
            print("\n".join(beacon_lines(seen)))
        sys.stdout.flush()
        if not watch:
            return 0
        time.sleep(WATCH_S)


def look(run_dir: Path, epoch: int | None) -> Seen:
    """Reads a beacon. Raises ConfigError for an engine start that has none, RunDirError."""
    try:
        found = (_FILE.fullmatch(path.name) for path in run_dir.glob("beacon-*"))
        epochs = sorted(int(match.group(1)) for match in found if match)
    except OSError as error:
        raise RunDirError(f"run directory {run_dir}: {error.strerror}") from None
    if not epochs:
        raise ConfigError(f"no engine has left a beacon in the run directory {run_dir}")
    if epoch is not None and epoch not in epochs:
        there = ", ".join(map(str, epochs))
        raise ConfigError(
            f"--epoch {epoch}: there is no such beacon in {run_dir}; there are {there}"
        )
    number = epochs[-1] if epoch is None else epoch
    path = beacon_path(run_dir, number)
    try:
        view, problem = beacon.read(path)
    except OSError as error:
        raise RunDirError(f"{path}: {error.strerror}") from None
    if view is None:
        raise RunDirError(f"{path}: {problem}")
    still_s = (time.monotonic_ns() - view.moved_ns) / 1e9
    return Seen(number, path, view, _is_running(run_dir, number), still_s if still_s >= 0 else None)


def beacon_lines(seen: Seen) -> list[str]:
    """The beacon in sentences."""
    view = seen.view
    state = "runs" if seen.is_running else "has ended"
    build = f", build {view.build}" if view.build else ""
    lines = [printable(f"engine start {seen.epoch}, pid {view.pid}{build}: {state}")]
    if seen.still_s is None:
        lines.append("its last movement was before the machine was started")
    else:
        lines.append(f"its last movement was {age(seen.still_s)} ago")
    lines += doing_lines(view)
    if view.crash is not None:
        lines += ["it ended with:", *crash_lines(view.crash)]
    if view.dump is not None:
        lines += ["when it was asked:", *crash_lines(view.dump)]
    if view.steps:
        lines += ["its last steps:", *(f"  {line}" for line in step_lines(view.steps))]
    return lines


def _is_running(run_dir: Path, epoch: int) -> bool:
    record = stale.read_record(run_dir)
    return (
        record is not None
        and record.epoch == epoch
        and record.boot_id == stale.boot_id()
        and record.start_time == stale.start_time(record.pid)
    )


def _record(seen: Seen) -> dict[str, object]:
    return {
        "epoch": seen.epoch,
        "path": str(seen.path),
        "is_running": seen.is_running,
        "still_s": seen.still_s,
        "beacon": seen.view,
    }
