"""What the scheduler wants done. `service.py` carries it out, in order."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from strata_protocol.messages import Cancel, Credit, Resume, Submit

from strata.serving.request import Event


@dataclass(frozen=True, slots=True)
class Send:
    message: Submit | Resume | Cancel | Credit


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """A Struct, as TokensReady is one."""

    rid: int
    event: Event


@dataclass(frozen=True, slots=True)
class Fault:
    """The engine broke the protocol; it must be ended."""

    text: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """Requests that failed in steps of this mode were fine alone."""

    mode: str  # "batch", "batch_mtp"


Effect = Send | Deliver | Fault | Doubt
