"""Both ends of the connection as state machines without I/O: bytes in, messages out; messages
in, bytes out.

Owns framing, decoding, the legal order (order.py), version negotiation and the limits in force.
Does not own the meaning of a message: which request exists and what it may ask for is judged by
the supervisor's scheduler and the engine's. A peer that raised ProtocolFault is dead: it raises
the same fault from then on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import msgspec

from strata_protocol import messages as m
from strata_protocol.codec import (
    ToEngineMessage,
    ToSupervisorMessage,
    decode_to_engine,
    decode_to_supervisor,
)
from strata_protocol.errors import FaultCode, ProtocolFault, SendError
from strata_protocol.framing import (
    DATA_FLAG,
    HEADER_BYTES,
    IGNORABLE,
    Frame,
    FrameDecoder,
    FrameEncoder,
    limits_problem,
)
from strata_protocol.order import Phase, legal, next_phase

In = TypeVar("In", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)


def negotiate(hello: m.Hello, low: int = m.PROTO_MIN, high: int = m.PROTO_MAX) -> int:
    """The highest version that both ends speak. Raises ProtocolFault (mismatch) for none."""
    best = min(hello.proto_max, high)
    if best < max(hello.proto_min, low):
        text = (
            f"the engine speaks protocol {hello.proto_min}..{hello.proto_max}, "
            f"the supervisor {low}..{high}; install both from one release"
        )
        raise ProtocolFault(FaultCode.MISMATCH, text)
    return best


class Peer(ABC, Generic[In, Out]):
    """What both ends share. `phase` is where the connection stands (order.py)."""

    def __init__(self) -> None:
        self.phase = Phase.HELLO
        self.proto = 0  # version to speak; 0 until OFFER
        self.limits = m.Limits()  # in force; the defaults until READY
        self.fault: ProtocolFault | None = None  # why this peer is dead
        self._offered = m.Limits()
        self._decoder = FrameDecoder(self.limits)
        self._encoder = FrameEncoder(self.limits)

    def feed(self, data: bytes | bytearray | memoryview) -> list[In]:
        """The messages that `data` completes, in order.

        Raises ProtocolFault at the first violation, with the messages before it in `before`.
        """
        if self.fault is not None:
            raise self.fault
        received: list[In] = []
        try:
            self._decoder.append(data)
            while (frame := self._decoder.next()) is not None:
                message = self._accept(frame)
                if message is not None:
                    received.append(message)
        except ProtocolFault as fault:
            fault.before = tuple(received)
            self.fault = fault
            raise
        return received

    def finish(self) -> None:
        """The stream ended. Raises ProtocolFault (truncated) if that was inside a frame."""
        if self.fault is not None:
            raise self.fault
        try:
            self._decoder.finish()
        except ProtocolFault as fault:
            self.fault = fault
            raise

    def send(self, message: Out) -> bytes:
        """The frame of `message`.

        Raises SendError (order, length, decode) for what the phase, the limits or the schema do
        not allow; nothing has changed then. Raises the peer's fault where it is dead.
        """
        if self.fault is not None:
            raise self.fault
        after = next_phase(self.phase, type(message))
        if after is None:
            raise SendError(FaultCode.ORDER, self._not_legal(message), message)
        self._check_sent(message)
        try:
            frame = self._encoder.encode(message)
        except (ValueError, OverflowError, TypeError) as error:
            raise SendError(FaultCode.DECODE, f"{_tag(message)}: {error}", message) from error
        self._check_frame(message, frame)
        self.phase = after
        self._note(message)
        return frame

    @abstractmethod
    def _decode(self, payload: bytes) -> In: ...

    @abstractmethod
    def _check_received(self, message: In) -> None:
        """Raises ProtocolFault for a message whose content this end cannot go on with."""

    def _check_sent(self, message: Out) -> None:
        """Raises SendError for a message whose content the other end could not accept."""
        match message:
            case m.Offer(limits=limits) if problem := limits_problem(limits):
                raise SendError(FaultCode.DECODE, f"OFFER.limits: {problem}", message)
            case m.Ready() if problem := self._ready_problem(message):
                raise SendError(FaultCode.DECODE, problem, message)

    def _check_frame(self, message: Out, frame: bytes) -> None:
        """Raises SendError where `frame` is not what its receiver accepts."""

    def _accept(self, frame: Frame) -> In | None:
        try:
            message = self._decode(frame.payload)
        except ProtocolFault as fault:
            if fault.code is FaultCode.UNKNOWN_TYPE and frame.flags & IGNORABLE:
                return None
            raise
        if (type(message) in m.DATA) != bool(frame.flags & DATA_FLAG):
            text = f"{_tag(message)}: the data flag disagrees with the message"
            raise ProtocolFault(FaultCode.FLAGS, text)
        after = next_phase(self.phase, type(message))
        if after is None:
            raise ProtocolFault(FaultCode.ORDER, self._not_legal(message))
        self._check_received(message)
        self.phase = after
        self._note(message)
        return message

    def _note(self, message: msgspec.Struct) -> None:
        """What both ends agree on once `message` has passed, whichever way."""
        match message:
            case m.Offer(proto=proto, limits=limits):
                self.proto = proto
                self._offered = limits
            case m.Ready(limits=limits):
                self.limits = self._decoder.limits = self._encoder.limits = limits

    def _ready_problem(self, ready: m.Ready) -> str | None:
        if problem := limits_problem(ready.limits):
            return f"READY.limits: {problem}"
        for name in ("control_bytes", "data_bytes", "absolute_bytes"):
            got, most = getattr(ready.limits, name), getattr(self._offered, name)
            if got > most:
                return f"READY.limits: {name} is {got}, OFFER allowed {most}"
        return None

    def _not_legal(self, message: msgspec.Struct) -> str:
        allowed = ", ".join(legal(self.phase))
        return f"{_tag(message)} is not legal in phase {self.phase.value} (legal: {allowed})"


class SupervisorPeer(Peer[ToSupervisorMessage, ToEngineMessage]):
    """The supervisor's end: reads the event pipe, writes the command pipe."""

    def _decode(self, payload: bytes) -> ToSupervisorMessage:
        return decode_to_supervisor(payload)

    def _check_frame(self, message: ToEngineMessage, frame: bytes) -> None:
        # A value out of range would be a fault over there and end the engine, with every request
        # in it. msgspec checks ranges when it decodes, so our own decoder is the judge.
        try:
            decode_to_engine(memoryview(frame)[HEADER_BYTES:])
        except ProtocolFault as fault:
            raise SendError(fault.code, fault.text, message) from fault

    def _check_received(self, message: ToSupervisorMessage) -> None:
        match message:
            case m.Hello():
                negotiate(message)
            case m.Ready() if problem := self._ready_problem(message):
                raise ProtocolFault(FaultCode.DECODE, problem)


class EnginePeer(Peer[ToEngineMessage, ToSupervisorMessage]):
    """The engine's end, for engines written in Python (the scripted one of the tests)."""

    def _decode(self, payload: bytes) -> ToEngineMessage:
        return decode_to_engine(payload)

    def _check_received(self, message: ToEngineMessage) -> None:
        match message:
            case m.Offer(proto=proto) if not m.PROTO_MIN <= proto <= m.PROTO_MAX:
                text = (
                    f"the supervisor chose protocol {proto}; "
                    f"the engine speaks {m.PROTO_MIN}..{m.PROTO_MAX}"
                )
                raise ProtocolFault(FaultCode.MISMATCH, text)
            case m.Offer(limits=limits) if problem := limits_problem(limits):
                raise ProtocolFault(FaultCode.DECODE, f"OFFER.limits: {problem}")


def _tag(message: msgspec.Struct) -> str:
    return str(message.__struct_config__.tag)
