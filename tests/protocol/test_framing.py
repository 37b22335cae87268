from __future__ import annotations

import contextlib
import struct
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strata_protocol import messages as m
from strata_protocol.errors import FaultCode, ProtocolFault, SendError
from strata_protocol.framing import (
    ABSOLUTE_BYTES,
    DATA_FLAG,
    FrameDecoder,
    FrameEncoder,
    encode_frame,
    limits_problem,
)

from tests.protocol.strategies import to_engine, to_supervisor

PING = encode_frame(m.Ping(nonce=7))


def header(length: int, flags: int = 0, magic: int = 0x5354, version: int = 1) -> bytes:
    return struct.pack("<HBBII", magic, version, flags, length, 0)


def test_layout_of_the_header() -> None:
    payload = b"\x92\xa4PING\x07"
    assert PING[:8] == b"\x54\x53\x01\x00" + struct.pack("<I", len(payload))
    assert PING[12:] == payload
    assert encode_frame(m.Prompt(1, 0, [1]))[3] == DATA_FLAG


@given(st.lists(to_engine | to_supervisor, min_size=1, max_size=4), st.data())
def test_frames_survive_any_split(messages: list[m.Struct], data: st.DataObject) -> None:
    frames = [encode_frame(message) for message in messages]
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    out = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        out += decoder.feed(stream[start:end])
    decoder.finish()
    assert [f.payload for f in out] == [frame[12:] for frame in frames]


def test_split_at_every_byte() -> None:
    stream = PING + encode_frame(m.Cancel(rid=1)) + PING
    for cut in range(len(stream) + 1):
        decoder = FrameDecoder()
        frames = decoder.feed(stream[:cut]) + decoder.feed(stream[cut:])
        assert len(frames) == 3
    decoder = FrameDecoder()
    assert sum(len(decoder.feed(stream[i : i + 1])) for i in range(len(stream))) == 3


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_faults(data: bytes) -> None:
    decoder = FrameDecoder()
    with contextlib.suppress(ProtocolFault):  # and nothing else
        decoder.feed(data)
        decoder.finish()


@given(st.integers(0, 8 * len(PING) - 1))
def test_a_flipped_bit_never_passes(bit: int) -> None:
    bad = bytearray(PING)
    bad[bit // 8] ^= 1 << bit % 8
    decoder = FrameDecoder()
    with pytest.raises(ProtocolFault):  # noqa: PT012  a longer length shows at the end alone
        decoder.feed(bytes(bad))
        decoder.finish()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (header(1, magic=0x5355), FaultCode.MAGIC),
        (header(1, version=2), FaultCode.VERSION),
        (header(1, flags=4), FaultCode.FLAGS),
        (header(64 * 1024 + 1), FaultCode.LENGTH),
        (header(1024 * 1024 + 1, flags=DATA_FLAG), FaultCode.LENGTH),
        (header(0xFFFF_FFFF, flags=DATA_FLAG), FaultCode.LENGTH),
        (header(0), FaultCode.CRC),
    ],
)
def test_header_is_judged_before_the_payload_arrives(data: bytes, code: FaultCode) -> None:
    with pytest.raises(ProtocolFault) as caught:
        FrameDecoder().feed(data)
    assert caught.value.code is code


def test_an_announced_length_reserves_no_memory() -> None:
    decoder = FrameDecoder(m.Limits(data_bytes=ABSOLUTE_BYTES))
    tracemalloc.start()
    try:
        assert decoder.feed(header(ABSOLUTE_BYTES, flags=DATA_FLAG)) == []
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_exactly_the_limit_passes() -> None:
    limits = m.Limits(control_bytes=4096, data_bytes=8192)
    fixed = len(encode_frame(m.Dying(m.ErrorKind.INTERNAL, "", "x" * 300))) - 12 - 300
    message = m.Dying(m.ErrorKind.INTERNAL, "", "x" * (4096 - fixed))
    frame = encode_frame(message, limits)
    assert len(frame) == 12 + 4096
    assert len(FrameDecoder(limits).feed(frame)) == 1
    longer = m.Dying(m.ErrorKind.INTERNAL, "", "x" * (4097 - fixed))
    with pytest.raises(SendError, match="DYING: payload of 4097 bytes") as caught:
        encode_frame(longer, limits)
    assert caught.value.code is FaultCode.LENGTH
    with pytest.raises(ProtocolFault, match="may have 4096"):
        FrameDecoder(limits).feed(encode_frame(longer))


def test_frames_before_a_violation_are_kept() -> None:
    with pytest.raises(ProtocolFault) as caught:
        FrameDecoder().feed(PING + PING + b"stray text!!")
    assert caught.value.code is FaultCode.MAGIC
    assert len(caught.value.before) == 2


def test_the_end_inside_a_frame_is_told() -> None:
    decoder = FrameDecoder()
    decoder.feed(PING + PING[:5])
    with pytest.raises(ProtocolFault, match="ended 5 bytes into a frame"):
        decoder.finish()


def test_the_encoder_shrinks_back_after_a_long_message() -> None:
    encoder = FrameEncoder()
    encoder.encode(m.Prompt(rid=1, offset=0, ids=list(range(10_000))))
    assert encoder.encode(m.Ping(nonce=7)) == PING


def test_a_large_frame_in_small_pieces_takes_linear_time() -> None:
    """4 MiB in pieces of 1 KiB: copying what is already there each time would be 8 GiB."""
    limits = m.Limits(data_bytes=ABSOLUTE_BYTES)
    frame = encode_frame(m.Prompt(rid=1, offset=0, ids=[70_000] * (4 * 1024 * 1024 // 5)), limits)
    decoder = FrameDecoder(limits)
    start = time.process_time()
    frames = []
    for at in range(0, len(frame), 1024):
        frames += decoder.feed(frame[at : at + 1024])
    assert time.process_time() - start < 1.0
    assert [f.payload for f in frames] == [frame[12:]]


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (m.Limits(), None),
        (m.Limits(control_bytes=4095), "control_bytes must be at least 4096"),
        (m.Limits(data_bytes=60_000), "data_bytes must not be below control_bytes"),
        (m.Limits(data_bytes=2**25), "absolute_bytes must not be below data_bytes"),
        (m.Limits(absolute_bytes=2**25), "absolute_bytes must be at most 16777216"),
    ],
)
def test_limits_that_make_no_sense_are_named(limits: m.Limits, problem: str | None) -> None:
    assert limits_problem(limits) == problem
