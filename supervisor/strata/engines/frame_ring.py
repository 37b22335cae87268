"""The last frames of one engine, as headers: direction, message type, length and time.

Never holds a payload: what a request says is in there. A frame costs one append to a ring.
"""

from __future__ import annotations

import time
from collections import deque

import msgspec
from strata_protocol.codec import ToEngineMessage, ToSupervisorMessage
from strata_protocol.errors import ProtocolFault
from strata_protocol.framing import HEADER_BYTES
from strata_protocol.peer import SupervisorPeer

FRAMES_KEPT = 200  # in each direction, so that tokens do not push the commands out


class FrameNote(msgspec.Struct, frozen=True):
    """One frame that passed."""

    at_s: float  # monotonic clock
    to_engine: bool
    type: str  # the message's tag, or "?" for one that could not be decoded
    bytes: int  # of the payload


class FrameRing:
    """Written on the event loop, read there too."""

    __slots__ = ("_received", "_sent")

    def __init__(self) -> None:
        self._sent: deque[FrameNote] = deque(maxlen=FRAMES_KEPT)
        self._received: deque[FrameNote] = deque(maxlen=FRAMES_KEPT)

    def sent(self, tag: str, count: int) -> None:
        self._sent.append(FrameNote(time.monotonic(), True, tag, count))

    def received(self, tag: str, count: int) -> None:
        self._received.append(FrameNote(time.monotonic(), False, tag, count))

    def notes(self) -> tuple[FrameNote, ...]:
        """Both directions, oldest first."""
        return tuple(sorted((*self._sent, *self._received), key=lambda note: note.at_s))


class RecordedPeer(SupervisorPeer):
    """The supervisor's peer, which notes each frame in `frames`."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = FrameRing()

    def send(self, message: ToEngineMessage) -> bytes:
        frame = super().send(message)
        self.frames.sent(_tag(message), len(frame) - HEADER_BYTES)
        return frame

    def _decode(self, payload: bytes) -> ToSupervisorMessage:
        try:
            message = super()._decode(payload)
        except ProtocolFault:
            self.frames.received("?", len(payload))
            raise
        self.frames.received(_tag(message), len(payload))
        return message


def _tag(message: msgspec.Struct) -> str:
    return str(message.__struct_config__.tag)
