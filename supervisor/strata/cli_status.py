"""`status`: shows the service of a run directory, also where it hangs or is gone; its exit status
says the state.

0 ready, 1 degraded, 2 loading, restarting or draining, 3 held or refused, 4 nothing answers.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from strata.config_source import Settings
from strata.errors import RunDirError
from strata.observe.decision_read import merged, now_lines, read_decisions, why_lines
from strata.observe.sighting import Sighting, look
from strata.observe.status import EXIT_STATUS
from strata.observe.status_text import headline, sighting_lines

WATCH_S = 1.0
CLEAR = "\x1b[H\x1b[2J"


def show_status(settings: Settings, *, as_json: bool, watch: bool, why: bool = False) -> int:
    """Prints the status once, or each second until interrupted; with `why` the decisions instead
    of the table. Returns the exit status; raises
    RunDirError for a file in the place of the run directory."""
    run_dir = Path(settings.config.run_dir).expanduser().absolute()
    if run_dir.exists() and not run_dir.is_dir():
        raise RunDirError(f"run directory {run_dir}: is not a directory")
    is_terminal = sys.stdout.isatty()
    while True:
        seen = look(run_dir)
        if why:
            text = _why(run_dir, seen, as_json=as_json)
        elif as_json:
            text = msgspec.json.encode(json_record(seen)).decode()
        else:
            text = "\n".join(sighting_lines(seen, colour=is_terminal))
            text = (CLEAR if watch and is_terminal else "") + text
        print(text, flush=True)
        if not watch:
            return EXIT_STATUS[seen.state]
        time.sleep(WATCH_S)


def _why(run_dir: Path, seen: Sighting, *, as_json: bool) -> str:
    """The decision log: what the file keeps, also of earlier supervisors, and what is newer."""
    said = seen.status.restarts.decisions if seen.status is not None else []
    entries = merged(read_decisions(run_dir), said)
    if as_json:
        return msgspec.json.encode({"state": seen.state, "decisions": entries}).decode()
    reason = seen.reason
    if seen.source == "socket" and seen.status is not None:
        reason = headline(seen.status, "`status` has the table")
    return "\n".join([*why_lines(entries), *now_lines(seen.state, reason)])


def json_record(seen: Sighting) -> dict[str, object]:
    """The status record of a service that answers, with what the system shows as `seen`. Without
    an answer: state, reason, `seen`, and the record it left, as `last`."""
    shown = {key: getattr(seen, key) for key in ("source", "age_s", "asked_ms")}
    shown |= {"supervisor": seen.supervisor, "engine": seen.engine}
    if seen.source == "socket" and seen.status is not None:
        record: dict[str, object] = msgspec.structs.asdict(seen.status)
        return record | {"seen": shown}
    return {
        "state": seen.state,
        "reason": seen.reason,
        "run_dir": seen.run_dir,
        "seen": shown,
        "last": seen.status,
    }
