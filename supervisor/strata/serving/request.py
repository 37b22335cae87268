"""What `api` asks of `serving`, and what it gets back: the types of one request's life.

`api` turns a dialect's body into a `RequestSpec`, submits it, and reads events until exactly one
terminal event (`Finished` or `Failed`). It never sees the engine, a frame or a process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from strata_protocol.features import Feature
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
from strata.serving.needs import Mode, mode_name


@dataclass(frozen=True, slots=True)
class RequestSpec:
    request_id: str  # what logs, errors and the x-request-id header show
    prompt_ids: Sequence[int]  # at least one
    params: SamplingParams  # max_tokens already clamped to what the context leaves
    key: str = ""  # fair-share key (API key or client address)


@dataclass(frozen=True, slots=True)
class TokensReady:
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


@dataclass(frozen=True, slots=True)
class Failed:
    kind: ErrorKind
    code: str  # "engine_restarted", "numeric_fault", ...
    text: str
    param: str | None = None  # the body's field that is the reason, where one is


Event = TokensReady | PromptScored | Paused | Finished | Failed


class RejectedError(Exception):
    """The request was not accepted; nothing was computed.

    `kind` implies the HTTP status (api/errors.py): OVERLOADED -> 503, with
    `retry_after_s` always set; INVALID_REQUEST -> 400; UNSUPPORTED -> 400.
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


class Handle(Protocol):
    """One accepted request. Iterating yields events; the last one is terminal.

    Tokens that arrived since the last read come merged in one `TokensReady`. A reader that does
    not read stops its own sequence through credits and no other.
    """

    def __aiter__(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> None:
        """Ends the request within one step; a terminal event still follows. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the running engine said when it became ready."""

    model: ModelFacts
    plan: ModePlan
    modes: Sequence[ModeRow] = ()  # requested, runs, because
    features: frozenset[Feature] = frozenset()  # that a request may ask for

    @property
    def mode(self) -> Mode:
        """What requests are placed in."""
        return Mode(mode_name(self.plan), self.features)


class Service(Protocol):
    """The serving layer as `api` sees it."""

    @property
    def facts(self) -> EngineFacts | None:
        """Facts of the engine that is ready or was last ready; None before the first READY."""
        ...

    async def submit(self, spec: RequestSpec) -> Handle:
        """Admits a request (it may wait in the queue, also while the engine restarts).

        Raises RejectedError when it is refused: queue full, engine not coming back soon, draining,
        prompt longer than the context, needs that the running mode does not have.
        """
        ...
