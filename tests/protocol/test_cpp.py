"""The C++ side against the Python side: the same bytes, the same verdicts."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
import strata_engine_testing as cpp
from hypothesis import given
from hypothesis import strategies as st
from strata_protocol import messages as m
from strata_protocol.codec import decode_to_engine, decode_to_supervisor
from strata_protocol.errors import ProtocolFault
from strata_protocol.framing import FrameDecoder, encode_frame
from strata_protocol.peer import SupervisorPeer

from tests.protocol.handshake import CAPS, HELLO, PLAN, PROGRESS, SUBMIT, offer, ready
from tests.protocol.strategies import TO_ENGINE, anything, to_engine, to_supervisor

pack = msgspec.msgpack.encode
GOLDEN = Path(__file__).resolve().parents[2] / "protocol" / "golden"


@given(to_engine)
def test_messages_to_the_engine_are_the_same_bytes(message: m.Struct) -> None:
    payload = pack(message)
    assert cpp.reencode_to_engine(payload) == payload


@given(to_supervisor)
def test_messages_to_the_supervisor_are_the_same_bytes(message: m.Struct) -> None:
    payload = pack(message)
    assert cpp.reencode_to_supervisor(payload) == payload
    assert cpp.frame_to_supervisor(payload) == encode_frame(message)


def verdict(payload: bytes, to_the_engine: bool) -> tuple[str, str]:
    """What each side says: "ok" or the fault's code, (Python, C++)."""
    python = native = "ok"
    try:
        (decode_to_engine if to_the_engine else decode_to_supervisor)(payload)
    except ProtocolFault as fault:
        python = fault.code.value
    try:
        (cpp.reencode_to_engine if to_the_engine else cpp.reencode_to_supervisor)(payload)
    except cpp.EngineError as fault:
        native = fault.code
    return python, native


@given(to_engine | to_supervisor, st.data())
def test_damaged_messages_get_the_same_verdict(message: m.Struct, data: st.DataObject) -> None:
    payload = bytearray(pack(message))
    for _ in range(data.draw(st.integers(0, 2))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)) | st.just(len(payload)))]
    python, native = verdict(bytes(payload), isinstance(message, TO_ENGINE))
    assert python == native, payload.hex()


TELLING = bytes.fromhex(
    "00 01 55 7f 80 81 8f 90 91 a0 a1 bf c0 c1 c2 c4 c7 ca cb cf d3 d9 dd df ff"
)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*-ok-*.bin")), ids=lambda path: path.stem)
def test_every_byte_replaced_gets_the_same_verdict(path: Path) -> None:
    payload = path.read_bytes()[12:]
    to_the_engine = path.name.startswith("to_engine")
    for at in range(len(payload)):
        for value in TELLING:
            changed = payload[:at] + bytes([value]) + payload[at + 1 :]
            python, native = verdict(changed, to_the_engine)
            assert python == native, changed.hex()


@given(st.data())
def test_changed_fields_get_the_same_verdict(data: st.DataObject) -> None:
    """Well-formed MessagePack of the wrong schema: one field is something else or is gone."""
    message = data.draw(to_engine | to_supervisor)
    fields = msgspec.msgpack.decode(pack(message))
    keys = list(fields) if isinstance(fields, dict) else list(range(len(fields)))
    key = data.draw(st.sampled_from(keys))
    if data.draw(st.booleans()):
        fields[key] = data.draw(anything)
    else:
        del fields[key]
    payload = pack(fields)
    python, native = verdict(payload, isinstance(message, TO_ENGINE))
    assert python == native, payload.hex()


@given(st.binary(max_size=120), st.booleans())
def test_garbage_gets_the_same_verdict(payload: bytes, to_the_engine: bool) -> None:
    python, native = verdict(payload, to_the_engine)
    assert python == native, payload.hex()


@given(st.lists(to_engine, max_size=3), st.binary(max_size=30), st.data())
def test_frames_get_the_same_verdict(
    messages: list[m.Struct], garbage: bytes, data: st.DataObject
) -> None:
    stream = b"".join(encode_frame(message) for message in messages) + garbage
    cut = data.draw(st.integers(0, len(stream)))
    python, native = FrameDecoder(), cpp.FrameDecoder()
    for part in (stream[:cut], stream[cut:]):
        want: list[tuple[int, bytes]] = []
        code = "ok"
        try:
            want = [(f.flags, f.payload) for f in python.feed(part)]
        except ProtocolFault as fault:
            code = fault.code.value
        if code == "ok":
            assert native.feed(part) == want
        else:
            with pytest.raises(cpp.EngineError) as caught:
                native.feed(part)
            assert caught.value.code == code
            return


def test_the_engine_talks_to_the_supervisor() -> None:
    supervisor, engine = SupervisorPeer(), cpp.EnginePeer()
    assert supervisor.feed(engine.send(pack(HELLO))) == [HELLO]
    assert engine.feed(supervisor.send(offer())) == [pack(offer())]
    assert engine.proto == 1
    assert supervisor.feed(engine.send(pack(CAPS)) + b"") == [CAPS]
    engine.feed(supervisor.send(m.Plan(plan=PLAN)))
    stream = engine.send(pack(PROGRESS)) + engine.send(pack(ready()))
    assert supervisor.feed(stream) == [PROGRESS, ready()]
    assert engine.feed(supervisor.send(SUBMIT)) == [pack(SUBMIT)]
    assert engine.phase == supervisor.phase.value == "run"
    with pytest.raises(cpp.EngineError) as caught:
        engine.feed(encode_frame(m.Plan(plan=PLAN)))
    assert caught.value.code == "proto.order"
    with pytest.raises(cpp.EngineError, match="failed earlier"):
        engine.feed(b"")


def test_the_engine_and_the_python_peer_agree_on_the_order() -> None:
    """Every message in the phases a supervisor can reach: both engines give one verdict."""
    from strata_protocol.peer import EnginePeer

    samples = [offer(), m.Plan(plan=PLAN), SUBMIT, m.Prompt(1, 0, [1]), m.Cancel(1), m.Drain()]
    steps: list[list[m.ToSupervisor]] = [[], [HELLO], [HELLO, CAPS], [HELLO, CAPS, ready()]]
    answers: list[list[m.ToEngine]] = [[], [], [offer()], [offer(), m.Plan(plan=PLAN)]]
    for said, heard in zip(steps, answers, strict=True):
        for sample in samples:
            python, native = EnginePeer(), cpp.EnginePeer()
            for message, answer in itertools.zip_longest(said, heard):
                python.send(message)
                native.send(pack(message))
                if answer is not None:
                    python.feed(encode_frame(answer))
                    native.feed(encode_frame(answer))
            want = have = "ok"
            try:
                python.feed(encode_frame(sample))
            except ProtocolFault as fault:
                want = fault.code.value
            try:
                native.feed(encode_frame(sample))
            except cpp.EngineError as fault:
                have = fault.code
            assert (want, python.phase.value) == (have, native.phase), sample
