"""`quarantine list` and `quarantine clear`: modes that ended engines of a run directory.

Works on the file, under its lock, whether or not a supervisor runs there; a running one takes the
change over at its next engine start. The exit status is 0 whatever the list holds.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from strata.config_source import Settings
from strata.engines import quarantine_file
from strata.engines.quarantine import Quarantine, QuarantineRecord, QuarantineRow, QuarantineState
from strata.errors import ConfigError, RunDirError
from strata.observe.words import counted, duration


def list_quarantine(settings: Settings, *, as_json: bool) -> int:
    """Prints all records. Raises RunDirError for a file that cannot be read."""
    run_dir = _run_dir(settings)
    try:
        records = quarantine_file.read(run_dir) or []
    except (OSError, quarantine_file.UnreadableError) as error:
        raise RunDirError(_problem(run_dir, error)) from None
    rows = _rows(settings, records)
    if as_json:
        _print_json(rows)
    elif not rows:
        print(f"nothing is in quarantine in the run directory {run_dir}")
    for row in [] if as_json else rows:
        print(_text(row))
    return 0


def clear_quarantine(settings: Settings, record_id: str | None, *, as_json: bool) -> int:
    """Removes one record, or all of them where `record_id` is None, and prints what it removed.

    Raises ConfigError for an id that is not there, RunDirError where the file cannot be changed.
    """
    run_dir = _run_dir(settings)
    removed: list[QuarantineRecord] = []
    if run_dir.exists():
        try:
            with quarantine_file.locked(run_dir):
                removed = _remove(run_dir, record_id)
        except (OSError, quarantine_file.UnreadableError) as error:
            raise RunDirError(_problem(run_dir, error)) from None
    elif record_id is not None:
        raise ConfigError(f"quarantine clear: there is no run directory {run_dir}")
    if as_json:
        _print_json(_rows(settings, removed))
    elif not removed:
        print(f"nothing was in quarantine in the run directory {run_dir}")
    else:
        for record in removed:
            print(f"cleared {record.id}  {record.mode}")
        print("a running service offers this again at its next engine start")
    return 0


def _remove(run_dir: Path, record_id: str | None) -> list[QuarantineRecord]:
    """With the lock held. Raises ConfigError, OSError, UnreadableError."""
    try:
        found = quarantine_file.read(run_dir) or []
    except quarantine_file.UnreadableError as error:
        if record_id is not None:
            raise
        quarantine_file.set_aside(run_dir, str(error))
        found = []
    removed = [r for r in found if record_id in (None, r.id)]
    if record_id is not None and not removed:
        known = ", ".join(r.id for r in found) or "none"
        raise ConfigError(
            f"quarantine clear: no record {record_id} in {run_dir}; there are {known}"
        )
    if removed:
        quarantine_file.write(run_dir, [r for r in found if r not in removed])
    return removed


def _run_dir(settings: Settings) -> Path:
    """Raises RunDirError for a file in its place."""
    run_dir = Path(settings.config.run_dir).expanduser().absolute()
    if run_dir.exists() and not run_dir.is_dir():
        raise RunDirError(f"run directory {run_dir}: is not a directory")
    return run_dir


def _problem(run_dir: Path, error: Exception) -> str:
    path = run_dir / quarantine_file.FILE_NAME
    if isinstance(error, OSError):
        return f"{path}: {error.strerror or error}"
    return (
        f"{path} cannot be understood: {error}; the next engine start or `quarantine clear --all`"
        " sets it aside"
    )


def _rows(settings: Settings, records: list[QuarantineRecord]) -> list[QuarantineRow]:
    return Quarantine(settings.config.quarantine_trial_s, time.time, records).rows()


def _print_json(rows: list[QuarantineRow]) -> None:
    print(msgspec.json.encode(rows).decode())


def _text(row: QuarantineRow) -> str:
    now = time.time()
    ago = duration(max(now - row.last, 0))
    lines = [
        f"{row.id}  {row.mode}  {row.state}",
        f"    {row.sentence}",
        f"    {counted(row.count, 'crash', 'es')}, the last {ago} ago; signature {row.signature}",
    ]
    if row.trial_from is not None:
        wait_s = row.trial_from - now
        when = f"in {duration(wait_s)} or later" if wait_s > 0 else "from now on"
        lines.append(f"    offered again, on trial, at an engine start {when}")
    elif row.state is QuarantineState.QUARANTINED:
        lines.append("    not offered again until it is cleared or build or file change")
    lines.append(f"    {row.model}  {row.device}  build {row.build}")
    return "\n".join(lines)
