"""Frames: a 12-byte little-endian header, then one MessagePack payload.

    u16 magic 0x5354 | u8 version | u8 flags | u32 payload length | u32 crc32(header[0:8] + payload)

Owns framing and its limits, without I/O; knows nothing of what a payload means beyond its class
(control or data). A length is judged when the header arrives, before room is made for the payload.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import msgspec

from strata_protocol.errors import FaultCode, ProtocolFault, SendError
from strata_protocol.messages import DATA, Limits

MAGIC: Final = 0x5354
FRAME_VERSION: Final = 1
HEADER_BYTES: Final = 12
CONTROL_BYTES_MIN: Final = 4096  # smallest limit two ends may agree on
ABSOLUTE_BYTES: Final = 16 * 1024 * 1024  # no agreement goes beyond

IGNORABLE: Final = 0x01  # a receiver that does not know the message skips the frame
DATA_FLAG: Final = 0x02  # the payload may reach Limits.data_bytes
FLAGS_KNOWN: Final = IGNORABLE | DATA_FLAG

_HEAD = struct.Struct("<HBBI")
_HEADER = struct.Struct("<HBBII")
_CRC = struct.Struct("<I")


class Frame(NamedTuple):
    flags: int
    payload: bytes


def limits_problem(limits: Limits) -> str | None:
    """Why two ends cannot agree on `limits`, or None where they can."""
    if limits.control_bytes < CONTROL_BYTES_MIN:
        return f"control_bytes must be at least {CONTROL_BYTES_MIN}"
    if limits.data_bytes < limits.control_bytes:
        return "data_bytes must not be below control_bytes"
    if limits.absolute_bytes < limits.data_bytes:
        return "absolute_bytes must not be below data_bytes"
    if limits.absolute_bytes > ABSOLUTE_BYTES:
        return f"absolute_bytes must be at most {ABSOLUTE_BYTES}"
    return None


class FrameDecoder:
    """Bytes in, frames out. Holds at most one unfinished frame and what was appended last.

    After a ProtocolFault the decoder must not be used again: the stream has lost its place.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()  # in force for the next header
        self._buffer = bytearray()
        self._begin = 0  # start of the unread part

    def append(self, data: bytes | bytearray | memoryview) -> None:
        if self._begin:
            del self._buffer[: self._begin]  # moves the start, not the bytes
            self._begin = 0
        self._buffer += data

    def next(self) -> Frame | None:
        """The next whole frame, or None until more bytes arrive. Raises ProtocolFault."""
        buffer, begin = self._buffer, self._begin
        have = len(buffer) - begin - HEADER_BYTES
        if have < 0:
            return None
        magic, version, flags, length, crc = _HEADER.unpack_from(buffer, begin)
        if magic != MAGIC or version != FRAME_VERSION or flags & ~FLAGS_KNOWN:
            raise _bad_header(magic, version, flags)
        limit = self.limits.data_bytes if flags & DATA_FLAG else self.limits.control_bytes
        if length > limit:
            raise ProtocolFault(FaultCode.LENGTH, _too_long(length, limit, flags))
        if have < length:
            return None
        start = begin + HEADER_BYTES
        with memoryview(buffer) as view:
            payload = bytes(view[start : start + length])
            head_crc = zlib.crc32(view[begin : begin + 8])
        if zlib.crc32(payload, head_crc) != crc:
            text = f"checksum of a frame of {length} bytes does not match"
            raise ProtocolFault(FaultCode.CRC, text)
        self._begin = start + length
        return Frame(flags, payload)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that `data` completes, in order.

        Raises ProtocolFault (magic, version, flags, length, crc) with the frames before the
        violation in `before`.
        """
        self.append(data)
        frames: list[Frame] = []
        try:
            while (frame := self.next()) is not None:
                frames.append(frame)
        except ProtocolFault as fault:
            fault.before = frames
            raise
        return frames

    def finish(self) -> None:
        """The stream ended. Raises ProtocolFault (truncated) if that was inside a frame."""
        left = len(self._buffer) - self._begin
        if left:
            text = f"the stream ended {left} bytes into a frame"
            raise ProtocolFault(FaultCode.TRUNCATED, text)


class FrameEncoder:
    """Messages in, frames out, through one buffer that grows to the largest message."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray(HEADER_BYTES)

    def encode(self, message: msgspec.Struct, *, ignorable: bool = False) -> bytes:
        """One whole frame. Raises SendError (length) where the message is too long for its class,
        and ValueError, OverflowError or TypeError where a field holds what MessagePack cannot
        carry.
        """
        buffer = self._buffer
        self._encoder.encode_into(message, buffer, HEADER_BYTES)
        length = len(buffer) - HEADER_BYTES
        data = type(message) in DATA
        limit = self.limits.data_bytes if data else self.limits.control_bytes
        flags = (DATA_FLAG if data else 0) | (IGNORABLE if ignorable else 0)
        if length > limit:
            name = message.__struct_config__.tag
            text = f"{name}: {_too_long(length, limit, flags)}"
            raise SendError(FaultCode.LENGTH, text, message)
        _HEAD.pack_into(buffer, 0, MAGIC, FRAME_VERSION, flags, length)
        with memoryview(buffer) as view:
            crc = zlib.crc32(view[HEADER_BYTES:], zlib.crc32(view[:8]))
        _CRC.pack_into(buffer, 8, crc)
        return bytes(buffer)


def encode_frame(
    message: msgspec.Struct, limits: Limits | None = None, *, ignorable: bool = False
) -> bytes:
    """One whole frame that carries `message`; see FrameEncoder.encode."""
    return FrameEncoder(limits).encode(message, ignorable=ignorable)


def _too_long(length: int, limit: int, flags: int) -> str:
    kind = "data" if flags & DATA_FLAG else "control"
    return f"payload of {length} bytes; a {kind} message may have {limit}"


def _bad_header(magic: int, version: int, flags: int) -> ProtocolFault:
    if magic != MAGIC:
        text = f"frame starts with {magic}, not {MAGIC} (0x5354)"
        return ProtocolFault(FaultCode.MAGIC, text)
    if version != FRAME_VERSION:
        text = f"frame version {version}; this end reads {FRAME_VERSION}"
        return ProtocolFault(FaultCode.VERSION, text)
    return ProtocolFault(FaultCode.FLAGS, f"reserved flags are set in {flags}")
