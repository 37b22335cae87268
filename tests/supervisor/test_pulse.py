"""What counts as a sign of life, on a clock of our own."""

from __future__ import annotations

import pytest
from strata.engines.pulse import Pulse
from strata_protocol.codec import ToSupervisorMessage
from strata_protocol.messages import Done, FinishReason, Pong, Tokens


def pong(step: int, *, busy: bool = True) -> Pong:
    return Pong(nonce=1, step=step, busy=busy)


def test_pongs_of_one_step_keep_it_heard_but_not_moved() -> None:
    pulse = Pulse(gap_s=6, now=0)
    for now in range(2, 32, 2):
        pulse.on_message(pong(7), now)
    assert pulse.silent_s(31) == 1
    assert pulse.stuck_s(31) == 29  # since the first PONG of step 7


@pytest.mark.parametrize(
    "sign",
    [
        pong(8),
        pong(7, busy=False),
        Tokens(step=7, items=[]),
        Done(rid=1, reason=FinishReason.STOP, prompt_tokens=1, cached_tokens=0, output_tokens=0),
    ],
)
def test_every_sign_of_computing_starts_the_time_anew(sign: ToSupervisorMessage) -> None:
    pulse = Pulse(gap_s=6, now=0)
    for now in range(2, 20, 2):
        pulse.on_message(pong(7), now)
    pulse.on_message(sign, 20)
    assert pulse.stuck_s(21) == 1


def test_a_gap_or_our_own_lateness_proves_nothing() -> None:
    pulse = Pulse(gap_s=6, now=0)
    pulse.on_message(pong(7), 1)
    pulse.on_message(pong(7), 20)  # the process was stopped in between
    assert pulse.stuck_s(22) == 2
    pulse.restart(40)
    assert pulse.silent_s(41) == pulse.stuck_s(41) == 1


def test_what_else_shows_that_the_compute_thread_goes_on_leaves_the_silence() -> None:
    pulse = Pulse(gap_s=6, now=0)
    pulse.on_message(pong(7), 1)
    pulse.moved(9)
    assert (pulse.stuck_s(10), pulse.silent_s(10)) == (1, 9)
