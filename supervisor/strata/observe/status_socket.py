"""The status socket and the state file of a run directory, and how the status command reads them.

One connection, one answer: the server writes the status as one JSON object and closes. The socket
is for the owner of the run directory only (mode 0600). state.json is the same record, replaced as
a whole, for when nobody answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from strata.errors import RunDirError
from strata.observe.status import Status

SOCKET_NAME = "status.sock"
STATE_NAME = "state.json"
SOCKET_PATH_BYTES = 107  # what a unix socket's address holds
READ_TIMEOUT_S = 5.0
STATE_MAX_AGE_S = 5.0

_decoder = msgspec.json.Decoder(Status)


async def serve_status(run_dir: Path, source: Callable[[], Status]) -> asyncio.Server:
    """Listens in `run_dir`. Raises RunDirError."""
    path = run_dir / SOCKET_NAME
    if len(bytes(path)) > SOCKET_PATH_BYTES:
        raise RunDirError(
            f"run directory {run_dir}: its path is too long for a unix socket"
            f" ({len(bytes(path))} bytes with {SOCKET_NAME}, at most {SOCKET_PATH_BYTES})"
        )

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(READ_TIMEOUT_S):
                writer.write(msgspec.json.encode(source()))
                await writer.drain()
        writer.close()

    path.unlink(missing_ok=True)  # of a former supervisor; the lock says that it is gone
    try:
        server = await asyncio.start_unix_server(answer, path)
        path.chmod(0o600)
    except OSError as error:
        raise RunDirError(f"{path}: {error.strerror}") from None
    return server


def read_status(run_dir: Path) -> Status | None:
    """The status of the supervisor that serves `run_dir`; None where none answers.

    Raises RunDirError for an answer that is not a status.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(READ_TIMEOUT_S)
        try:
            client.connect(str(run_dir / SOCKET_NAME))
            data = b""
            while chunk := client.recv(1 << 16):
                data += chunk
        except OSError:
            return None
    if not data:
        return None
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise RunDirError(f"{run_dir / SOCKET_NAME}: not a status: {error}") from None


def read_state(run_dir: Path) -> Status | None:
    """The last state a supervisor left in `run_dir`, or None."""
    try:
        return _decoder.decode((run_dir / STATE_NAME).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def write_state(run_dir: Path, status: Status) -> None:
    """Replaces the state file as a whole."""
    partial = run_dir / (STATE_NAME + ".new")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(status), indent=2))
    partial.replace(run_dir / STATE_NAME)


class StateWriter:
    """Keeps state.json up to date: soon after a change, and now and then without one."""

    def __init__(self, run_dir: Path, source: Callable[[], Status]) -> None:
        self._run_dir = run_dir
        self._source = source
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
        with contextlib.suppress(OSError):
            await asyncio.to_thread(write_state, self._run_dir, self._source())
