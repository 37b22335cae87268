"""Faults of the protocol: one exception type with a stable code.

A fault ends the connection: the peer object that raised it accepts nothing afterwards, and the
engine process at the other end is ended. Nothing is skipped in the hope that the rest is sound.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec


class FaultCode(enum.StrEnum):
    """Closed set, the same in C++ (generated)."""

    MAGIC = "proto.magic"  # the header does not start with 0x5354
    VERSION = "proto.version"  # frame version other than ours
    FLAGS = "proto.flags"  # reserved flag set, or the data flag disagrees with the message
    LENGTH = "proto.length"  # payload longer than the limit of its class
    CRC = "proto.crc"  # checksum over header and payload does not match
    TRUNCATED = "proto.truncated"  # the stream ended inside a frame
    DECODE = "proto.decode"  # payload is not MessagePack or not of the schema
    UNKNOWN_TYPE = "proto.unknown_type"  # no such message in this direction, and not ignorable
    ORDER = "proto.order"  # a message that the current phase does not allow
    MISMATCH = "proto.mismatch"  # no protocol version in common


class ProtocolFault(Exception):  # noqa: N818  the protocol's own word, the same in C++
    """The byte stream broke a rule of protocol/README.md.

    `code` is stable, `text` one sentence. `before` holds what the same chunk of bytes carried
    before the violation (frames from a FrameDecoder, messages from a peer), in order: it was
    received intact and counts.
    """

    def __init__(self, code: FaultCode, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.before: Sequence[object] = ()


class SendError(Exception):
    """Our own end tried to send what the protocol does not allow: wrong phase or too long."""

    def __init__(self, code: FaultCode, text: str, message: msgspec.Struct) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.message = message
