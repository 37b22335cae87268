"""The two protocol pipes of one engine: frames in from the event pipe, frames out to the command
pipe. Owns the peer; decides nothing about requests or restarts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol, cast

from strata_protocol.codec import ToEngineMessage, ToSupervisorMessage
from strata_protocol.errors import ProtocolFault
from strata_protocol.messages import Resume, Submit
from strata_protocol.streams import split_prompt

from strata.engines.frame_ring import RecordedPeer

WRITE_HIGH_BYTES = 256 * 1024  # unsent command bytes above which new requests wait


class ClientListener(Protocol):
    """Called on the event loop, in the order of the bytes."""

    def on_message(self, message: ToSupervisorMessage) -> None: ...

    def on_fault(self, fault: ProtocolFault) -> None: ...

    def on_end(self) -> None:
        """The event pipe ended. Says nothing about the process."""
        ...

    def on_writable(self, is_writable: bool) -> None: ...


class _EventPipe(asyncio.Protocol):
    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.take_end()


class _CommandPipe(asyncio.BaseProtocol):
    def __init__(self, on_writable: Callable[[bool], None]) -> None:
        self._on_writable = on_writable

    def pause_writing(self) -> None:
        self._on_writable(False)

    def resume_writing(self) -> None:
        self._on_writable(True)


class EngineClient:
    """`connect`, then `send`; what comes goes to the listener. `close` gives the pipes back."""

    def __init__(self, listener: ClientListener) -> None:
        self._listener = listener
        self._peer = RecordedPeer()
        self.frames = self._peer.frames
        self._is_dead = False  # a fault was reported; nothing more is read
        self._command: asyncio.WriteTransport | None = None
        self._event: asyncio.ReadTransport | None = None
        self.ended = asyncio.Event()

    async def connect(self, command_fd: int, event_fd: int) -> None:
        """Takes both descriptors over."""
        loop = asyncio.get_running_loop()
        # The command pipe first: the first event may be there already and wants an answer.
        self._command, _ = await loop.connect_write_pipe(
            lambda: _CommandPipe(self._listener.on_writable), os.fdopen(command_fd, "wb", 0)
        )
        self._command.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._event, _ = await loop.connect_read_pipe(
            lambda: _EventPipe(self), os.fdopen(event_fd, "rb", 0)
        )

    def send(self, message: ToEngineMessage) -> None:
        """Queues a message; a prompt too long for one frame goes in several.

        Raises SendError where the protocol does not allow it; nothing was queued then. Ignored
        after a fault or the end of the pipe.
        """
        command = self._command
        if command is None:
            raise RuntimeError("send before connect")
        if self._is_dead or command.is_closing():
            return
        if isinstance(message, Submit | Resume):
            frames = [self._peer.send(part) for part in split_prompt(message, self._peer.limits)]
            command.writelines(frames)
        else:
            command.write(self._peer.send(message))

    def take(self, data: bytes) -> None:
        if self._is_dead:
            return
        try:
            messages = self._peer.feed(data)
        except ProtocolFault as fault:
            self._is_dead = True
            for message in fault.before:
                self._listener.on_message(cast("ToSupervisorMessage", message))
            self._listener.on_fault(fault)
            return
        for message in messages:
            self._listener.on_message(message)

    def take_end(self) -> None:
        if not self._is_dead:
            try:
                self._peer.finish()
            except ProtocolFault as fault:
                self._is_dead = True
                self._listener.on_fault(fault)
        self.ended.set()
        self._listener.on_end()

    def close(self) -> None:
        """Closes both pipes. The engine ends itself when it sees the command pipe's end."""
        for transport in (self._command, self._event):
            if transport is not None:
                transport.close()
