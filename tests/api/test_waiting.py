"""Requests that wait, over HTTP with the real serving layer and an engine in the test's hands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import strata_protocol.messages as m
from aiohttp import web
from strata.api.app import build_app, make_runner
from strata.config import Config
from strata.engines.port import EngineLost, EngineReady
from strata.observe.metrics import Metrics
from strata.serving.service import EngineService
from strata_protocol.features import FIELDS

from tests.api.sse_reader import read_stream
from tests.text.small_models import small_model

QUEUE = 3


@dataclass
class Quiet:
    """Implements `EnginePort`; says only what the test tells it to."""

    service: EngineService
    sent: list[Any] = field(default_factory=list)

    def come_up(self, batch: int = 1) -> None:
        plan = m.ModePlan(
            batch=batch, max_context=256, kv="f16", prefill=64, activations="f32", threads=1,
            kv_tokens=1024,
        )  # fmt: skip
        ready = m.Ready(
            plan=plan,
            load_ms=0,
            warm_ms=0,
            kv_pages=32,
            page_tokens=32,
            serving=[m.ServingMode(features=list(FIELDS))],
        )
        self.service.on_ready(EngineReady(m.ModelFacts(), ready, ()), self)

    def send(self, message: m.Submit | m.Resume | m.Cancel | m.Credit) -> None:
        self.sent.append(message)

    def fault(self, text: str) -> None:
        raise AssertionError(text)

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]

    def finish(self, rid: int) -> None:
        done = m.Done(rid, m.FinishReason.STOP, 1, 0, 0)
        self.service.on_message(done)


@dataclass
class World:
    url: str
    http: aiohttp.ClientSession
    service: EngineService
    engine: Quiet
    metrics: Metrics

    def ask(self, headers: dict[str, str] | None = None, **body: Any) -> Any:
        body = {"prompt": "Hi"} | body
        return self.http.post(self.url + "/v1/completions", json=body, headers=headers or {})

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for what the server does with what was sent to it over real sockets."""
        async with asyncio.timeout(10):
            while not condition():
                # A request of its own is the server's next chance to have moved.
                async with self.http.get(self.url + "/v1/models") as response:
                    assert response.status == 200

    def rejected(self, code: str) -> float:
        registry = self.metrics._registry
        return registry.get_sample_value("strata_rejected_total", {"reason": code}) or 0.0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    metrics = Metrics()
    service = EngineService(Config(queue_requests=QUEUE), metrics, jitter=lambda: 0.5)
    runner = make_runner(build_app(service, "tiny", small_model()), shutdown_s=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    ticker = asyncio.create_task(service.run())
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http:
        yield World(f"http://{host}:{port}", http, service, Quiet(service), metrics)
    ticker.cancel()
    service.end_all()
    await runner.cleanup()


async def test_streams_wait_with_their_headers_out_and_the_queue_stays_bounded(
    world: World,
) -> None:
    """No engine yet: streams are parked, one too many is refused with the time of the reload."""
    parked = [await world.ask(stream=True) for _ in range(QUEUE)]
    assert [response.status for response in parked] == [200] * QUEUE  # headers, and no engine
    async with world.ask(stream=True) as refused:
        assert refused.status == 503
        assert (await refused.json())["error"]["code"] == "queue_full"
        # 10 s for a load of which nothing is known, 2 s for each of four requests.
        assert refused.headers["retry-after-ms"] == "18000"
    assert world.rejected("queue_full") == 1
    world.engine.come_up(batch=QUEUE)
    for submit in world.engine.of(m.Submit):
        world.engine.finish(submit.rid)
    for response in parked:
        stream = await read_stream(response)
        assert (stream.done, stream.errors) == (1, [])


async def test_a_crash_parks_what_ran_and_it_counts(world: World) -> None:
    world.engine.come_up()
    running = [await world.ask(stream=True) for _ in range(QUEUE)]
    world.service.on_lost(EngineLost("it was killed", is_external=True))
    async with world.ask() as refused:
        assert refused.status == 503
    world.engine.sent.clear()
    world.engine.come_up()
    for submit in world.engine.of(m.Submit):
        world.engine.finish(submit.rid)
    for response in running:
        stream = await read_stream(response)
        assert stream.done == 1
        assert ": the engine restarts, the request goes on" in stream.comments


@pytest.mark.parametrize("stream", [False, True])
async def test_late_in_the_queue_never_reaches_the_engine(world: World, stream: bool) -> None:
    async with world.ask({"x-request-timeout-ms": "300"}, stream=stream) as response:
        if stream:
            errors = (await read_stream(response)).errors
            assert [error["code"] for error in errors] == ["deadline_exceeded"]
        else:
            assert response.status == 504
            error = (await response.json())["error"]
            assert "x-request-timeout-ms = 300" in error["message"]
    world.engine.come_up()
    assert world.engine.sent == []
    assert world.service.load().waiting == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_cancelled_in_the_engine(world: World, stream: bool) -> None:
    world.engine.come_up()
    request = asyncio.create_task(world.ask(stream=stream).__aenter__())
    await world.until(lambda: len(world.engine.of(m.Submit)) == 1)
    if stream:
        (await request).close()
    else:
        request.cancel()
    await world.until(lambda: len(world.engine.of(m.Cancel)) == 1)
    (submit,) = world.engine.of(m.Submit)
    assert world.engine.of(m.Cancel) == [m.Cancel(submit.rid)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_the_queue_makes_room(world: World, stream: bool) -> None:
    waiting = [asyncio.create_task(world.ask(stream=stream).__aenter__()) for _ in range(QUEUE)]
    await world.until(lambda: world.service.load().waiting == QUEUE)
    if stream:
        (await waiting[0]).close()
    else:
        waiting[0].cancel()
    await world.until(lambda: world.service.load().waiting == QUEUE - 1)
    async with world.ask(stream=True) as response:
        assert response.status == 200
    for task in waiting[1:]:
        task.cancel()


async def test_priority_decides_who_is_sent_next(world: World) -> None:
    asked = [await world.ask(stream=True, priority=priority) for priority in (4, 0, -4)]
    world.engine.come_up(batch=4)
    sent = world.engine.of(m.Submit)
    assert [submit.rid for submit in sent] == [3, 2, 1]
    assert [submit.priority for submit in sent] == [0, 0, -1]
    for submit in sent:
        world.engine.finish(submit.rid)
    for response in asked:
        assert (await read_stream(response)).done == 1
