"""The whole application takes the socket over from that of the boot: nobody who connects meanwhile
is left without an answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence

import pytest
from aiohttp import web
from strata.api.app import WORKERS
from strata.api.text_workers import TextWorkers
from strata.cli_http import serve_http
from strata.observe.status import Status


def not_asked() -> Status:
    raise AssertionError("nobody asks for the status")


async def well(_: web.Request) -> web.Response:
    return web.Response(text="well")


@pytest.mark.parametrize("turns", range(5))
async def test_who_connects_while_it_happens_is_answered(turns: int) -> None:
    """`turns` of the event loop lie between the connection and the end of the boot application."""
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        listener.setblocking(False)

        async def build(_: Sequence[web.RouteDef]) -> web.Application:
            application = web.Application()
            application[WORKERS] = workers
            application.add_routes([web.get("/", well)])
            client.connect(listener.getsockname())
            client.setblocking(False)
            client.sendall(b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
            for _ in range(turns):
                await asyncio.sleep(0)
            return application

        workers = TextWorkers()
        is_whole = asyncio.Event()
        serving = asyncio.create_task(
            serve_http(
                listener,
                not_asked,
                lambda _: b"",
                build,
                backlog=8,
                api_keys=[],
                on_whole=is_whole.set,
                on_stuck=lambda: None,
            )
        )
        try:
            async with asyncio.timeout(20):
                await is_whole.wait()
                head = await asyncio.get_running_loop().sock_recv(client, 12)
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            workers.close()
    assert head.startswith(b"HTTP/1.1 ")  # of either application, which know no such path
