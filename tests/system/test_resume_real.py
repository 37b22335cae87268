"""`kill -9` of the real engine at random points of running answers: what clients get is what they
would have got, and each stream ends once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.api.sse_reader import Stream, read_line
from tests.api.test_resume import streamed, whole
from tests.system.real_service import Service

pytestmark = [pytest.mark.model, pytest.mark.slow]

SEEDS = 3  # each with a service of its own: starts are counted by the hour
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = [{"role": "user", "content": "Write a story about a fox and a dog."}]
SAMPLED = {"temperature": 0.9, "seed": 7, "top_p": 0.95, "presence_penalty": 0.6}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": ASK, "temperature": 0, "max_tokens": 90, "stream": True}),
    (
        TEXT,
        {"prompt": "The sea is", "max_tokens": 60, "stream": True, "n": 2, "logprobs": 2}
        | {"frequency_penalty": 0.4, "repetition_penalty": 1.1, "min_tokens": 20}
        | SAMPLED,
    ),
    (
        CHAT,
        {"messages": ASK, "max_tokens": 70, "logprobs": True, "top_logprobs": 3}
        | {"logit_bias": {"28": -5.0}}
        | SAMPLED,
    ),
    (TEXT, {"prompt": "One, two, three,", "temperature": 0, "max_tokens": 80, "stop": [" and"]}),
    (
        TEXT,
        {
            "prompt": "Once upon a time " * 90,
            "max_tokens": 40,
            "stream": True,
            "echo": True,
            "seed": 3,
        },
    ),
]


@pytest.fixture
def service(engine_path: Path, smollm2_path: Path, tmp_path: Path) -> Iterator[Service]:
    flags = ("--max-context", "2048")
    service = Service(engine_path, smollm2_path, tmp_path / "run", *flags)
    try:
        service.wait_ready()
        yield service
    finally:
        status = service.stop()
    assert status == 0, "".join(service.lines)


class Killer:
    """Kills the engine when it has seen so many chunks of all streams."""

    def __init__(self, url: str, http: aiohttp.ClientSession, after: list[int]) -> None:
        self.url, self.http = url, http
        self.after = sorted(after)
        self.seen = 0
        self.kills = 0

    async def on_chunk(self) -> None:
        self.seen += 1
        if not self.after or self.seen < self.after[0]:
            return
        self.after.pop(0)
        async with self.http.get(self.url + "/v1/status") as response:
            engine = (await response.json())["engine"]
        if engine is not None:
            with contextlib.suppress(ProcessLookupError):  # killed a moment ago
                os.kill(engine["pid"], signal.SIGKILL)
                self.kills += 1


async def ask(killer: Killer, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What the client gets, and the comments it does not see."""
    async with killer.http.post(killer.url + path, json={"model": "smollm2"} | body) as response:
        if not body.get("stream"):
            return whole(await response.json(), dict(response.headers), response.status), []
        assert response.status == 200, await response.text()
        stream = Stream()
        try:
            async for raw in response.content:
                if read_line(stream, raw):
                    await killer.on_chunk()
        except aiohttp.ClientPayloadError:
            stream.is_complete = False
        return streamed(stream, body.get("n", 1)), stream.comments


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_answers_do_not_depend_on_kills(service: Service, seed: int) -> None:
    rng = random.Random(seed)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=100)) as http:

        async def all_of(after: list[int]) -> tuple[list[Any], list[str], int]:
            killer = Killer(service.url, http, after)
            answers = await asyncio.gather(*(ask(killer, *r) for r in REQUESTS))
            return [a for a, _ in answers], [c for _, cs in answers for c in cs], killer.kills

        calm, _, _ = await all_of([])
        after = [rng.randint(1, 120), rng.randint(1, 120)]
        stormy, comments, kills = await all_of(after)
    for got, wanted, request in zip(stormy, calm, REQUESTS, strict=True):
        for answer in (got, wanted):
            answer.pop("usage", None)  # how much of a prompt was cached may differ
        assert got == wanted, f"kills after {after} chunks: {request}"
    assert kills
    assert any("goes on" in comment for comment in comments)
