"""Payload to message: typed decoding for either direction.

msgspec cannot mix map-tagged and array-tagged structs in one union, so each direction has two
decoders; the payload's first byte says which of them it is for (handshake messages are maps,
run-time messages arrays).
"""

from __future__ import annotations

from typing import Final, cast, get_args

import msgspec

from strata_protocol import messages as m
from strata_protocol.errors import FaultCode, ProtocolFault

ToEngineMessage = (
    m.Offer | m.Plan | m.Submit | m.Prompt | m.Resume | m.Cancel | m.Credit | m.Ping | m.Drain
)
ToSupervisorMessage = (
    m.Hello
    | m.Caps
    | m.Progress
    | m.Probe
    | m.Ready
    | m.Refuse
    | m.Tokens
    | m.PromptLogprobs
    | m.Done
    | m.Pong
    | m.Stats
    | m.Dying
)

_MAP: Final = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
_ARRAY: Final = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})


class _Tag(msgspec.Struct):
    """The tag of a map, whatever else is in it."""

    type: str


_MAP_TAG = msgspec.msgpack.Decoder(_Tag)
_RAW_ARRAY = msgspec.msgpack.Decoder(list[msgspec.Raw])
_RAW_STR = msgspec.msgpack.Decoder(str)

# What msgspec raises for bytes that are not of the schema; RecursionError is its answer to values
# nested without end.
_BAD_PAYLOAD = (msgspec.DecodeError, RecursionError, UnicodeError)


class Codec:
    """Decoder of one direction. `peer` is "engine" or "supervisor": who receives."""

    def __init__(self, handshake: type, run: type, peer: str) -> None:
        self._map: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(handshake)
        self._array: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(run)
        self._map_tags = _tags(handshake)
        self._array_tags = _tags(run)
        self._peer = peer

    def decode(self, payload: bytes | bytearray | memoryview) -> object:
        """The message. Raises ProtocolFault: unknown_type for a message this direction does not
        have, decode for anything else that is not of the schema.
        """
        first = payload[0] if payload else 0xC1
        try:
            if first in _ARRAY:
                return self._array.decode(payload)
            if first in _MAP:
                return self._map.decode(payload)
        except _BAD_PAYLOAD as error:
            raise self._explain(payload, first in _MAP, error) from error
        raise ProtocolFault(FaultCode.DECODE, "message: expected a map or an array")

    def _explain(
        self, payload: bytes | bytearray | memoryview, is_map: bool, error: Exception
    ) -> ProtocolFault:
        """Tells a message of another version from a broken one: the slow path of a fault."""
        try:
            if is_map:
                tag = _MAP_TAG.decode(payload).type
            else:
                tag = _RAW_STR.decode(_RAW_ARRAY.decode(payload)[0])
        except (*_BAD_PAYLOAD, LookupError):
            return ProtocolFault(FaultCode.DECODE, f"message: {error}")
        if tag in (self._map_tags if is_map else self._array_tags):
            return ProtocolFault(FaultCode.DECODE, f"{tag}: {error}")
        form = "handshake" if is_map else "run-time"
        text = f'no {form} message "{tag[:64]}" to the {self._peer}'
        return ProtocolFault(FaultCode.UNKNOWN_TYPE, text)


def _tags(union: type) -> frozenset[str]:
    return frozenset(str(kind.__struct_config__.tag) for kind in get_args(union))


_TO_ENGINE = Codec(cast("type", m.TO_ENGINE), cast("type", m.TO_ENGINE_RUN), "engine")
_TO_SUPERVISOR = Codec(
    cast("type", m.TO_SUPERVISOR), cast("type", m.TO_SUPERVISOR_RUN), "supervisor"
)


def decode_to_engine(payload: bytes | bytearray | memoryview) -> ToEngineMessage:
    """One payload that the supervisor sent. Raises ProtocolFault (decode, unknown_type)."""
    return cast("ToEngineMessage", _TO_ENGINE.decode(payload))


def decode_to_supervisor(payload: bytes | bytearray | memoryview) -> ToSupervisorMessage:
    """One payload that the engine sent. Raises ProtocolFault (decode, unknown_type)."""
    return cast("ToSupervisorMessage", _TO_SUPERVISOR.decode(payload))
