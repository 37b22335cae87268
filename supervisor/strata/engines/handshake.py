"""The supervisor's side of the handshake, HELLO to READY or REFUSE. Messages in, effects out.

There is no total time limit: loading may take as long as it makes progress. The stall timer is
the owner's; every step here says how long the engine may be silent from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from strata_protocol.exit_codes import ExitCode
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

from strata.engines.less import Less
from strata.engines.model_files import model_files
from strata.engines.modes import Choice, ModeRow, Policy, choose
from strata.engines.quarantine import QuarantineRecord

HELLO_STALL_S = 10.0
STALL_S = 30.0

HandshakeMessage = Hello | Caps | Progress | Probe | Ready | Refuse


def top_rung(_: Choice) -> tuple[int, str]:
    return 0, ""


def nothing_quarantined(_: Hello) -> Sequence[QuarantineRecord]:
    return ()


def nothing_less() -> Less | None:
    return None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What each epoch is offered. `quarantine` is asked at HELLO, which names build and device,
    for the records of the modes that must not be offered; `rung` at CAPS, for the rung that is to
    run and the sentence why it is not the first; `less` at HELLO, for bounds of what is asked."""

    run_id: str
    model: str
    modes: WantedModes
    explicit: frozenset[str]  # names of the modes that the operator set
    is_strict: bool
    without_kernels: Sequence[str] = ()
    quarantine: Callable[[Hello], Sequence[QuarantineRecord]] = nothing_quarantined
    rung: Callable[[Choice], tuple[int, str]] = top_rung
    less: Callable[[], Less | None] = nothing_less
    ple: str = ""  # file of the per-layer embedding table, where that is one of its own

    @property
    def files(self) -> tuple[Path, ...]:
        """All files of the model, the one that is named first."""
        return model_files(Path(self.model), self.ple)

    @property
    def policy(self) -> Policy:
        return Policy.STRICT if self.is_strict else Policy.FALLBACK


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
    """Deterministic; `lines` are sentences for people. `is_ours`: the engine would go on."""

    reasons: tuple[Reason, ...]
    is_ours: bool = False
    lines: tuple[str, ...] = ()
    exit_code: int = 0  # where it is known


@dataclass(frozen=True, slots=True)
class Broken:
    """The engine broke the protocol above the frame level."""

    text: str


HandshakeEffect = SendOffer | SendPlan | BecameReady | Refused | Broken


class Handshake:
    """One epoch's handshake. Fields are what the engine has said so far."""

    def __init__(self, wanted: Wanted, epoch: int) -> None:
        self._wanted = wanted
        self._epoch = epoch
        self.hello: Hello | None = None
        self.quarantine: Sequence[QuarantineRecord] = ()
        self._less: Less | None = None
        self.caps: Caps | None = None
        self.choice: Choice | None = None
        self.probes: list[Probe] = []
        self.progress: Progress | None = None
        self.ready: Ready | None = None
        self.stall_s = HELLO_STALL_S

    @property
    def phase(self) -> str:
        if self.ready is not None:
            return "running"
        if self.choice is not None and not self.choice.refusals:
            return "loading"
        return "handshake" if self.hello is not None else "launch"

    @property
    def rows(self) -> Sequence[ModeRow]:
        """The table of modes; before READY it shows what is going to run, before CAPS nothing."""
        return self.choice.rows if self.choice is not None else ()

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
                return self._on_ready(message)
            case Refuse():
                return [Refused(tuple(message.reasons), exit_code=message.exit_code)]

    def _on_hello(self, hello: Hello) -> list[HandshakeEffect]:
        self.hello = hello
        self.stall_s = STALL_S
        wanted = self._wanted
        self.quarantine = wanted.quarantine(hello)
        self._less = wanted.less()
        return [
            SendOffer(
                Offer(
                    proto=negotiate(hello),
                    run_id=wanted.run_id,
                    epoch=self._epoch,
                    model=wanted.model,
                    want=wanted.modes if self._less is None else self._less.of(wanted.modes),
                    quarantine=[record.mode for record in self.quarantine],
                    without_kernels=list(wanted.without_kernels),
                    ple=wanted.ple,
                )
            )
        ]

    def _on_caps(self, caps: Caps) -> list[HandshakeEffect]:
        if fault := caps_fault(caps):
            return [Broken(fault)]
        self.caps = caps
        wanted = self._wanted
        choice = self.choice = choose(
            wanted.modes,
            wanted.explicit,
            caps.configurations,
            caps.reasons,
            quarantine=self.quarantine,
            policy=wanted.policy,
            device=caps.device,
        )
        if choice.plan is None or choice.refusals:
            return [_refused(choice)]
        if self._less is not None:
            choice = choice.within(msgspec.structs.asdict(self._less))
        choice = self.choice = choice.on_rung(*wanted.rung(choice))
        rung = choice.ladder[choice.rung]
        return [SendPlan(Plan(plan=rung.plan, rung=rung.name))]

    def _on_ready(self, ready: Ready) -> list[HandshakeEffect]:
        if self.choice is None:
            raise RuntimeError("READY before CAPS passed the peer")
        choice = self.choice = self.choice.running(ready.plan, self.probes)
        if choice.refusals:
            return [_refused(choice)]
        self.ready = ready
        return [BecameReady(ready)]


def caps_fault(caps: Caps) -> str:
    """What is wrong with CAPS beyond its schema; empty where nothing is."""
    reasons, modes = len(caps.reasons), len(caps.serving)
    for configuration in caps.configurations:
        named = [*configuration.missing, *(s.reason for s in configuration.shortfalls)]
        if any(index >= reasons for index in named):
            return f"CAPS names reason {max(named)} of {reasons}"
        if any(index >= modes for index in configuration.serving):
            return f"CAPS names serving mode {max(configuration.serving)} of {modes}"
    return ""


def _refused(choice: Choice) -> Refused:
    return Refused(
        choice.refusals,
        is_ours=True,
        lines=choice.refusal_lines,
        exit_code=ExitCode.CONFIG_REFUSED,
    )
