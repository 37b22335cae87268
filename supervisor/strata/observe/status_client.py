"""The reader's side of the status: asks the supervisor of a run directory, or reads what it left.

Used by commands that must be quick: nothing here needs an event loop.
"""

from __future__ import annotations

import enum
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from strata.errors import RunDirError
from strata.observe.status import Status

SOCKET_NAME = "status.sock"
STATE_NAME = "state.json"
ASK_TIMEOUT_S = 0.2  # a supervisor that lives answers in a tenth of it, also with a busy loop

_decoder = msgspec.json.Decoder(Status)


class Silence(enum.Enum):
    """Why there is no answer."""

    NOBODY = "nobody"  # nothing listens
    NO_ANSWER = "no answer"  # somebody listens and says nothing


@dataclass(frozen=True, slots=True)
class LeftState:
    """The record that a supervisor wrote last."""

    status: Status
    age_s: float


def ask_status(run_dir: Path, timeout_s: float = ASK_TIMEOUT_S) -> Status | Silence:
    """The status of the supervisor that serves `run_dir`; takes up to `timeout_s`.

    Raises RunDirError for an answer that is not a status.
    """
    until_s = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        data = b""
        try:
            client.settimeout(timeout_s)
            client.connect(str(run_dir / SOCKET_NAME))
            while chunk := client.recv(1 << 16):
                data += chunk
                client.settimeout(max(until_s - time.monotonic(), 0.001))
        except (TimeoutError, BlockingIOError):  # its backlog is full, or it does not write
            return Silence.NO_ANSWER
        except OSError:
            return Silence.NOBODY
    if not data:
        return Silence.NO_ANSWER
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise RunDirError(f"{run_dir / SOCKET_NAME}: not a status: {error}") from None


def read_state(run_dir: Path) -> LeftState | None:
    """The last record that a supervisor left in `run_dir`; None where there is none that can be
    understood."""
    path = run_dir / STATE_NAME
    try:
        with path.open("rb") as file:
            age_s = time.time() - path.stat().st_mtime
            return LeftState(_decoder.decode(file.read()), max(age_s, 0.0))
    except (OSError, msgspec.DecodeError):
        return None
