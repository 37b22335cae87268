"""One accepted request inside serving: its state and what it has been given so far.

    WAITING -> SUBMITTED -> STREAMING -> (terminal: the entry is forgotten)
       ^           |
       └───────────┘  the engine died or drained before a token came

Only the scheduler changes an entry.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from strata_protocol.messages import ErrorKind

from strata.serving.request import Failed, RequestSpec

CREDIT_WINDOW = 512  # output tokens the engine may be ahead of the reader


class RequestState(enum.Enum):
    WAITING = "waiting"  # in the line; the engine does not know it
    SUBMITTED = "submitted"  # sent; no token yet
    STREAMING = "streaming"  # tokens have come; it cannot start over unseen


@dataclass(slots=True, eq=False)
class Entry:
    rid: int
    spec: RequestSpec
    arrived_s: float
    deadline_s: float  # inf where there is no limit
    state: RequestState = RequestState.WAITING
    submitted_s: float = 0.0
    last_token_s: float = 0.0
    received: int = 0  # output tokens so far, absolute
    consumed: int = 0  # of them, read by the client's side
    granted: int = CREDIT_WINDOW  # output tokens the engine may produce, absolute
    scored: int = 0  # prompt index up to which logprobs were delivered
    requeues: int = 0  # engines that died with it
    ending: Failed | None = None  # the error that the engine's DONE will be answered with
    is_cancelled: bool = False
    cancelled_s: float = math.inf  # when the engine was first sent CANCEL

    @property
    def key(self) -> str:
        return self.spec.key

    @property
    def prompt_tokens(self) -> int:
        return len(self.spec.prompt_ids)

    @property
    def is_stalled(self) -> bool:
        """Out of credit: its reader does not read, so the engine does not run it either."""
        return self.received >= self.granted

    def reset(self) -> None:
        """Back to the line, as if never submitted. Only before the first token."""
        self.state = RequestState.WAITING
        self.granted = CREDIT_WINDOW


def deadline_exceeded(timeout_s: float) -> Failed:
    return Failed(
        ErrorKind.OVERLOADED,
        "deadline_exceeded",
        f"the request did not finish within request_timeout_s = {timeout_s:g} s",
    )
