from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strata_protocol import messages as m
from strata_protocol.errors import FaultCode, ProtocolFault, SendError
from strata_protocol.framing import IGNORABLE, encode_frame
from strata_protocol.order import ORDER, Phase, next_phase
from strata_protocol.peer import EnginePeer, Peer, SupervisorPeer, negotiate

from tests.protocol.handshake import (
    CAPS,
    DYING,
    HELLO,
    PLAN,
    PROBE,
    PROGRESS,
    REFUSE,
    SUBMIT,
    loading,
    offer,
    ready,
    running,
)
from tests.protocol.strategies import ALL, TO_ENGINE, TO_SUPERVISOR, to_engine, to_supervisor

TOKENS = m.Tokens(step=1, items=[m.TokensItem(rid=1, offset=0, ids=[3])])


def code_of(peer: Peer[Any, Any], data: bytes) -> FaultCode:
    with pytest.raises(ProtocolFault) as caught:
        peer.feed(data)
    assert peer.fault is caught.value
    return caught.value.code


def test_a_whole_life() -> None:
    supervisor, engine = loading()
    assert supervisor.phase is engine.phase is Phase.LOAD
    stream = b"".join(engine.send(x) for x in (PROGRESS, PROGRESS, PROBE, PROGRESS, ready()))
    stream += engine.send(TOKENS)
    assert supervisor.feed(stream)[-2:] == [ready(), TOKENS]
    assert supervisor.phase is Phase.RUN
    assert engine.feed(supervisor.send(SUBMIT)) == [SUBMIT]
    engine.feed(supervisor.send(m.Drain()))
    assert supervisor.phase is engine.phase is Phase.DRAIN
    # Running requests go on, new ones do not.
    engine.feed(supervisor.send(m.Credit(rid=1, upto=9)))
    with pytest.raises(SendError, match="SUBMIT is not legal in phase drain"):
        supervisor.send(SUBMIT)
    assert supervisor.feed(engine.send(DYING)) == [DYING]
    assert supervisor.phase is Phase.ENDED
    # What the supervisor had on its way is no fault of it; the engine has nothing more to say.
    assert engine.feed(supervisor.send(m.Ping(nonce=1))) == [m.Ping(nonce=1)]
    with pytest.raises(SendError):
        engine.send(TOKENS)
    assert code_of(supervisor, encode_frame(TOKENS)) is FaultCode.ORDER


def test_byte_by_byte() -> None:
    supervisor, engine = running()
    stream = engine.send(TOKENS) + engine.send(m.Pong(nonce=1, step=2, busy=True))
    got = [message for i in range(len(stream)) for message in supervisor.feed(stream[i : i + 1])]
    assert got == [TOKENS, m.Pong(nonce=1, step=2, busy=True)]
    supervisor.finish()


@pytest.mark.parametrize("cls", TO_SUPERVISOR)
def test_nothing_but_hello_comes_first(cls: type[msgspec.Struct]) -> None:
    assert (next_phase(Phase.HELLO, cls) is not None) is (cls is m.Hello)


def test_every_message_is_legal_somewhere() -> None:
    assert {kind for _, kind in ORDER} == set(ALL)
    assert {phase for phase, _ in ORDER} == set(Phase)


@pytest.mark.parametrize("message", [CAPS, PROGRESS, ready(), REFUSE, DYING, TOKENS])
def test_out_of_order_at_the_start(message: msgspec.Struct) -> None:
    supervisor = SupervisorPeer()
    assert code_of(supervisor, encode_frame(message)) is FaultCode.ORDER
    # Dead: even a right message raises the same fault, in both directions.
    assert code_of(supervisor, encode_frame(HELLO)) is FaultCode.ORDER
    with pytest.raises(ProtocolFault):
        supervisor.send(offer())
    with pytest.raises(ProtocolFault):
        supervisor.finish()


@pytest.mark.parametrize("message", [HELLO, CAPS, TOKENS])
def test_out_of_order_while_loading(message: msgspec.Struct) -> None:
    supervisor, _ = loading()
    assert code_of(supervisor, encode_frame(message)) is FaultCode.ORDER


@pytest.mark.parametrize("message", [offer(), m.Plan(plan=PLAN)])
def test_out_of_order_at_run_time(message: msgspec.Struct) -> None:
    _, engine = running()
    assert code_of(engine, encode_frame(message)) is FaultCode.ORDER


def test_refuse_is_legal_until_ready_and_final() -> None:
    supervisor, engine = SupervisorPeer(), EnginePeer()
    supervisor.feed(engine.send(HELLO))
    command = supervisor.send(offer())
    assert supervisor.feed(engine.send(REFUSE)) == [REFUSE]
    assert engine.feed(command) == [offer()]  # crossed on the way
    supervisor, engine = loading()
    supervisor.feed(engine.send(REFUSE))
    assert code_of(supervisor, encode_frame(ready())) is FaultCode.ORDER
    supervisor, _ = running()
    assert code_of(supervisor, encode_frame(REFUSE)) is FaultCode.ORDER


def test_messages_before_a_violation_are_kept() -> None:
    supervisor, engine = running()
    good = engine.send(TOKENS)
    with pytest.raises(ProtocolFault) as caught:
        supervisor.feed(good + good + b"printf to the wrong descriptor\n")
    assert caught.value.code is FaultCode.MAGIC
    assert list(caught.value.before) == [TOKENS, TOKENS]


def test_versions_are_negotiated() -> None:
    def hello(low: int, high: int) -> m.Hello:
        return msgspec.structs.replace(HELLO, proto_min=low, proto_max=high)

    assert negotiate(hello(1, 3), 2, 5) == 3
    assert negotiate(hello(4, 9), 2, 5) == 5
    for low, high in ((1, 1), (6, 7), (3, 2)):
        with pytest.raises(ProtocolFault) as caught:
            negotiate(hello(low, high), 2, 5)
        assert caught.value.code is FaultCode.MISMATCH
        assert f"{low}..{high}" in caught.value.text
        assert "2..5" in caught.value.text
    assert code_of(SupervisorPeer(), encode_frame(hello(7, 9))) is FaultCode.MISMATCH
    engine = EnginePeer()
    engine.send(HELLO)
    assert code_of(engine, encode_frame(offer(proto=2))) is FaultCode.MISMATCH


def test_limits_are_negotiated_and_hold_from_ready_on() -> None:
    small = m.Limits(control_bytes=4096, data_bytes=8192, absolute_bytes=8192)
    long = m.Dying(error_kind=m.ErrorKind.INTERNAL, code="x", text="y" * 5000)
    prompt = m.Prompt(rid=1, offset=0, ids=[70_000] * 2000)
    supervisor, engine = loading(small)
    assert supervisor.limits == m.Limits()
    supervisor.feed(engine.send(ready(small)))
    assert supervisor.limits == engine.limits == small
    with pytest.raises(SendError, match="DYING: payload of"):
        engine.send(long)
    with pytest.raises(SendError, match="a data message may have 8192"):
        supervisor.send(prompt)
    assert engine.phase is Phase.RUN  # nothing was sent, nothing has changed
    assert code_of(supervisor, encode_frame(long)) is FaultCode.LENGTH
    assert code_of(engine, encode_frame(prompt)) is FaultCode.LENGTH


def test_limits_may_be_raised() -> None:
    large = m.Limits(data_bytes=4 * 1024 * 1024)
    supervisor, engine = running(large)
    prompt = m.Prompt(rid=1, offset=0, ids=[70_000] * 500_000)
    assert engine.feed(supervisor.send(prompt)) == [prompt]


def test_limits_that_cannot_be_are_refused() -> None:
    supervisor, engine = loading(m.Limits(data_bytes=100_000))
    with pytest.raises(SendError, match="data_bytes is 1048576, OFFER allowed 100000"):
        engine.send(ready())
    assert code_of(supervisor, encode_frame(ready())) is FaultCode.DECODE
    fresh = EnginePeer()
    fresh.send(HELLO)
    assert code_of(fresh, encode_frame(offer(m.Limits(control_bytes=1)))) is FaultCode.DECODE
    other = SupervisorPeer()
    other.feed(encode_frame(HELLO))
    with pytest.raises(SendError, match="control_bytes must be at least 4096"):
        other.send(offer(m.Limits(control_bytes=1)))


@pytest.mark.parametrize(
    "params",
    [
        m.SamplingParams(max_tokens=2**32),
        m.SamplingParams(seed=-1),
        m.SamplingParams(seed=2**64),
        m.SamplingParams(stop_ids=[2**31]),
        m.SamplingParams(logit_bias=[m.LogitBias(token=-1, bias=0.0)]),
        m.SamplingParams(temperature="hot"),  # type: ignore[arg-type]
        m.SamplingParams(seed="\udcff"),  # type: ignore[arg-type]
    ],
)
def test_a_value_out_of_range_stops_at_the_sender(params: m.SamplingParams) -> None:
    """Over there it would be a fault that ends the engine with every request in it."""
    supervisor, engine = running()
    with pytest.raises(SendError) as caught:
        supervisor.send(m.Submit(rid=1, prompt_tokens=1, ids=[1], params=params))
    assert caught.value.code is FaultCode.DECODE
    assert engine.feed(supervisor.send(SUBMIT)) == [SUBMIT]


def test_unknown_messages() -> None:
    def frame(ignorable: bool) -> bytes:
        class Trace(m.ToSupervisorRow, tag="TRACE"):
            level: int

        return encode_frame(Trace(1), ignorable=ignorable)

    supervisor, engine = running()
    assert frame(True)[3] == IGNORABLE
    assert supervisor.feed(frame(True) + engine.send(TOKENS)) == [TOKENS]
    assert code_of(supervisor, frame(False)) is FaultCode.UNKNOWN_TYPE


@given(st.lists(to_engine, max_size=5))
def test_any_order_of_messages_is_a_fault_or_legal_to_the_engine(messages: list[m.Struct]) -> None:
    _, engine = running()
    phase: Phase | None = engine.phase
    for message in messages:
        assert phase is not None
        phase = next_phase(phase, type(message))
        if phase is None:
            assert code_of(engine, encode_frame(message)) is FaultCode.ORDER
            return
        assert len(engine.feed(encode_frame(message))) == 1
        assert engine.phase is phase


@given(st.binary(max_size=100), st.lists(to_supervisor, max_size=2), st.booleans())
def test_garbage_raises_nothing_but_faults(
    garbage: bytes, messages: list[m.Struct], run: bool
) -> None:
    supervisor = running()[0] if run else SupervisorPeer()
    data = b"".join(encode_frame(message) for message in messages) + garbage
    with contextlib.suppress(ProtocolFault):  # and nothing else
        supervisor.feed(data)
        supervisor.finish()
        return
    assert supervisor.fault is not None


def test_direction_is_part_of_the_base_class() -> None:
    assert all(issubclass(cls, m.ToEngine | m.ToEngineRow) for cls in TO_ENGINE)
    assert all(issubclass(cls, m.ToSupervisor | m.ToSupervisorRow) for cls in TO_SUPERVISOR)
