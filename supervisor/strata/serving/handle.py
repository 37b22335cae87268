"""The mailbox of one accepted request: events go in as they come, the reader takes them merged.

Tokens go past the mailbox while its reader waits and takes them on the spot. Else they are merged
until they are read; how many can pile up is bounded by the request's credit, which grows only as
the reader takes tokens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from strata_protocol.messages import TokenLogprob

from strata.serving.request import CancelReason, Event, Failed, Finished, Taker, TokensReady


class RequestHandle:
    """`serving.request.Handle` of one request; one reader at a time."""

    __slots__ = (
        "_events",
        "_ids",
        "_is_ended",
        "_logprobs",
        "_on_cancel",
        "_on_consumed",
        "_take",
        "_waiter",
        "rid",
    )

    def __init__(
        self,
        rid: int,
        on_consumed: Callable[[int, int], None],
        on_cancel: Callable[[int, CancelReason], None],
    ) -> None:
        self.rid = rid
        self._on_consumed = on_consumed
        self._on_cancel = on_cancel
        self._events: deque[Event] = deque()
        self._ids: list[int] = []  # tokens after the last of `_events`
        self._logprobs: list[TokenLogprob] = []
        self._waiter: asyncio.Future[None] | None = None
        self._take: Taker | None = None  # of the reader that waits
        self._is_ended = False

    def push(self, event: Event) -> None:
        """Adds an event, or gives it to the reader's `take`. Nothing may follow a terminal one."""
        if isinstance(event, TokensReady):
            if self._take is not None and self._is_taken(event, self._take):
                return
            self._ids += event.ids
            self._logprobs += event.logprobs
        else:
            self._close_tokens()
            self._events.append(event)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def __aiter__(self) -> RequestHandle:
        return self

    async def __anext__(self) -> Event:
        if self._is_ended:
            raise StopAsyncIteration
        return await self.next(_take_nothing)

    async def next(self, take: Taker) -> Event:
        """The next event that `take` leaves (`serving.request.Handle`)."""
        if self._is_ended:
            raise RuntimeError(f"request {self.rid} has ended")
        while not self._events and not self._ids:
            self._waiter = asyncio.get_running_loop().create_future()
            self._take = take
            try:
                await self._waiter
            finally:
                self._waiter = self._take = None
        if not self._events:
            self._close_tokens()
        event = self._events.popleft()
        if isinstance(event, TokensReady):
            self._on_consumed(self.rid, len(event.ids))
        elif isinstance(event, Finished | Failed):
            self._is_ended = True
        return event

    def cancel(self, why: CancelReason = CancelReason.CLIENT) -> None:
        """Ends the request within one step; a terminal event still follows. Idempotent."""
        self._on_cancel(self.rid, why)

    def _is_taken(self, event: TokensReady, take: Taker) -> bool:
        """Whether the reader, which still waits, has them now. Its errors end its wait."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return False
        try:
            if not take(event):
                return False
        except Exception as error:
            waiter.set_exception(error)
        self._on_consumed(self.rid, len(event.ids))
        return True

    def _close_tokens(self) -> None:
        if self._ids:
            self._events.append(TokensReady(self._ids, self._logprobs))
            self._ids, self._logprobs = [], []


def _take_nothing(_: TokensReady) -> bool:
    return False
