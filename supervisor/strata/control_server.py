"""The control socket: commands that change a running service, from its own user or root alone.

On the event loop: a supervisor that hangs takes no commands. One that is hung can be ended with
signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from strata.control_protocol import CONTROL_NAME, LINE_BYTES_MAX, Answer, Command
from strata.errors import RunDirError, StrataError
from strata.observe.status_socket import socket_path

READ_TIMEOUT_S = 5.0
DENIED = "denied"
UNKNOWN = "unknown_command"

log = logging.getLogger("strata.service")
_decoder = msgspec.json.Decoder(Command)

Handler = Callable[[Command], AsyncIterator[Answer]]


async def serve_control(run_dir: Path, handler: Handler) -> asyncio.Server:
    """Listens in `run_dir`; `handler` yields the answers of each command. Raises RunDirError."""
    path = socket_path(run_dir, CONTROL_NAME)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _converse(reader, writer, handler)
        except (OSError, TimeoutError):
            pass  # who asked is gone; what was begun goes on by its own
        finally:
            writer.close()

    path.unlink(missing_ok=True)  # of a former supervisor; the lock says that it is gone
    try:
        server = await asyncio.start_unix_server(answer, path, limit=LINE_BYTES_MAX)
        path.chmod(0o600)
    except OSError as error:
        raise RunDirError(f"{path}: {error.strerror}") from None
    return server


async def close_control(server: asyncio.Server, run_dir: Path) -> None:
    server.close()
    with contextlib.suppress(OSError):
        (run_dir / CONTROL_NAME).unlink()


async def _converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler
) -> None:
    async def say(answer: Answer) -> None:
        writer.write(msgspec.json.encode(answer) + b"\n")
        async with asyncio.timeout(READ_TIMEOUT_S):
            await writer.drain()

    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            line = await reader.readline()  # in any case, or what is said could not be read
        uid = peer_uid(writer.get_extra_info("socket"))
        if uid not in (0, os.getuid()):
            log.warning("a command of user %s on the control socket is refused", uid)
            text = f"user {uid} may not command this service; its user {os.getuid()} or root may"
            await say(Answer(text=text, code=DENIED, status=77, is_final=True))
            return
        command = _decoder.decode(line)
    except (ValueError, msgspec.DecodeError) as error:
        text = f"not a command: {error}"
        await say(Answer(text=text, code=UNKNOWN, status=78, is_final=True))
        return
    try:
        async with contextlib.aclosing(handler(command)) as answers:  # type: ignore[type-var]
            async for answer in answers:
                await say(msgspec.structs.replace(answer, pid=os.getpid()))
    except StrataError as error:
        await say(Answer(text=str(error), status=error.exit_code, is_final=True))


def peer_uid(peer: socket.socket) -> int:
    """User of the process at the other end, as the kernel says; -1 where it does not."""
    if hasattr(socket, "SO_PEERCRED"):
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", raw)[1])
    local, peercred = 0, 1  # SOL_LOCAL and LOCAL_PEERCRED of macOS; struct xucred
    try:
        raw = peer.getsockopt(local, peercred, struct.calcsize("2I"))
    except OSError:
        return -1
    return int(struct.unpack("2I", raw[: struct.calcsize("2I")])[1])
