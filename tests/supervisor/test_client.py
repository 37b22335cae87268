"""The client on plain pipes, with the engine's end in the test's hands."""

from __future__ import annotations

import asyncio
import os

import pytest
from strata.engines.client import EngineClient
from strata_protocol.codec import ToSupervisorMessage
from strata_protocol.errors import ProtocolFault
from strata_protocol.messages import Hello, Offer, WantedModes
from strata_protocol.peer import EnginePeer

HELLO = Hello(proto_min=1, proto_max=1, build="b", backend="cpu", device="d", pid=1)
OFFER = Offer(proto=1, run_id="r", epoch=1, model="m", want=WantedModes())


class Listener:
    def __init__(self) -> None:
        self.client = EngineClient(self)
        self.messages: list[ToSupervisorMessage] = []
        self.faults: list[ProtocolFault] = []

    def on_message(self, message: ToSupervisorMessage) -> None:
        self.messages.append(message)
        self.client.send(OFFER)

    def on_fault(self, fault: ProtocolFault) -> None:
        self.faults.append(fault)

    def on_end(self) -> None:
        pass

    def on_writable(self, is_writable: bool) -> None:
        pass


class Pipes:
    def __init__(self) -> None:
        self.command_read, self.command_write = os.pipe()
        self.event_read, self.event_write = os.pipe()


async def test_an_engine_that_speaks_before_we_listen_is_answered() -> None:
    pipes, listener, engine = Pipes(), Listener(), EnginePeer()
    os.write(pipes.event_write, engine.send(HELLO))
    await listener.client.connect(pipes.command_write, pipes.event_read)
    os.close(pipes.event_write)
    async with asyncio.timeout(5):
        await listener.client.ended.wait()
    assert listener.messages == [HELLO]
    assert engine.feed(os.read(pipes.command_read, 1 << 16)) == [OFFER]
    listener.client.close()
    os.close(pipes.command_read)


async def test_messages_before_a_fault_count_and_nothing_after_it() -> None:
    pipes, listener, engine = Pipes(), Listener(), EnginePeer()
    hello = engine.send(HELLO)
    await listener.client.connect(pipes.command_write, pipes.event_read)
    os.write(pipes.event_write, hello + b"garbage that is no frame" + hello)
    os.close(pipes.event_write)
    async with asyncio.timeout(5):
        await listener.client.ended.wait()
    assert listener.messages == [HELLO]
    assert [f.code.value for f in listener.faults] == ["proto.magic"]
    listener.client.close()
    os.close(pipes.command_read)


async def test_end_inside_a_frame_is_a_fault() -> None:
    pipes, listener, engine = Pipes(), Listener(), EnginePeer()
    await listener.client.connect(pipes.command_write, pipes.event_read)
    os.write(pipes.event_write, engine.send(HELLO)[:-1])
    os.close(pipes.event_write)
    async with asyncio.timeout(5):
        await listener.client.ended.wait()
    assert [f.code.value for f in listener.faults] == ["proto.truncated"]
    listener.client.close()
    os.close(pipes.command_read)


def test_sending_before_connecting_is_a_bug() -> None:
    with pytest.raises(RuntimeError):
        Listener().client.send(OFFER)
