"""Reads server-sent events the way a strict client does."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass
class Stream:
    """A whole stream: its chunks, comments, and how it ended."""

    chunks: list[Any] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    errors: list[Any] = field(default_factory=list)
    done: int = 0
    is_complete: bool = True  # the body ended as HTTP says it must
    order: list[str] = field(default_factory=list)

    def text(self, index: int = 0) -> str:
        parts = []
        for chunk in self.chunks:
            for choice in chunk["choices"]:
                if choice["index"] == index:
                    delta = choice.get("delta")
                    parts.append(choice["text"] if delta is None else delta.get("content") or "")
        return "".join(parts)

    def finish_reasons(self, index: int = 0) -> list[str]:
        return [
            choice["finish_reason"]
            for chunk in self.chunks
            for choice in chunk["choices"]
            if choice["index"] == index and choice["finish_reason"] is not None
        ]


def read_line(stream: Stream, raw: bytes) -> bool:
    """Files one line; whether it was a chunk."""
    line = raw.decode().rstrip("\n")
    if not line:
        return False
    if line.startswith(":"):
        stream.comments.append(line)
        return False
    assert line.startswith("data: "), line
    payload = line.removeprefix("data: ")
    if payload == "[DONE]":
        stream.done += 1
        stream.order.append("done")
        return False
    event = json.loads(payload)
    if "error" in event:
        stream.errors.append(event["error"])
        stream.order.append("error")
        return False
    stream.chunks.append(event)
    stream.order.append("chunk")
    return True


async def read_stream(response: aiohttp.ClientResponse) -> Stream:
    stream = Stream()
    try:
        async for raw in response.content:
            read_line(stream, raw)
    except aiohttp.ClientPayloadError:
        stream.is_complete = False
    return stream
