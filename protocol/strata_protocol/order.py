"""Which message is legal when: one table, used by both ends for sending and for receiving.

Both ends run the same machine over the messages of both directions, so an end knows at once
whether it may send and whether the peer was allowed to. C++ gets the table from
`protocol/schema/generate.py`.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from strata_protocol import messages as m


class Phase(enum.Enum):
    """What the connection waits for."""

    HELLO = "hello"  # the engine's first message
    OFFER = "offer"
    CAPS = "caps"
    PLAN = "plan"
    LOAD = "load"  # PROGRESS and PROBE, then READY or REFUSE
    RUN = "run"
    DRAIN = "drain"  # as RUN without new requests
    ENDED = "ended"  # REFUSE or DYING was said; the engine sends nothing more


_Kinds = tuple[type[msgspec.Struct], ...]

_ENGINE_RUN: Final[_Kinds] = (m.Tokens, m.PromptLogprobs, m.Done, m.Pong, m.Stats)
_SUPERVISOR_RUN: Final[_Kinds] = (m.Prompt, m.Cancel, m.Credit, m.Ping)
_TO_ENGINE: Final[_Kinds] = (m.Offer, m.Plan, m.Submit, m.Resume, m.Drain, *_SUPERVISOR_RUN)


def _table() -> dict[tuple[Phase, type[msgspec.Struct]], Phase]:
    table: dict[tuple[Phase, type[msgspec.Struct]], Phase] = {
        (Phase.HELLO, m.Hello): Phase.OFFER,
        (Phase.OFFER, m.Offer): Phase.CAPS,
        (Phase.CAPS, m.Caps): Phase.PLAN,
        (Phase.PLAN, m.Plan): Phase.LOAD,
        (Phase.LOAD, m.Progress): Phase.LOAD,
        (Phase.LOAD, m.Probe): Phase.LOAD,
        (Phase.LOAD, m.Ready): Phase.RUN,
        (Phase.RUN, m.Submit): Phase.RUN,
        (Phase.RUN, m.Resume): Phase.RUN,
        (Phase.RUN, m.Drain): Phase.DRAIN,
        (Phase.DRAIN, m.Drain): Phase.DRAIN,
    }
    for phase in (Phase.OFFER, Phase.CAPS, Phase.PLAN, Phase.LOAD):
        table[phase, m.Refuse] = Phase.ENDED
    for phase in Phase:
        if phase not in (Phase.HELLO, Phase.ENDED):
            table[phase, m.Dying] = Phase.ENDED
    for phase in (Phase.RUN, Phase.DRAIN):
        for kind in _ENGINE_RUN + _SUPERVISOR_RUN:
            table[phase, kind] = phase
    for kind in _TO_ENGINE:
        # The supervisor may have sent these before it read the engine's last message.
        table[Phase.ENDED, kind] = Phase.ENDED
    return table


ORDER: Final = _table()


def next_phase(phase: Phase, kind: type[msgspec.Struct]) -> Phase | None:
    """The phase after a message of type `kind`, or None where it is not legal."""
    return ORDER.get((phase, kind))


def legal(phase: Phase) -> list[str]:
    """Names of the messages that `phase` allows, for error texts."""
    return [str(k.__struct_config__.tag) for (p, k) in ORDER if p is phase]
