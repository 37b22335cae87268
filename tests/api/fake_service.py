"""A scripted `Service`: what it was asked is recorded, what it answers is up to the test."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from strata.serving.needs import Mode, mode_name
from strata.serving.request import (
    CancelReason,
    EngineFacts,
    Event,
    Failed,
    Finished,
    RejectedError,
    RequestSpec,
    Taker,
    TokensReady,
)
from strata.text.model import TextModel
from strata_protocol.features import FIELDS
from strata_protocol.messages import (
    FinishReason,
    ModelFacts,
    ModePlan,
    Timings,
    TokenLogprob,
    TopLogprob,
)

Script = Callable[[RequestSpec], Sequence[Event]]


def facts(context: int = 256, batch: int = 8) -> EngineFacts:
    plan = ModePlan(
        batch=batch,
        max_context=context,
        kv="f16",
        prefill=256,
        activations="f32",
        threads=1,
        kv_tokens=context * batch,
    )
    return EngineFacts(
        ModelFacts(architecture="llama", name="tiny"),
        plan,
        serving=[Mode(mode_name(plan), frozenset(FIELDS))],
    )


def finished(
    spec: RequestSpec, output_tokens: int, reason: FinishReason = FinishReason.STOP, cached: int = 0
) -> Finished:
    return Finished(reason, len(spec.prompt_ids), cached, output_tokens, Timings())


class FakeHandle:
    """Events come from `push`; after a cancel the terminal event follows by itself."""

    def __init__(self, spec: RequestSpec) -> None:
        self.spec = spec
        self.cancelled = asyncio.Event()
        self.why: CancelReason | None = None  # of the cancel
        self.pushed_tokens = 0
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._ended = False

    def push(self, *events: Event) -> None:
        for event in events:
            if self._ended:
                return
            if isinstance(event, TokensReady):
                self.pushed_tokens += len(event.ids)
            self._ended = isinstance(event, Finished | Failed)
            self._events.append(event)
        self._arrived.set()

    def cancel(self, why: CancelReason = CancelReason.CLIENT) -> None:
        if not self.cancelled.is_set():
            self.cancelled.set()
            self.why = why
            self.push(finished(self.spec, self.pushed_tokens, FinishReason.CANCELLED))

    async def next(self, take: Taker) -> Event:
        while True:
            while not self._events:
                self._arrived.clear()
                await self._arrived.wait()
            event = self._events.popleft()
            if not isinstance(event, TokensReady) or not take(event):
                return event

    async def __aiter__(self) -> AsyncIterator[Event]:
        event: Event | None = None
        while not isinstance(event, Finished | Failed):
            event = await self.next(lambda _: False)
            yield event


class FakePlace:
    def __init__(self, service: FakeService) -> None:
        self._service: FakeService | None = service
        service.places += 1
        service.wake()

    def release(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.places -= 1
            service.wake()


class FakeService:
    """Answers with `script(spec)`; without a script the test pushes the events."""

    def __init__(self, text: TextModel) -> None:
        self.text = text
        self.facts: EngineFacts | None = facts()
        self.script: Script | None = self.answering("Hello there!")
        self.rejection: RejectedError | None = None
        self.reject_from = 0  # index of the first submission that is refused
        self.closed: RejectedError | None = None  # what `reserve` answers
        self.places = 0  # reserved and not released
        self.reserved: list[str] = []  # keys
        self.handles: list[FakeHandle] = []
        self._changed = asyncio.Condition()
        self._wakers: set[asyncio.Event] = set()

    @property
    def specs(self) -> list[RequestSpec]:
        return [handle.spec for handle in self.handles]

    def reserve(self, key: str) -> FakePlace:
        if self.closed is not None:
            raise self.closed
        self.reserved.append(key)
        return FakePlace(self)

    async def submit(self, spec: RequestSpec) -> FakeHandle:
        if self.rejection is not None and len(self.handles) >= self.reject_from:
            raise self.rejection
        handle = FakeHandle(spec)
        self.handles.append(handle)
        if self.script is not None:
            handle.push(*self.script(spec))
        async with self._changed:
            self._changed.notify_all()
        return handle

    def wake(self) -> None:
        for waker in self._wakers:
            waker.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something about places."""
        waker = asyncio.Event()
        self._wakers.add(waker)
        while not condition():
            waker.clear()
            await waker.wait()
        self._wakers.discard(waker)

    async def submitted(self, count: int) -> list[FakeHandle]:
        """Waits until `count` requests have been submitted."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.handles) >= count)
        return self.handles

    def ids(self, text: str) -> list[int]:
        return self.text.tokenizer.encode(text, parse_special=False)

    def answering(
        self, *answers: str, reason: FinishReason = FinishReason.STOP, cached: int = 0
    ) -> Script:
        """One token per event; choice i gets answer i (the last one for those beyond)."""

        def script(spec: RequestSpec) -> list[Event]:
            ids = self.ids(answers[min(spec.params.choice, len(answers) - 1)])
            ids = ids[: spec.params.max_tokens]
            scored = spec.params.logprobs >= 0
            events: list[Event] = [
                TokensReady([i], [self.score(i, spec.params.logprobs)] if scored else [])
                for i in ids
            ]
            ended = reason if len(ids) < spec.params.max_tokens else FinishReason.LENGTH
            return [*events, finished(spec, len(ids), ended, cached)]

        return script

    @staticmethod
    def score(token_id: int, top: int) -> TokenLogprob:
        """Recognisable numbers: token t has -t/1000, its k-th alternative is t+k with less."""
        best = [TopLogprob(token_id + k, -(token_id + k) / 1000) for k in range(top)]
        return TokenLogprob(-token_id / 1000, best)
