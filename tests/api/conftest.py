"""A real server on loopback, with the real text layer and a scripted service behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from strata.api.app import ApiLimits, build_app, make_runner
from strata.text.model import TextModel

from tests.api.fake_service import FakeService
from tests.text.small_models import small_model


@dataclass
class Server:
    service: FakeService
    text: TextModel
    host: str
    port: int
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        """Status and decoded JSON."""
        async with self.http.post(self.url + path, json=body, **options) as response:
            return response.status, await response.json()

    async def chat(self, **body: Any) -> tuple[int, Any]:
        body = {"messages": [{"role": "user", "content": "Hi"}]} | body
        return await self.post("/v1/chat/completions", body)

    async def complete(self, **body: Any) -> tuple[int, Any]:
        return await self.post("/v1/completions", {"prompt": "Hi"} | body)


StartServer = Callable[..., Awaitable[Server]]


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    runners: list[web.AppRunner] = []
    sessions: list[aiohttp.ClientSession] = []

    async def start(
        *, limits: ApiLimits | None = None, text: TextModel | None = None, **options: Any
    ) -> Server:
        text = text or small_model()
        service = FakeService(text)
        app = build_app(
            service, "tiny", text, limits=limits, model_aliases=["tiny.gguf"], **options
        )
        runner = make_runner(app, shutdown_s=1)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        sessions.append(session)
        return Server(service, text, host, port, session)

    yield start
    for session in sessions:
        await session.close()
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def server(start_server: StartServer) -> Server:
    return await start_server()
