"""`reload`: replaces the engine of a running service by one of the settings that are in force now.

Exit status: 0 it has begun, with `--wait` the new engine serves; 4 nothing runs; 73 no answer; 75
the new engine failed or cannot take over now, and the former one serves; 77 not the service's user;
78 the settings or the new engine refuse.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from strata.config_source import Settings
from strata.control_client import NobodyError, ask
from strata.control_protocol import Answer, ReloadCommand
from strata.observe.words import command_line

DOWN = 4


def reload(
    settings: Settings, model: str, engine: str, *, wait: bool, force: bool, as_json: bool = False
) -> int:
    """Prints what the service says, with `as_json` one object a line; returns the exit status.
    Raises RunDirError."""
    run_dir = Path(settings.config.run_dir).expanduser().absolute()
    command = ReloadCommand(model=_absolute(model), engine=_absolute(engine), force=force)
    try:
        for answer in ask(run_dir, command):
            if as_json:
                print(msgspec.json.encode(answer).decode(), flush=True)
            else:
                _show(answer)
            if answer.is_final:
                return answer.status
            if not wait:
                if as_json:
                    return 0
                print(f"see {command_line('status --why', run_dir)}", flush=True)
                return 0
    except NobodyError:
        print(f"no supervisor is running for the run directory {run_dir}", file=sys.stderr)
    return DOWN


def _absolute(path: str) -> str:
    """The service has a working directory of its own."""
    return str(Path(path).expanduser().absolute()) if path else ""


def _show(answer: Answer) -> None:
    if not answer.status:
        print(answer.text, flush=True)
        for reason in answer.reasons:
            print(f"  {reason}", flush=True)
        return
    print(f"strata-supervisor: {answer.text}", file=sys.stderr)
    for reason in answer.reasons:
        print(f"  {reason}", file=sys.stderr)
