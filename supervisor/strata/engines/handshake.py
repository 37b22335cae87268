"""The supervisor's side of the handshake, HELLO to READY or REFUSE. Messages in, effects out.

There is no total time limit: loading may take as long as it makes progress. The stall timer is
the owner's; every step here says how long the engine may be silent from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata_protocol.messages import (
    Caps,
    Hello,
    Offer,
    Plan,
    Probe,
    Progress,
    Ready,
    Reason,
    Refuse,
    WantedModes,
)
from strata_protocol.peer import negotiate

from strata.engines.modes import ModeChoice, choose
from strata.engines.quarantine import QuarantineRecord

HELLO_STALL_S = 10.0
STALL_S = 30.0

HandshakeMessage = Hello | Caps | Progress | Probe | Ready | Refuse


def nothing_quarantined(_: Hello) -> Sequence[QuarantineRecord]:
    return ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What each epoch is offered. `quarantine` is asked at HELLO, which names build and device,
    for the records of the modes that must not be offered."""

    run_id: str
    model: str
    modes: WantedModes
    explicit: frozenset[str]  # names of the modes that the operator set
    is_strict: bool
    without_kernels: Sequence[str] = ()
    quarantine: Callable[[Hello], Sequence[QuarantineRecord]] = nothing_quarantined


@dataclass(frozen=True, slots=True)
class SendOffer:
    message: Offer


@dataclass(frozen=True, slots=True)
class SendPlan:
    message: Plan


@dataclass(frozen=True, slots=True)
class BecameReady:
    ready: Ready


@dataclass(frozen=True, slots=True)
class Refused:
    """Deterministic; `lines` are sentences for people. `is_strict`: our own doing."""

    reasons: tuple[Reason, ...]
    is_strict: bool = False


HandshakeEffect = SendOffer | SendPlan | BecameReady | Refused


class Handshake:
    """One epoch's handshake. Fields are what the engine has said so far."""

    def __init__(self, wanted: Wanted, epoch: int) -> None:
        self._wanted = wanted
        self._epoch = epoch
        self.hello: Hello | None = None
        self.quarantine: Sequence[QuarantineRecord] = ()
        self.caps: Caps | None = None
        self.choice: ModeChoice | None = None
        self.probes: list[Probe] = []
        self.progress: Progress | None = None
        self.ready: Ready | None = None
        self.stall_s = HELLO_STALL_S

    @property
    def phase(self) -> str:
        if self.ready is not None:
            return "running"
        if self.choice is not None:
            return "loading"
        return "handshake" if self.hello is not None else "launch"

    @property
    def waits_for(self) -> str:
        """What a stall is a stall of."""
        if self.hello is None:
            return "HELLO"
        return "PROGRESS" if self.caps is not None else "CAPS"

    def on_message(self, message: HandshakeMessage) -> list[HandshakeEffect]:
        match message:
            case Hello():
                return self._on_hello(message)
            case Caps():
                return self._on_caps(message)
            case Progress():
                self.progress = message
                return []
            case Probe():
                self.probes.append(message)
                return []
            case Ready():
                self.ready = message
                return [BecameReady(message)]
            case Refuse():
                return [Refused(tuple(message.reasons))]

    def _on_hello(self, hello: Hello) -> list[HandshakeEffect]:
        self.hello = hello
        self.stall_s = STALL_S
        wanted = self._wanted
        self.quarantine = wanted.quarantine(hello)
        return [
            SendOffer(
                Offer(
                    proto=negotiate(hello),
                    run_id=wanted.run_id,
                    epoch=self._epoch,
                    model=wanted.model,
                    want=wanted.modes,
                    quarantine=[record.mode for record in self.quarantine],
                    without_kernels=list(wanted.without_kernels),
                )
            )
        ]

    def _on_caps(self, caps: Caps) -> list[HandshakeEffect]:
        self.caps = caps
        wanted = self._wanted
        choice = choose(caps, wanted.explicit, is_strict=wanted.is_strict)
        if choice.refusals:
            return [Refused(choice.refusals, is_strict=True)]
        self.choice = choice
        return [SendPlan(Plan(plan=choice.plan))]
