"""Asks an engine what it could run, without running it: the handshake of `serve`, up to CAPS.

Each question is a process of its own, which ends with the answer and never loads weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from strata_protocol.codec import ToSupervisorMessage
from strata_protocol.errors import ProtocolFault
from strata_protocol.messages import Caps, Hello, Offer, Refuse
from strata_protocol.peer import negotiate

from strata.engines.client import EngineClient
from strata.engines.engine_log import EngineLog
from strata.engines.exits import UNUSABLE, Intent, status_text
from strata.engines.handshake import HELLO_STALL_S, STALL_S, caps_fault
from strata.engines.process import EngineProcess, Launch, launch
from strata.errors import EngineMissingError, EngineUnusableError, StrataError

Hidden = Callable[[Hello], Sequence[str]]  # modes that the engine must not offer


@dataclass(frozen=True, slots=True)
class Answer:
    hello: Hello
    said: Caps | Refuse


class _Listener:
    """Collects what the engine says until CAPS or REFUSE."""

    def __init__(self, offer: Offer, hidden: Hidden) -> None:
        self._offer = offer
        self._hidden = hidden
        self.client: EngineClient | None = None
        self.hello: Hello | None = None
        self.done: asyncio.Future[Caps | Refuse] = asyncio.get_running_loop().create_future()

    def on_message(self, message: ToSupervisorMessage) -> None:
        match message:
            case Hello() if self.client is not None:
                self.hello = message
                offer = msgspec.structs.replace(
                    self._offer, proto=negotiate(message), quarantine=list(self._hidden(message))
                )
                self.client.send(offer)
            case Caps() if caps_fault(message) and not self.done.done():
                text = f"the engine broke the protocol: {caps_fault(message)}"
                self.done.set_exception(StrataError(text))
            case Caps() | Refuse() if not self.done.done():
                self.done.set_result(message)
            case _:
                pass

    def on_fault(self, fault: ProtocolFault) -> None:
        if not self.done.done():
            self.done.set_exception(StrataError(f"the engine broke the protocol: {fault}"))

    def on_end(self) -> None:
        pass

    def on_writable(self, is_writable: bool) -> None:
        pass


async def ask(spec: Launch, offer: Offer, hidden: Hidden) -> Answer:
    """One question to one engine process: `offer` with the quarantine list that `hidden` gives.
    Raises EngineUnusableError for a command line or a processor that this engine cannot use,
    EngineMissingError, and StrataError where it fails."""
    try:
        process = launch(spec)
    except OSError as error:
        raise EngineMissingError(f"{spec.executable} cannot be started: {error.strerror}") from None
    answer = _Listener(offer, hidden)
    client = answer.client = EngineClient(answer)
    with TemporaryDirectory(prefix="strata-plan-") as folder:
        output = EngineLog(Path(folder), 0)
        log_pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: output, os.fdopen(process.log_fd, "rb", 0)
        )
        try:
            await client.connect(process.command_fd, process.event_fd)
            found = await _first_of(answer, process)
        finally:
            await process.end(Intent.STOP, grace_s=1.0)
            client.close()
            log_pipe.close()
    match found:
        case Caps() | Refuse() if answer.hello is not None:
            return Answer(answer.hello, found)
        case _:
            last = f": {output.lines[-1]}" if output.lines else ""
            if process.returncode in UNUSABLE and output.lines:
                raise EngineUnusableError(output.lines[-1], process.returncode)
            raise StrataError(f"the engine {found}{last}")


async def _first_of(answer: _Listener, process: EngineProcess) -> Caps | Refuse | str:
    """The answer, or what became of the engine instead."""
    async with asyncio.TaskGroup() as tasks:
        exited = tasks.create_task(process.wait(), name="engine exit")
        waits: set[asyncio.Future[Any]] = {exited, answer.done}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HELLO_STALL_S + STALL_S):
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done.done():
                    await asyncio.wait({answer.done}, timeout=0.5)  # said before it ended
        exited.cancel()
    if answer.done.done():
        return answer.done.result()
    if process.returncode is not None:
        return status_text(process.returncode)
    return f"said nothing for {HELLO_STALL_S + STALL_S:.0f} s"
