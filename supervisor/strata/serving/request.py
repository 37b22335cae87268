"""What `api` asks of `serving`, and what it gets back: the types of one request's life.

`api` turns a dialect's body into a `RequestSpec`, submits it, and reads events until exactly one
terminal event (`Finished` or `Failed`). It never sees the engine, a frame or a process.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from strata_protocol.messages import (
    ErrorKind,
    FinishReason,
    ModelFacts,
    ModePlan,
    SamplingParams,
    Timings,
    TokenLogprob,
)

from strata.engines.modes import ModeRow
from strata.serving.needs import Misfit, Mode, needs_of, place


@dataclass(frozen=True, slots=True)
class RequestSpec:
    request_id: str  # what logs, errors and the x-request-id header show
    prompt_ids: Sequence[int]  # at least one
    params: SamplingParams  # max_tokens already clamped to what the context leaves
    key: str = ""  # fair-share key (API key or client address)
    priority: int = 0  # lower goes first among those of its key; above 0: batch work
    timeout_ms: int = 0  # the client's own limit from arrival to end; 0: none
    spent_s: float = 0.0  # of that, passed before it was submitted


class TokensReady(msgspec.Struct, frozen=True, gc=False):
    """Made for each step of each stream, and a Struct is made five times as fast as a frozen
    dataclass; it is never part of a cycle."""

    ids: Sequence[int]  # new tokens since the last event, in order
    logprobs: Sequence[TokenLogprob]  # one per id where asked for, else empty


@dataclass(frozen=True, slots=True)
class PromptScored:
    offset: int  # prompt index of the first entry
    logprobs: Sequence[TokenLogprob]


@dataclass(frozen=True, slots=True)
class Paused:
    """The engine is gone; the request goes on with the next one where it was."""

    text: str  # one line, for people


@dataclass(frozen=True, slots=True)
class Finished:
    reason: FinishReason  # STOP, LENGTH or CANCELLED
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    timings: Timings
    stop_id: int = -1  # stop id that ended it, or -1; it is not among the tokens delivered
    drafted_tokens: int = 0  # drafts that were verified for it by the engine that ended it
    accepted_tokens: int = 0  # of these the ones that were right


@dataclass(frozen=True, slots=True)
class Failed:
    kind: ErrorKind
    code: str  # "engine_restarted", "numeric_fault", ...
    text: str
    param: str | None = None  # the body's field that is the reason, where one is
    retry_after_s: float | None = None  # where it is known when the same may succeed


Event = TokensReady | PromptScored | Paused | Finished | Failed
Taker = Callable[[TokensReady], bool]  # whether it took the tokens; called on the event loop


class RejectedError(Exception):
    """The request was not accepted; nothing was computed.

    `kind` implies the HTTP status (api/errors.py): OVERLOADED -> 503, with `retry_after_s` set but
    for `engine_refused`, which no waiting mends; INVALID_REQUEST -> 400; UNSUPPORTED -> 400.
    """

    def __init__(
        self,
        kind: ErrorKind,
        code: str,
        text: str,
        *,
        retry_after_s: float | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.code = code
        self.text = text
        self.retry_after_s = retry_after_s
        self.param = param  # the body's field that is the reason, where one is


class CancelReason(enum.Enum):
    """Why a request that had been accepted is ended before its own end."""

    CLIENT = "client"  # the client went away, or took nothing for too long
    STOP = "stop"  # a stop string is complete
    SIBLING = "sibling"  # another choice of the same request failed or was refused
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"


class Place(Protocol):
    """The right of one request to be read and prepared; it counts as waiting until released."""

    def release(self) -> None:
        """Right before its submission, or when there is none. Idempotent."""
        ...


class Handle(Protocol):
    """One accepted request. Iterating yields events; the last one is terminal.

    Tokens that arrived since the last read come merged in one `TokensReady`. A reader that does
    not read stops its own sequence through credits and no other.
    """

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def next(self, take: Taker) -> Event:
        """The next event that `take` leaves.

        Tokens that come while the caller waits here are given to `take` at once, without waking
        the caller, which is most of what a token costs. What it does not take comes as an event,
        merged with what follows. What `take` raises, this raises.
        """
        ...

    def cancel(self, why: CancelReason = CancelReason.CLIENT) -> None:
        """Ends the request within one step; a terminal event still follows. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the running engine said when it became ready."""

    model: ModelFacts
    plan: ModePlan
    modes: Sequence[ModeRow] = ()  # requested, runs, because
    serving: Sequence[Mode] = ()  # what requests are placed in, the preferred first
    build: str = ""  # of the engine

    def mode_of(self, params: SamplingParams) -> int:
        """The index of the mode that serves a request which has been admitted."""
        placed = place(needs_of(params), self.serving)
        if isinstance(placed, Misfit):
            raise RuntimeError(f"a request that fits no mode was kept: {placed.text}")
        return self.serving.index(placed)


class Service(Protocol):
    """The serving layer as `api` sees it."""

    @property
    def facts(self) -> EngineFacts | None:
        """Facts of the engine that is ready or was last ready; None before the first READY."""
        ...

    def reserve(self, key: str) -> Place:
        """Asked before a request's body is read: whether one more of `key` may wait at all.

        Cheap. Raises RejectedError: queue full, too many of this key, engine not coming back soon,
        draining. Everything else is judged by `submit`.
        """
        ...

    async def submit(self, spec: RequestSpec) -> Handle:
        """Admits a request (it may wait in the queue, also while the engine restarts).

        Raises RejectedError when it is refused: queue full, engine not coming back soon, draining,
        prompt longer than the context, needs that the running mode does not have.
        """
        ...
