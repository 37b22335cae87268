"""The HTTP side of `serve`: health and status at once, then the whole application.

Imported in a thread while the engine loads: what it stands on takes nearly as long to import as
all the rest, which would be added to every start.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from strata.api.app import WORKERS, make_runner
from strata.api.operations import boot_app, operations_routes
from strata.errors import TextStuckError
from strata.observe.status import Status

HTTP_CLOSE_S = 5.0  # for responses to be written once their requests have ended

BuildApplication = Callable[[Sequence[web.RouteDef]], Awaitable[web.Application]]


async def serve_http(
    listener: socket.socket,
    status: Callable[[], Status],
    render_metrics: Callable[[Status], bytes],
    build: BuildApplication,
    *,
    backlog: int,
    api_keys: Sequence[str],
    on_whole: Callable[[], None],
    on_stuck: Callable[[], None],
) -> None:
    """HTTP on `listener` until cancelled. `build` makes the whole application, with the routes it
    is given; `on_whole` is called once that answers. Raises what `build` raises, and
    TextStuckError where the threads that work on text are stuck, after `on_stuck`, which ends the
    requests."""
    routes = operations_routes(status, render_metrics)
    boot = make_runner(boot_app(routes, status, api_keys=api_keys), shutdown_s=1.0)
    await boot.setup()
    boot_listener = listener.dup()
    await web.SockSite(boot, boot_listener, backlog=backlog).start()
    try:
        whole = await build(routes)
        runner = make_runner(whole, shutdown_s=HTTP_CLOSE_S)
        await runner.setup()
        await web.SockSite(runner, listener.dup(), backlog=backlog).start()
    finally:
        # What is accepted already needs two turns to get its transport; asyncio (before 3.13)
        # forgets it, with its socket open, where the server is closed before.
        asyncio.get_running_loop().remove_reader(boot_listener)
        for _ in range(3):
            await asyncio.sleep(0)
        await boot.cleanup()
    on_whole()
    try:
        workers = whole[WORKERS]
        await workers.failed.wait()
        on_stuck()
        raise TextStuckError(
            f"{workers.stuck} of the threads that work on text do not come back; the service ends"
            " to be started again"
        )
    finally:
        await runner.cleanup()
