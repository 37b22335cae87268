"""What an engine's owner tells its user, and what the user can tell a running engine.

`serving` implements `EngineListener`; `engines/owner.py` calls it, always on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from strata_protocol.messages import (
    Cancel,
    Credit,
    Done,
    ModelFacts,
    PromptLogprobs,
    Ready,
    Resume,
    Stats,
    Submit,
    Tokens,
)

from strata.engines.modes import ModeRow

ENGINE_DRAINING = "engine_draining"  # code of a DONE: it was told to end and takes nothing new

RunMessage = Tokens | PromptLogprobs | Done | Stats


class EnginePort(Protocol):
    """A running engine. Calls after its end are ignored."""

    def send(self, message: Submit | Resume | Cancel | Credit) -> None:
        """Sends it, long prompts in several frames. Raises SendError where the protocol cannot
        carry the message; nothing was sent then."""
        ...

    def fault(self, text: str) -> None:
        """The engine broke the protocol above the frame level: end it."""
        ...


@dataclass(frozen=True, slots=True)
class EngineReady:
    """What a ready engine said about itself."""

    model: ModelFacts
    ready: Ready
    modes: Sequence[ModeRow]  # what runs, and why it differs from what was asked
    build: str = ""  # of the engine


@dataclass(frozen=True, slots=True)
class EngineLost:
    """Why a ready engine is gone, as far as requests are concerned."""

    cause: str  # a sentence for people: "killed by SIGSEGV (11) in phase running, 4.0 s after ..."
    # Requests that were in the step it died in; empty: not known, any that ran may have been.
    suspects: tuple[int, ...] = ()
    is_external: bool = False  # ended from outside or by us: no request is to blame
    signature: str = ""  # of the crash, where there is one
    blamed_mode: str = ""  # what was taken out for it: this crash convicts no request
    is_planned: bool = False  # replaced by a reload: that counts against no request
    is_lower: bool = False  # the next engine runs a lower rung for it
    is_back: bool = False  # the next engine has the settings before a reload, which may be to blame
    acquitted: tuple[str, ...] = ()  # fingerprints whose crashes turned out to be a mode's doing


class EngineListener(Protocol):
    """Told of every change of the engine's life that concerns requests."""

    def on_ready(self, ready: EngineReady, port: EnginePort) -> None: ...

    def on_message(self, message: RunMessage) -> None: ...

    def on_writable(self, is_writable: bool) -> None:
        """Whether the command pipe takes more without growing its buffer."""
        ...

    def suspected(self, suspects: tuple[int, ...]) -> frozenset[str]:
        """Fingerprints of the requests that may have ended the engine: of `suspects`, or of all
        that ran where it is empty."""
        ...

    def are_known(self, prints: frozenset[str]) -> bool:
        """Whether a request of these fingerprints was in a crash before."""
        ...

    def on_lost(self, lost: EngineLost) -> str:
        """A ready engine is gone and will be started again at once or soon. Returns the fingerprint
        of the request that is convicted of it, or an empty text."""
        ...

    def why_not_move(self, ready: EngineReady) -> str:
        """Why what runs could not go on with that engine, as a clause; empty where it could."""
        ...

    def on_down(self, code: str, text: str, retry_after_s: float | None) -> None:
        """No engine is to be expected soon: HOLD, or a refusal, which time alone does not mend:
        then `retry_after_s` is None."""
        ...
