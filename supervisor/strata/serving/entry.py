"""One accepted request inside serving: its state and what it has been given so far.

    WAITING -> SUBMITTED -> STREAMING -> (terminal: the entry is forgotten)
       ^           |            |
       └───────────┴────────────┘  the engine died or drained: it is parked for the next one

Only the scheduler changes an entry.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from strata_protocol.errors import FaultCode, ProtocolFault
from strata_protocol.messages import (
    Done,
    ErrorKind,
    FinishReason,
    PromptLogprobs,
    Timings,
    TokensItem,
)
from strata_protocol.streams import new_tokens

from strata.serving.request import (
    Failed,
    Finished,
    PromptScored,
    RequestSpec,
    TokensReady,
)

CREDIT_WINDOW = 512  # output tokens the engine may be ahead of the reader


class RequestState(enum.Enum):
    WAITING = "waiting"  # in the line; the engine does not know it
    SUBMITTED = "submitted"  # sent; no token yet
    STREAMING = "streaming"  # tokens have come; another engine must go on where this one was


@dataclass(slots=True, eq=False)
class Entry:
    rid: int
    spec: RequestSpec
    arrived_s: float
    deadline_s: float  # inf where there is no limit
    state: RequestState = RequestState.WAITING
    submitted_s: float = 0.0  # to the engine that has it now
    first_token_s: float = 0.0  # from that engine; 0 = none yet
    last_token_s: float = 0.0
    received: int = 0  # output tokens so far, absolute
    consumed: int = 0  # of them, read by the client's side
    granted: int = CREDIT_WINDOW  # output tokens the engine may produce, absolute
    scored: int = 0  # prompt index up to which logprobs were delivered
    losses: int = 0  # engines that died with it, as far as that counts
    is_spared: bool = False  # one such end did not count: it led to a lower rung
    lost_s: float | None = None  # when the last engine that had it was lost, while none has it
    aside_s: float = 0.0  # since when it waits to run alone
    was_shared: bool = False  # the engine that has it ran others beside it
    retries: int = 0  # alone, after logits that were not finite
    queue_ms: float = 0.0  # spent in the line so far
    prefill_ms: float = 0.0  # in engines that were lost
    decode_ms: float = 0.0
    held_at: int | None = None  # while suspects are tried: the credit it was sent
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
    def priority(self) -> int:
        return self.spec.priority

    @property
    def engine_priority(self) -> int:
        """Higher goes first. The engine is told the class alone: within a class, what was sent
        has been put in order here, and no client may get ahead of another key's requests."""
        return -1 if self.spec.priority > 0 else 0

    @property
    def is_stalled(self) -> bool:
        """Out of credit: its reader does not read, so the engine does not run it either."""
        return self.received >= self.granted

    @property
    def has_begun(self) -> bool:
        return self.received > 0

    def start(self, now: float) -> None:
        """It leaves the line for the engine."""
        since_s = self.arrived_s if self.lost_s is None else self.lost_s
        self.queue_ms += (now - since_s) * 1000
        self.state = RequestState.STREAMING if self.has_begun else RequestState.SUBMITTED
        self.submitted_s = now
        self.first_token_s = 0.0
        self.lost_s = None
        self.was_shared = False
        self.granted = max(self.granted, self.consumed + CREDIT_WINDOW)

    def park(self, now: float) -> None:
        """Back to the line. What it has been given stays given."""
        if self.first_token_s:
            self.prefill_ms += (self.first_token_s - self.submitted_s) * 1000
            self.decode_ms += (self.last_token_s - self.first_token_s) * 1000
        self.state = RequestState.WAITING
        self.lost_s = now
        self.held_at = None

    def cancelled(self) -> Finished:
        """The end of a cancelled request that no engine answers for."""
        return Finished(FinishReason.CANCELLED, self.prompt_tokens, 0, self.received, Timings())

    def outcome(self, done: Done) -> Failed | Finished:
        """How it ends where the engine's word counts."""
        if done.reason is FinishReason.ERROR:
            kind = done.error_kind or ErrorKind.INTERNAL
            return Failed(kind, done.code or kind.value, done.text)
        return Finished(
            done.reason,
            done.prompt_tokens,
            done.cached_tokens,
            done.output_tokens,
            self.timings(done.timings),
            done.stop_id,
            done.drafted_tokens,
            done.accepted_tokens,
        )

    def outcome_is_fine(self, done: Done) -> bool:
        """Whether the engine computed it to an end of its own."""
        return not self.is_cancelled and done.reason in (FinishReason.STOP, FinishReason.LENGTH)

    def take_scores(self, message: PromptLogprobs) -> PromptScored | None:
        """What is new in logprobs of the prompt; None where nothing is. Raises ProtocolFault for a
        gap."""
        skip = self.scored - message.offset if self.scored else 0
        if skip < 0:
            raise ProtocolFault(FaultCode.ORDER, "the logprobs of its prompt have a gap")
        logprobs = message.logprobs[skip:] if skip else message.logprobs
        if not logprobs:
            return None
        self.scored = message.offset + len(message.logprobs)
        return PromptScored(message.offset + skip, logprobs)

    def timings(self, last: Timings) -> Timings:
        """Over all engines that had it; `last` is what the one that finished it says."""
        return Timings(
            last.queue_ms + self.queue_ms,
            last.prefill_ms + self.prefill_ms,
            last.decode_ms + self.decode_ms,
        )


def unrepeated(item: TokensItem, received: int) -> TokensReady:
    """What is new in `item` after `received` tokens. Raises ProtocolFault for a gap."""
    ids = new_tokens(received, item.offset, item.ids)
    return TokensReady(ids, item.logprobs[len(item.ids) - len(ids) :])
