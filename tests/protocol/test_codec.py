from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strata_protocol import messages as m
from strata_protocol.codec import decode_to_engine, decode_to_supervisor
from strata_protocol.errors import FaultCode, ProtocolFault

from tests.protocol.strategies import (
    ALL,
    HANDSHAKE_TO_ENGINE,
    HANDSHAKE_TO_SUPERVISOR,
    TO_ENGINE,
    anything,
    struct_of,
    to_engine,
    to_supervisor,
    tree,
)

pack = msgspec.msgpack.encode


@given(to_engine)
def test_round_trip_to_engine(message: m.Struct) -> None:
    assert tree(decode_to_engine(pack(message))) == tree(message)


@given(to_supervisor)
def test_round_trip_to_supervisor(message: m.Struct) -> None:
    assert tree(decode_to_supervisor(pack(message))) == tree(message)


@pytest.mark.parametrize("cls", ALL)
def test_form_follows_the_phase(cls: type[msgspec.Struct]) -> None:
    """Handshake messages are maps, run-time messages arrays, and both carry their tag first."""
    info = msgspec.inspect.type_info(cls)
    assert isinstance(info, msgspec.inspect.StructType)
    handshake = cls in HANDSHAKE_TO_ENGINE + HANDSHAKE_TO_SUPERVISOR
    assert info.array_like is not handshake
    assert info.tag_field == "type"
    assert not info.forbid_unknown_fields


@given(st.data())
def test_unknown_fields_are_ignored(data: st.DataObject) -> None:
    message = data.draw(to_engine | to_supervisor)
    fields = msgspec.msgpack.decode(pack(message))
    if isinstance(fields, list):
        # Only after the last field: an array has no names.
        fields += data.draw(st.lists(anything, max_size=3))
    else:
        fields |= data.draw(st.dictionaries(st.text(max_size=8).map("x-{}".format), anything))
    decode = decode_to_engine if isinstance(message, TO_ENGINE) else decode_to_supervisor
    assert tree(decode(pack(fields))) == tree(message)


@given(struct_of(m.Offer) | struct_of(m.Submit) | struct_of(m.Resume))
def test_absent_fields_take_their_defaults(message: m.Struct) -> None:
    info = msgspec.inspect.type_info(type(message))
    assert isinstance(info, msgspec.inspect.StructType)
    fields = msgspec.msgpack.decode(pack(message))
    optional = [f.name for f in info.fields if not f.required]
    if isinstance(fields, list):
        short = fields[: len(fields) - len(optional)]
    else:
        short = {k: v for k, v in fields.items() if k not in optional}
    decoded = decode_to_engine(pack(short))
    for f in info.fields:
        default = f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory()
        want = getattr(message, f.name) if f.required else default
        assert tree(getattr(decoded, f.name)) == tree(want)


@given(st.binary(max_size=300) | anything.map(pack))
def test_garbage_raises_nothing_but_faults(payload: bytes) -> None:
    for decode in (decode_to_engine, decode_to_supervisor):
        with pytest.raises(ProtocolFault) as caught:
            decode(payload)
        assert caught.value.code in {FaultCode.DECODE, FaultCode.UNKNOWN_TYPE}


@given(to_engine | to_supervisor, st.data())
def test_damaged_messages_raise_nothing_but_faults(message: m.Struct, data: st.DataObject) -> None:
    payload = bytearray(pack(message))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)))]
    for decode in (decode_to_engine, decode_to_supervisor):
        with contextlib.suppress(ProtocolFault):  # and nothing else
            decode(bytes(payload))


def test_nesting_without_end_is_a_fault() -> None:
    deep = b"\x93\xa6CANCEL\x08" + b"\x91" * 500_000 + b"\xc0"
    with pytest.raises(ProtocolFault) as caught:
        decode_to_engine(deep)
    assert caught.value.code is FaultCode.DECODE


@pytest.mark.parametrize(
    ("decode", "payload", "text"),
    [
        (decode_to_engine, pack(["TRACE", 1]), 'no run-time message "TRACE" to the engine'),
        (decode_to_engine, pack(["PONG", 1, 2, True]), '"PONG" to the engine'),
        (decode_to_engine, pack({"type": "CANCEL", "rid": 1}), 'no handshake message "CANCEL"'),
        (decode_to_supervisor, pack({"type": "PLAN"}), '"PLAN" to the supervisor'),
        (decode_to_supervisor, pack(["x" * 500]), '"' + "x" * 64 + '"'),
    ],
)
def test_a_message_of_another_direction_or_form_is_unknown(
    decode: object, payload: bytes, text: str
) -> None:
    assert callable(decode)
    with pytest.raises(ProtocolFault, match=text) as caught:
        decode(payload)
    assert caught.value.code is FaultCode.UNKNOWN_TYPE
