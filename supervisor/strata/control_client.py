"""Asks the supervisor of a run directory to do something, and waits for its end where wanted.
Needs no event loop."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from strata.control_protocol import CONTROL_NAME, Answer, Command
from strata.engines import stale
from strata.errors import RunDirError
from strata.observe.words import command_line

CONNECT_TIMEOUT_S = 5.0
LOOK_S = 0.05

_decoder = msgspec.json.Decoder(Answer)


class NobodyError(Exception):
    """No supervisor listens in the run directory."""


def ask(run_dir: Path, command: Command, *, silence_s: float | None = None) -> Iterator[Answer]:
    """Yields answers as they come, the final one last; `silence_s` bounds the wait for each.

    Raises NobodyError, and RunDirError where it does not answer or ends without a final answer.
    """
    path = run_dir / CONTROL_NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(CONNECT_TIMEOUT_S)
        try:
            client.connect(str(path))
        except TimeoutError:
            raise RunDirError(f"{path}: the supervisor does not answer") from None
        except OSError as error:
            raise NobodyError(str(error)) from None
        try:
            client.sendall(msgspec.json.encode(command) + b"\n")
            client.settimeout(silence_s)
            with client.makefile("rb") as lines:
                for line in lines:
                    answer = _decoder.decode(line)
                    yield answer
                    if answer.is_final:
                        return
        except TimeoutError:
            raise RunDirError(
                f"{path}: no answer for {silence_s:g} s; see {command_line('status', run_dir)}"
            ) from None
        except OSError as error:
            raise RunDirError(f"{path}: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise RunDirError(f"{path}: not an answer: {error}") from None
    raise RunDirError(f"{path}: the supervisor ended without an answer")


def wait_gone(pid: int, began: str | None) -> None:
    """Until the process with that start time has ended. `began` None: it has already."""
    if began is None:
        return
    try:
        watch = os.pidfd_open(pid)
    except (AttributeError, OSError):
        while stale.start_time(pid) == began:
            time.sleep(LOOK_S)
        return
    try:
        if stale.start_time(pid) == began:
            poll = select.poll()
            poll.register(watch, select.POLLIN)
            poll.poll()
    finally:
        os.close(watch)
