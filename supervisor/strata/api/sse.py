"""One response of server-sent events.

The headers go out at admission. While nothing else is sent, a comment line goes out every `ping_s`,
so that proxies keep the connection; a pause is told in a comment at once. A stream ends in one of
two ways, and only one: `finish` (`[DONE]`, complete body), or `fail` (one error event, and a body
that is cut off, so that no client can take it for whole).

While the client keeps up, events need no task that waits: `send_now` writes them on the spot, in
the chunks of HTTP/1.1. One write per event, as each token must leave in the step that made it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from strata.api.errors import ApiError
from strata.api.tasks import single_error

log = logging.getLogger(__name__)

_DATA_BYTES = len("data: ") + len("\n\n")  # of an event beside its payload

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """Writes to one client. `send` returns when the client's buffer has room again."""

    __slots__ = (
        "_comment_s",
        "_last_s",
        "_ping_s",
        "_request",
        "_response",
        "_transport",
        "_write_idle_s",
        "_writing_s",
    )

    def __init__(self, request: web.Request, *, ping_s: float, write_idle_s: float) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=_HEADERS)
        self._ping_s = ping_s
        self._write_idle_s = write_idle_s
        self._last_s = 0.0  # when the last bytes went out
        self._comment_s = -math.inf  # when the last comment did
        self._writing_s: float | None = None  # since when a write waits for the client
        self._transport: asyncio.Transport | None = None  # once the body has begun, in chunks

    async def run(self, produce: Callable[[], Awaitable[None]]) -> web.StreamResponse:
        """Sends the headers, then what `produce` sends, then `[DONE]`; or, when `produce` raises,
        the error. Only cancellation passes through: then the client is gone."""
        await self._response.prepare(self._request)
        try:
            await self._run_pinged(produce)
        except ApiError as error:
            await self._fail(error)
        except ConnectionError:
            log.info("the client went away during a stream")
        except Exception:
            log.exception("a stream failed")
            await self._fail(ApiError(500, "internal error", code="internal"))
        else:
            await self._write(b"data: [DONE]\n\n")
            await self._response.write_eof()
        return self._response

    async def send(self, payload: bytes) -> None:
        """One event with `payload` (JSON on one line) as its data."""
        await self._write(b"data: " + payload + b"\n\n")

    @property
    def is_free(self) -> bool:
        """Whether `send_now` may be called: the body has begun, and all of it so far is with the
        system, so the client keeps up."""
        transport = self._transport
        return (
            transport is not None
            and self._writing_s is None
            and not transport.get_write_buffer_size()
            and not transport.is_closing()
        )

    def send_now(self, payload: bytes) -> None:
        """As `send`, without waiting for anything; only while `is_free`."""
        if self._transport is None:
            raise RuntimeError("send_now before the body has begun")
        self._last_s = time.monotonic()
        size = _DATA_BYTES + len(payload)
        self._transport.write(b"%x\r\ndata: %b\n\n\r\n" % (size, payload))

    async def comment(self, text: str) -> None:
        """Tells `text` (one line) in a comment, which no client takes for data; left out where the
        last comment was less than `ping_s` ago."""
        now_s = time.monotonic()
        if now_s - self._comment_s >= self._ping_s:
            self._comment_s = now_s
            await self._write(b": " + text.encode() + b"\n\n")

    async def _fail(self, error: ApiError) -> None:
        try:
            await self._write(b"data: " + error.body() + b"\n\n")
        except ConnectionError:
            return
        transport = self._request.transport
        if transport is not None:
            transport.close()  # what is buffered goes out; the end-of-body mark never does

    async def _write(self, data: bytes) -> None:
        self._last_s = self._writing_s = time.monotonic()
        await self._response.write(data)
        self._writing_s = None
        # The headers went out with that. An answer to HTTP/1.0 has no chunks.
        if self._response.headers.get("Transfer-Encoding") == "chunked":
            self._transport = self._request.transport

    async def _run_pinged(self, produce: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                pinger = group.create_task(self._ping())
                try:
                    await produce()
                finally:
                    pinger.cancel()
        except BaseExceptionGroup as group_error:
            raise single_error(group_error) from group_error

    async def _ping(self) -> None:
        self._last_s = time.monotonic()
        while True:
            await asyncio.sleep(max(self._last_s + self._ping_s - time.monotonic(), 0.001))
            now_s = time.monotonic()
            if self._writing_s is not None:
                if now_s - self._writing_s >= self._write_idle_s:
                    transport = self._request.transport
                    if transport is not None:
                        transport.abort()
                    return
                self._last_s = now_s
            elif now_s - self._last_s >= self._ping_s:
                self._comment_s = now_s
                await self._write(b": ping\n\n")
