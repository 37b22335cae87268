"""The mailbox of one accepted request: events go in as they come, the reader takes them merged.

Tokens are merged until they are read; how many can pile up is bounded by the request's credit,
which grows only as the reader takes tokens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from strata_protocol.messages import TokenLogprob

from strata.serving.request import CancelReason, Event, Failed, Finished, TokensReady


class RequestHandle:
    """`serving.request.Handle` of one request; one reader at a time."""

    __slots__ = (
        "_events",
        "_ids",
        "_is_ended",
        "_logprobs",
        "_on_cancel",
        "_on_consumed",
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
        self._is_ended = False

    def push(self, event: Event) -> None:
        """Adds an event. Nothing may follow a terminal one."""
        if isinstance(event, TokensReady):
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
        while not self._events and not self._ids:
            if self._is_ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
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

    def _close_tokens(self) -> None:
        if self._ids:
            self._events.append(TokensReady(self._ids, self._logprobs))
            self._ids, self._logprobs = [], []
