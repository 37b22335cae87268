"""Runs the sequences of one HTTP request: submits them, reads their events, ends them.

Invariants: every sequence that was submitted is cancelled when the request ends for any other
reason than its own terminal event (error, disconnect, stop string); outputs of one choice come in
order, and its `ChoiceEnded` comes last and once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from msgspec import UNSET, UnsetType
from strata_protocol.messages import ErrorKind, FinishReason, Timings, TokenLogprob

from strata.api.choice import ChoiceText, Delta
from strata.api.errors import ApiError, from_failed, from_rejected
from strata.api.schemas import CompletionTokensDetails, PromptTokensDetails, RunTimings, Usage
from strata.api.tasks import single_error
from strata.serving.request import (
    CancelReason,
    Failed,
    Finished,
    Handle,
    Paused,
    Place,
    PromptScored,
    RejectedError,
    RequestSpec,
    Service,
    TokensReady,
)


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Scores of prompt tokens from index `offset` on."""

    offset: int
    logprobs: Sequence[TokenLogprob]


@dataclass(frozen=True, slots=True)
class ChoiceEnded:
    finish_reason: str  # "stop", "length" or "tool_calls"


@dataclass(frozen=True, slots=True)
class ChoicePaused:
    """The engine is gone; the choice goes on where it was. Seen as a comment at most."""

    text: str  # one line


Output = Delta | PromptLogprobs | ChoicePaused | ChoiceEnded


class Sink(Protocol):
    """Where the outputs of a request go, each with the index of its choice."""

    @property
    def is_free(self) -> bool:
        """Whether `put_now` may be called."""
        ...

    def put_now(self, index: int, delta: Delta) -> None:
        """Puts a delta without waiting."""
        ...

    async def put(self, index: int, output: Output) -> None:
        """Returns when there is room for more."""
        ...


@dataclass(slots=True)
class _Sequence:
    spec: RequestSpec
    text: ChoiceText
    handle: Handle | None = None
    cached_tokens: int = 0
    output_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    timings: Timings = field(default_factory=Timings)


class Generation:
    """One request's sequences; the index of a sequence is its choice index."""

    def __init__(
        self,
        service: Service,
        specs: Sequence[RequestSpec],
        texts: Sequence[ChoiceText],
        place: Place,
    ) -> None:
        self._service = service
        self._place = place
        self._sequences = [_Sequence(s, t) for s, t in zip(specs, texts, strict=True)]

    async def submit(self) -> None:
        """Submits every sequence. Raises ApiError when one is refused; then none runs."""
        self._place.release()  # from here on the sequences count
        try:
            for sequence in self._sequences:
                sequence.handle = await self._service.submit(sequence.spec)
        except RejectedError as error:
            self.cancel(CancelReason.SIBLING)
            raise from_rejected(error) from error
        except BaseException:
            self.cancel()
            raise

    async def run(self, sink: Sink) -> None:
        """Feeds `sink` until every choice has ended. Raises ApiError when one fails."""
        try:
            if len(self._sequences) == 1:
                await self._read(0, sink)
                return
            async with asyncio.TaskGroup() as group:
                for index in range(len(self._sequences)):
                    group.create_task(self._read(index, sink))
        except BaseExceptionGroup as group_error:
            error = single_error(group_error)
            if isinstance(error, ApiError):
                self.cancel(CancelReason.SIBLING)
            raise error from group_error
        finally:
            self.cancel()

    def cancel(self, why: CancelReason = CancelReason.CLIENT) -> None:
        """Ends what still runs. Idempotent."""
        for sequence in self._sequences:
            if sequence.handle is not None:
                sequence.handle.cancel(why)

    def usage(self, prompt_indices: Sequence[int]) -> Usage:
        """Totals. `prompt_indices` name one choice of each distinct prompt: a prompt counts once
        however many choices it has."""
        prompt = sum(len(self._sequences[i].spec.prompt_ids) for i in prompt_indices)
        cached = sum(self._sequences[i].cached_tokens for i in prompt_indices)
        output = sum(sequence.output_tokens for sequence in self._sequences)
        thought = [s.text.reasoning_tokens for s in self._sequences]
        counted = [tokens for tokens in thought if tokens is not None]
        return Usage(
            prompt,
            output,
            prompt + output,
            PromptTokensDetails(cached),
            self._details(sum(counted) if counted else None),
        )

    def _drafts(self) -> tuple[int, int]:
        """Drafts that were verified, and how many of them were right."""
        sequences = self._sequences
        return sum(s.drafted_tokens for s in sequences), sum(s.accepted_tokens for s in sequences)

    def _details(self, reasoning: int | None) -> CompletionTokensDetails | UnsetType:
        drafted, accepted = self._drafts()
        if reasoning is None and not drafted:
            return UNSET
        return CompletionTokensDetails(
            UNSET if reasoning is None else reasoning,
            accepted if drafted else UNSET,
            drafted - accepted if drafted else UNSET,
        )

    def timings(self) -> RunTimings:
        """Sums over the sequences that have ended."""
        sequences = self._sequences
        prefill_ms = sum(s.timings.prefill_ms for s in sequences)
        decode_ms = sum(s.timings.decode_ms for s in sequences)
        computed = sum(len(s.spec.prompt_ids) - s.cached_tokens for s in sequences)
        # The first token of an answer comes with its prefill.
        decoded = sum(max(s.output_tokens - 1, 0) for s in sequences)
        drafted, accepted = self._drafts()
        return RunTimings(
            queue_ms=sum(s.timings.queue_ms for s in sequences),
            prefill_ms=prefill_ms,
            decode_ms=decode_ms,
            prompt_per_second=_per_second(computed, prefill_ms),
            predicted_per_second=_per_second(decoded, decode_ms),
            draft_n=drafted or UNSET,
            draft_n_accepted=accepted if drafted else UNSET,
        )

    async def _read(self, index: int, sink: Sink) -> None:
        sequence = self._sequences[index]
        text, handle = sequence.text, sequence.handle
        if handle is None:
            raise RuntimeError("run() before submit()")

        def take(event: TokensReady) -> bool:
            if text.can_stop and text.is_stopped:
                return True  # what the engine made before the cancel reached it
            if not sink.is_free:
                return False
            delta = text.feed(event.ids, event.logprobs)
            if not delta.is_empty:
                sink.put_now(index, delta)
            if text.can_stop:
                _end_stopped(text, handle)
            return True

        while True:
            event = await handle.next(take)
            match event:
                case TokensReady():
                    if not text.is_stopped:
                        await self._show(index, handle, event, sink)
                case PromptScored(offset, logprobs):
                    await sink.put(index, PromptLogprobs(offset, logprobs))
                case Paused(why):
                    await sink.put(index, ChoicePaused(why))
                case Finished():
                    await self._finish(index, event, sink)
                    return
                case Failed():
                    if text.is_stopped:
                        sequence.output_tokens = text.tokens
                        await sink.put(index, ChoiceEnded(_stop_reason(text)))
                        return
                    raise from_failed(event)
                case _:
                    assert_never(event)

    async def _show(self, index: int, handle: Handle, event: TokensReady, sink: Sink) -> None:
        text = self._sequences[index].text
        delta = text.feed(event.ids, event.logprobs)
        if not delta.is_empty:
            await sink.put(index, delta)
        _end_stopped(text, handle)

    async def _finish(self, index: int, event: Finished, sink: Sink) -> None:
        sequence = self._sequences[index]
        sequence.cached_tokens = event.cached_tokens
        sequence.timings = event.timings
        sequence.drafted_tokens = event.drafted_tokens
        sequence.accepted_tokens = event.accepted_tokens
        text = sequence.text
        if text.is_stopped:
            sequence.output_tokens = text.tokens
            await sink.put(index, ChoiceEnded(_stop_reason(text)))
            return
        if event.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            why = "the request was cancelled by the server"
            raise from_failed(Failed(ErrorKind.CANCELLED, "cancelled", why))
        sequence.output_tokens = event.output_tokens
        is_whole = event.reason is FinishReason.STOP
        delta = text.finish(is_whole=is_whole)
        if not delta.is_empty:
            await sink.put(index, delta)
        await sink.put(index, ChoiceEnded(_stop_reason(text) if is_whole else "length"))


def _end_stopped(text: ChoiceText, handle: Handle) -> None:
    """Nothing more will be shown, so nothing more need be computed."""
    if text.is_stopped:
        handle.cancel(CancelReason.STOP)


def _stop_reason(text: ChoiceText) -> str:
    """Of a choice that was not cut off."""
    return "tool_calls" if text.has_called else "stop"


def _per_second(tokens: int, ms: float) -> float | None:
    return tokens * 1000 / ms if tokens and ms > 0 else None
