"""`drain`: ends the service of a run directory; what it has accepted finishes first.

Exit status: 0 it drains, with `--wait` it has ended; 4 nothing runs; 73 it does not answer; 77 not
its user.
"""

from __future__ import annotations

import sys
from pathlib import Path

from strata.config_source import Settings
from strata.control_client import NobodyError, ask, wait_gone
from strata.control_protocol import DrainCommand
from strata.engines import stale
from strata.errors import RunDirError

DOWN = 4
ANSWER_S = 5.0


def drain(settings: Settings, *, wait: bool) -> int:
    """Returns the exit status. Raises RunDirError."""
    run_dir = Path(settings.config.run_dir).expanduser().absolute()
    try:
        answer = next(ask(run_dir, DrainCommand(), silence_s=ANSWER_S))
    except NobodyError:
        print(f"no supervisor is running for the run directory {run_dir}", file=sys.stderr)
        return DOWN
    except StopIteration:
        raise RunDirError(f"run directory {run_dir}: the supervisor gave no answer") from None
    if answer.status:
        print(f"strata-supervisor: {answer.text}", file=sys.stderr)
        return answer.status
    print(answer.text, flush=True)
    if wait:
        wait_gone(answer.pid, stale.start_time(answer.pid))
        print("the service has ended", flush=True)
    return 0
