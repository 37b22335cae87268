"""The endpoints for operators: /health, /health/live, /health/ready, /v1/status, /metrics.

They read; nothing here changes the service. `boot_app` answers while there is no text model yet,
so that HTTP is there from the first second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from aiohttp import web

from strata.observe.status import Status

JSON = "application/json"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RETRY_AFTER_MAX_S = 55


def operations_routes(
    status: Callable[[], Status], render_metrics: Callable[[Status], bytes]
) -> list[web.RouteDef]:
    """The routes, for `build_app(extra_routes=...)`."""

    async def get_live(request: web.Request) -> web.Response:
        return web.Response(body=b'{"status":"live"}', content_type=JSON)

    async def get_ready(request: web.Request) -> web.Response:
        return ready_response(status())

    async def get_status(request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(status()), content_type=JSON)

    async def get_metrics(request: web.Request) -> web.Response:
        body = render_metrics(status())
        return web.Response(body=body, headers={"Content-Type": METRICS_TYPE})

    return [
        web.get("/health/live", get_live),
        web.get("/health/ready", get_ready),
        web.get("/health", get_ready),
        web.get("/v1/status", get_status),
        web.get("/metrics", get_metrics),
    ]


def ready_response(status: Status) -> web.Response:
    """200 when requests are served; else 503 with the reason, progress and Retry-After."""
    body: dict[str, object] = {"status": status.state}
    if status.reason:
        body["reason"] = status.reason
    if status.reasons:
        body["reasons"] = status.reasons
    if status.engine is not None and status.engine.progress is not None:
        body["progress"] = status.engine.progress
    headers = {} if status.is_serving else {"Retry-After": str(_retry_after_s(status))}
    return web.Response(
        status=200 if status.is_serving else 503,
        body=msgspec.json.encode(body),
        content_type=JSON,
        headers=headers,
    )


def _retry_after_s(status: Status) -> int:
    next_start_s = status.restarts.next_start_s
    wait_s = 2.0 if next_start_s is None else next_start_s + 2.0
    if status.state == "refused":
        wait_s = RETRY_AFTER_MAX_S
    return int(min(max(wait_s, 1), RETRY_AFTER_MAX_S))


def boot_app(routes: Sequence[web.RouteDef], status: Callable[[], Status]) -> web.Application:
    """Answers the operations endpoints, and 503 with the reason everywhere else.

    Each answer closes its connection, so that a client's next one reaches the whole application.
    """

    async def not_yet(request: web.Request) -> web.Response:
        reason = status().reason or "the service is starting"
        error = {
            "message": f"not ready yet: {reason}",
            "type": "server_error",
            "param": None,
            "code": "model_loading",
        }
        return web.Response(
            status=503,
            body=msgspec.json.encode({"error": error}),
            content_type=JSON,
            headers={"Retry-After": "2"},
        )

    async def close_connection(request: web.Request, response: web.StreamResponse) -> None:
        response.force_close()

    app = web.Application()
    app.add_routes([*routes, web.route("*", "/{path:.*}", not_yet)])
    app.on_response_prepare.append(close_connection)
    return app
