"""Streams outlive engines: what a client gets from engines that die is what it would have got from
one that does not, and it ends once.

The whole service in one process, from HTTP down to the protocol's messages, with an engine whose
every token depends on everything before it (`mortal_engine.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web
from strata.api.app import ApiLimits, build_app, make_runner
from strata.config import Config
from strata.engines.port import EngineLost
from strata.serving.recorder import NullRecorder
from strata.serving.service import EngineService
from strata.text.model import TextModel

from tests.api.sse_reader import Stream, read_stream
from tests.fakes.mortal_engine import Death, MortalEngine
from tests.text.small_models import small_model

CASES = 300


class World:
    """A server and its engine."""

    def __init__(self, url: str, http: aiohttp.ClientSession, engine: MortalEngine) -> None:
        self.url = url
        self.http = http
        self.engine = engine

    async def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the client sees of one request, the same for streams and whole answers."""
        async with self.http.post(self.url + path, json=body) as response:
            if not body.get("stream"):
                return whole(await response.json(), dict(response.headers), response.status)
            assert response.status == 200
            return streamed(await read_stream(response), body.get("n", 1))


def whole(answer: Any, headers: dict[str, str], status: int) -> dict[str, Any]:
    if status != 200:
        retry = headers["x-should-retry"]
        return {"status": status, "code": answer["error"]["code"], "should_retry": retry}
    choices = [
        {
            "text": c["message"]["content"] if "message" in c else c["text"],
            "logprobs": c.get("logprobs"),
            "finish": c["finish_reason"],
        }
        for c in answer["choices"]
    ]
    return {"choices": choices, "usage": answer["usage"]}


def streamed(stream: Stream, count: int) -> dict[str, Any]:
    assert stream.done + len(stream.errors) == 1, "one terminal event"
    assert stream.is_complete == (stream.done == 1)
    if stream.errors:
        return {"code": stream.errors[0]["code"], "comments": stream.comments}
    choices = []
    for index in range(count):
        scored = [
            c["logprobs"]
            for chunk in stream.chunks
            for c in chunk["choices"]
            if c["index"] == index and c.get("logprobs")
        ]
        (finish,) = stream.finish_reasons(index)
        choices.append({"text": stream.text(index), "logprobs": joined(scored), "finish": finish})
    return {"choices": choices}


def joined(parts: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Logprobs of chunks, put together by field."""
    out: dict[str, list[Any]] = {}
    for part in parts:
        for name, values in part.items():
            out.setdefault(name, []).extend(values or [])
    return out


@contextlib.asynccontextmanager
async def serving(
    death: Death, text: TextModel, limits: ApiLimits | None = None, **settings: Any
) -> AsyncIterator[World]:
    service = EngineService(Config(**settings), NullRecorder(), jitter=lambda: 0.5)
    vocabulary = text.vocabulary
    tokens = [i for i in range(vocabulary.size) if vocabulary.pieces[i]]
    tokens = [i for i in tokens if i not in vocabulary.stop_ids]
    engine = MortalEngine(service, tokens, death)
    runner = make_runner(build_app(service, "tiny", text, limits=limits), shutdown_s=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    timeout = aiohttp.ClientTimeout(total=30)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as http:
            yield World(f"http://{host}:{port}", http, engine)
    finally:
        await runner.cleanup()


def immortal(_: MortalEngine) -> None:
    return None


KILLED = EngineLost("it was killed", is_external=True)
CRASHED = EngineLost("it crashed")
MODE_CRASHED = EngineLost("it crashed in a mode", blamed_mode="batch")


def dying_at(deaths: dict[int, EngineLost]) -> Death:
    """Dies in the steps with these numbers, counted over all lives."""
    return lambda engine: deaths.get(engine.step_count)


def any_body(rng: random.Random) -> tuple[str, dict[str, Any]]:
    is_chat = rng.random() < 0.5
    words = " ".join(rng.choice(["fox", "dog", "tree", "sun", "ö"]) for _ in range(9))
    body: dict[str, Any] = {
        "max_tokens": rng.randint(7, 50),
        "stream": rng.random() < 0.7,
        "n": rng.choice([1, 1, 2, 3]),
        "seed": rng.randint(0, 1000),
        "temperature": rng.choice([0, 0.8]),
        "min_tokens": rng.choice([0, 0, 7]),
        "presence_penalty": rng.choice([0, 0.5]),
    }
    if rng.random() < 0.5:
        body["logprobs"] = True if is_chat else 2
        if is_chat:
            body["top_logprobs"] = 3
    if is_chat:
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": words}]}
    if rng.random() < 0.3:
        body["echo"] = True
    return "/v1/completions", body | {"prompt": words}


def with_stop(rng: random.Random, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Sometimes a stop string that the answer runs into, across tokens."""
    text = answer["choices"][0]["text"]
    if len(text) < 12 or rng.random() < 0.5:
        return body
    at = rng.randint(len(text) // 2, len(text) - 4)
    return body | {"stop": [text[at : at + 3], "never to be seen"]}


async def test_what_a_client_gets_does_not_depend_on_deaths() -> None:
    text = small_model(context=4096)
    deaths = resumes = 0
    async with serving(immortal, text) as calm, serving(immortal, text) as stormy:
        for case in range(CASES):
            rng = random.Random(case)
            requests = [any_body(rng) for _ in range(rng.choice([1, 1, 2, 4]))]
            first = await asyncio.gather(*(calm.ask(*r) for r in requests))
            requests = [
                (path, with_stop(rng, body, answer))
                for (path, body), answer in zip(requests, first, strict=True)
            ]
            calm.engine.step_count = stormy.engine.step_count = 0
            wanted = await asyncio.gather(*(calm.ask(*r) for r in requests))
            kinds = rng.choice([[KILLED] * 2, [CRASHED, KILLED], [MODE_CRASHED] * 2])
            steps = {rng.randint(1, max(calm.engine.step_count, 1)): kind for kind in kinds}
            stormy.engine.death = dying_at(steps)
            stormy.engine.loses_last = rng.random() < 0.5
            lives, resumed = stormy.engine.lives, stormy.engine.resumes
            stormy.engine.step_count = 0
            got = await asyncio.gather(*(stormy.ask(*r) for r in requests))
            assert got == wanted, f"case {case}: {requests}, deaths at {steps}"
            deaths += stormy.engine.lives - lives
            resumes += stormy.engine.resumes - resumed
    assert deaths > CASES
    assert resumes > CASES
