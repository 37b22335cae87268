"""The status socket and the state file of a run directory, the supervisor's side.

One connection, one answer: the server writes the status as one JSON object and closes. It runs in
a thread of its own, so that it answers also where the event loop hangs: then with the last record
and how old that is. The socket is for the owner of the run directory only (mode 0600). state.json
is the same record, replaced as a whole, for when nobody answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from strata.errors import RunDirError
from strata.observe.decision_file import DecisionFile
from strata.observe.status import Status
from strata.observe.status_client import SOCKET_NAME, STATE_NAME

SOCKET_PATH_BYTES = 107  # what a unix socket's address holds
WRITE_TIMEOUT_S = 1.0  # for a reader that does not read; others wait meanwhile
LOOP_WAIT_S = 0.05  # how long an answer waits for the event loop
LOOP_HUNG_S = 2.0  # a loop that stands still for that long serves nobody
BEAT_S = 0.25
BACKLOG = 64
STATE_MAX_AGE_S = 5.0

log = logging.getLogger("strata.service")


def socket_path(run_dir: Path, name: str) -> Path:
    """Raises RunDirError for a run directory whose path a socket's address cannot hold."""
    path = run_dir / name
    if len(bytes(path)) > SOCKET_PATH_BYTES:
        raise RunDirError(
            f"run directory {run_dir}: its path is too long for a unix socket"
            f" ({len(bytes(path))} bytes with {name}, at most {SOCKET_PATH_BYTES})"
        )
    return path


class StatusServer:
    """Made on the event loop. `source` is called there and nowhere else.

    The loop writes `_latest` and `_beat_s`, the thread reads them; each is one reference.
    """

    def __init__(self, run_dir: Path, source: Callable[[], Status]) -> None:
        """Listens. Raises RunDirError."""
        self._source = source
        self._path = socket_path(run_dir, SOCKET_NAME)
        self._loop = asyncio.get_running_loop()
        self._beat_s = self._made_s = time.monotonic()
        self._latest = source()
        self._beater: asyncio.TimerHandle | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Of a former supervisor; the lock says that it is gone.
            self._path.unlink(missing_ok=True)
            self._socket.bind(str(self._path))
            self._path.chmod(0o600)
            self._socket.listen(BACKLOG)
        except OSError as error:
            self._socket.close()
            raise RunDirError(f"{self._path}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._serve, name="status", daemon=True)
        self._beat()
        self._thread.start()

    def close(self) -> None:
        """Stops listening and removes the socket."""
        if self._beater is not None:
            self._beater.cancel()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._socket.close()
        # The next supervisor removes what stays; a run directory that is gone has none.
        with contextlib.suppress(OSError):
            self._path.unlink()

    # --- on the loop

    def note(self, status: Status) -> None:
        """A record that was made for another reason."""
        self._latest, self._made_s = status, time.monotonic()

    def _beat(self) -> None:
        self._beat_s = time.monotonic()
        self._beater = self._loop.call_later(BEAT_S, self._beat)

    def _answer_with(self, made: threading.Event) -> None:
        self._beat_s = time.monotonic()
        self.note(self._source())
        made.set()

    # --- in the thread

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return  # closed
            with client, contextlib.suppress(OSError):
                client.settimeout(WRITE_TIMEOUT_S)
                client.sendall(msgspec.json.encode(self._now()))

    def _now(self) -> Status:
        made = threading.Event()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the last record it is
            self._loop.call_soon_threadsafe(self._answer_with, made)
            if made.wait(LOOP_WAIT_S):
                return self._latest
        return aged(self._latest, self._made_s, self._beat_s, time.monotonic())


def aged(status: Status, made_s: float, beat_s: float, now: float) -> Status:
    """A record made at `made_s`, for a loop that moved last at `beat_s`."""
    still_s = now - beat_s
    supervisor = msgspec.structs.replace(
        status.supervisor,
        uptime_s=status.supervisor.uptime_s + now - made_s,
        loop_still_s=still_s,
        record_age_s=now - made_s,
    )
    status = msgspec.structs.replace(status, supervisor=supervisor)
    if still_s < LOOP_HUNG_S:
        return status
    reason = (
        f"the supervisor's event loop has not moved for {still_s:.1f} s; before: {status.state}"
    )
    return msgspec.structs.replace(status, state="hung", reason=reason)


def write_state(run_dir: Path, status: Status) -> None:
    """Replaces the state file as a whole."""
    partial = run_dir / (STATE_NAME + ".new")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(status), indent=2))
    partial.replace(run_dir / STATE_NAME)


class StateWriter:
    """Keeps state.json up to date: soon after a change, and now and then without one."""

    def __init__(
        self,
        run_dir: Path,
        source: Callable[[], Status],
        note: Callable[[Status], None] | None = None,
        decisions: DecisionFile | None = None,
    ) -> None:
        """`note` is told each record; `decisions` is written along."""
        self._run_dir = run_dir
        self._decisions = decisions
        self._source = source
        self._note = note
        self._changed = asyncio.Event()

    def on_changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Writes until cancelled, in a thread. A full disk costs the file, not the service."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STATE_MAX_AGE_S):
                    await self._changed.wait()
            self._changed.clear()
            await self.write()
            await asyncio.sleep(0.2)  # many changes, few writes

    async def write(self) -> None:
        status = self._source()
        if self._note is not None:
            self._note(status)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(write_state, self._run_dir, status)
        if self._decisions is not None:
            await self._decisions.write()
