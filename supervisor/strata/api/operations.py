"""The endpoints for operators: /health, /health/live, /health/ready, /v1/status, /metrics.

They read; nothing here changes the service. `boot_app` answers while there is no text model yet,
so that HTTP is there from the first second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from aiohttp import web

from strata.api.errors import ENGINE_REFUSED, RETRY_AFTER_MAX_S, ApiError
from strata.api.middleware import add_request_id, build_middlewares
from strata.observe.status import Status

JSON = "application/json"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REFUSED = "refused"  # the state of a service whose engine refuses to start
OPEN_PATHS = ("/health", "/health/live", "/health/ready")  # these want no API key


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
    response = web.Response(
        status=200 if status.is_serving else 503,
        body=msgspec.json.encode(body),
        content_type=JSON,
        headers=headers,
    )
    if status.state == "draining":
        response.force_close()
    return response


def _retry_after_s(status: Status) -> int:
    next_start_s = status.restarts.next_start_s
    wait_s = 2.0 if next_start_s is None else next_start_s + 2.0
    if status.state == REFUSED:
        wait_s = RETRY_AFTER_MAX_S
    return int(min(max(wait_s, 1), RETRY_AFTER_MAX_S))


def boot_app(
    routes: Sequence[web.RouteDef], status: Callable[[], Status], *, api_keys: Sequence[str] = ()
) -> web.Application:
    """Answers the operations endpoints, and 503 with the reason everywhere else.

    Keys, request ids and errors are as in the whole application. Each answer closes its
    connection, so that a client's next one reaches that application.
    """

    async def not_yet(request: web.Request) -> web.Response:
        now = status()
        if now.state == REFUSED:
            raise ApiError(503, f"the engine refuses to start: {now.reason}", code=ENGINE_REFUSED)
        raise ApiError(
            503,
            f"not ready yet: {now.reason or 'the service is starting'}",
            code="model_loading",
            retry_after_s=_retry_after_s(now),
        )

    async def close_connection(request: web.Request, response: web.StreamResponse) -> None:
        response.force_close()
        response.headers["Connection"] = "close"  # aiohttp's own headers are made by now

    app = web.Application(middlewares=build_middlewares(api_keys, OPEN_PATHS))
    app.add_routes([*routes, web.route("*", "/{path:.*}", not_yet)])
    app.on_response_prepare.append(add_request_id)
    app.on_response_prepare.append(close_connection)
    return app
