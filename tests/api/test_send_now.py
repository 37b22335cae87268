"""Tokens that are written on the spot, and what makes them wait instead."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from strata.api.chunk_frame import MARK, ChunkFrame
from strata.api.schemas import CompletionChoice
from strata.serving.handle import RequestHandle
from strata.serving.request import Event, Finished, TokensReady
from strata_protocol.messages import FinishReason, Timings

from tests.api.conftest import Server

ENDED = Finished(FinishReason.STOP, 1, 0, 3, Timings())


class Mailbox:
    """A handle, and a reader that takes tokens while `is_free`."""

    def __init__(self) -> None:
        self.consumed = 0
        self.is_free = True
        self.error: Exception | None = None
        self.taken: list[int] = []
        self.left: list[Event] = []
        self.handle = RequestHandle(1, self._on_consumed, lambda *_: None)
        self.task = asyncio.create_task(self._read())

    def _on_consumed(self, _rid: int, count: int) -> None:
        self.consumed += count

    def _take(self, event: TokensReady) -> bool:
        if self.error is not None:
            raise self.error
        if self.is_free:
            self.taken += event.ids
        return self.is_free

    async def _read(self) -> None:
        while not isinstance(event := await self.handle.next(self._take), Finished):
            self.left.append(event)


async def test_tokens_are_taken_while_the_reader_waits() -> None:
    box = Mailbox()
    box.handle.push(TokensReady([1], []))  # the reader has not begun
    await asyncio.sleep(0)
    assert (box.left, box.taken) == ([TokensReady([1], [])], [])
    box.handle.push(TokensReady([2, 3], []))
    assert (box.taken, box.consumed) == ([2, 3], 3)  # without a turn of the loop
    box.handle.push(ENDED)
    await box.task


async def test_what_is_not_taken_comes_merged_and_in_order() -> None:
    box = Mailbox()
    await asyncio.sleep(0)
    box.is_free = False
    box.handle.push(TokensReady([1], []))
    assert box.consumed == 0
    box.is_free = True
    box.handle.push(TokensReady([2], []))  # behind one that waits
    box.handle.push(ENDED)
    await box.task
    assert (box.left, box.taken, box.consumed) == ([TokensReady([1, 2], [])], [], 2)


async def test_an_error_of_the_taker_is_the_readers() -> None:
    box = Mailbox()
    await asyncio.sleep(0)
    box.error = ValueError("no such token")
    box.handle.push(TokensReady([1], []))  # the engine's other requests do not see it
    box.handle.push(TokensReady([2], []))
    with pytest.raises(ValueError, match="no such token"):
        await box.task


async def test_nothing_is_taken_for_a_reader_that_is_cancelled() -> None:
    box = Mailbox()
    await asyncio.sleep(0)
    box.task.cancel()
    box.handle.push(TokensReady([1], []))
    assert (box.taken, box.consumed) == ([], 0)
    with pytest.raises(asyncio.CancelledError):
        await box.task


async def test_after_the_end_nothing_is_read() -> None:
    box = Mailbox()
    box.handle.push(ENDED)
    await box.task
    with pytest.raises(RuntimeError, match="has ended"):
        await box.handle.next(box._take)


@pytest.mark.parametrize("text", ["", "x", '"\\\n\u2028', "\x00", "日本🙂"])
def test_a_filled_frame_is_the_chunk_encoded_whole(text: str) -> None:
    frame = ChunkFrame(CompletionChoice(3, MARK))
    assert frame.fill(text) == msgspec.json.encode(CompletionChoice(3, text))


def test_a_frame_without_its_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="the mark"):
        ChunkFrame(CompletionChoice(0, "text"))


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_the_body_is_framed_as_the_client_reads_it(server: Server, version: str) -> None:
    """An answer to HTTP/1.0 has no chunks and ends with its connection."""
    body = json.dumps({"prompt": "Hi", "stream": True}).encode()
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(
        f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    async with asyncio.timeout(10):
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert (b"chunked" in head) == (version == "1.1")
    if version == "1.1":
        rest = unchunked(rest)
    events = [part.removeprefix(b"data: ") for part in rest.split(b"\n\n") if part]
    assert events[-1] == b"[DONE]"
    texts = [json.loads(event)["choices"][0]["text"] for event in events[:-1]]
    assert "".join(texts) == "Hello there!"
    assert len(texts) > 3  # one for each token


def unchunked(data: bytes) -> bytes:
    """The body in chunked `data`; ValueError where its framing is wrong."""
    body = b""
    while True:
        size_text, _, data = data.partition(b"\r\n")
        size = int(size_text, 16)
        if data[size : size + 2] != b"\r\n":
            raise ValueError(f"a chunk of {size} bytes does not end: {data[:80]!r}")
        if not size:
            return body
        body, data = body + data[:size], data[size + 2 :]
