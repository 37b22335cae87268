"""The HTTP application: which path leads where, and what every request passes through.

`build_app` is what the process calls; `make_runner` is how it must be run, so that a client that
goes away cancels its request.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from strata.api.arrival import admitted
from strata.api.context import ApiContext, ApiLimits
from strata.api.embeddings import EmbeddingEndpoint
from strata.api.logprobs import LogprobWriter
from strata.api.middleware import add_request_id, build_middlewares
from strata.api.models import ModelEndpoint
from strata.api.openai_chat import ChatEndpoint
from strata.api.openai_completions import CompletionEndpoint
from strata.api.server_log import SERVER_LOG
from strata.api.text_workers import TextWorkers
from strata.serving.request import Service
from strata.text.model import TextModel

__all__ = ["WORKERS", "ApiLimits", "build_app", "make_runner"]

WORKERS = web.AppKey("workers", TextWorkers)

KEEPALIVE_S = 75.0  # an idle or half-open connection is closed after this


def build_app(
    service: Service,
    model_name: str,
    text: TextModel,
    *,
    limits: ApiLimits | None = None,
    api_keys: Sequence[str] = (),
    model_aliases: Sequence[str] = (),
    extra_routes: Sequence[web.RouteDef] = (),
    open_paths: Sequence[str] = ("/health/live",),
    workers: TextWorkers | None = None,
) -> web.Application:
    """The whole application.

    `model_name` is what `/v1/models` lists; `model_aliases` (the file's name and path) are accepted
    besides it. With `api_keys`, every path but `open_paths` wants `Authorization: Bearer KEY`.
    `extra_routes` are the operations endpoints (health, status, metrics); they get the same
    errors, request ids and key check. `workers` are closed with the application; whether they
    fail is in `app[WORKERS]`.
    """
    limits = limits or ApiLimits()
    context = ApiContext(
        service=service,
        text=text,
        model_name=model_name,
        model_aliases=frozenset(model_aliases),
        limits=limits,
        logprobs=LogprobWriter(text.vocabulary),
        workers=workers or TextWorkers(),
    )
    app = web.Application(
        middlewares=build_middlewares(api_keys, open_paths), client_max_size=limits.body_bytes
    )
    app.on_response_prepare.append(add_request_id)

    async def stop_workers(_: web.Application) -> None:
        context.workers.close()

    app[WORKERS] = context.workers
    app.on_cleanup.append(stop_workers)
    models = ModelEndpoint(context)
    app.add_routes(
        [
            web.post("/v1/chat/completions", admitted(service, ChatEndpoint(context).handle)),
            web.post("/v1/completions", admitted(service, CompletionEndpoint(context).handle)),
            web.post("/v1/embeddings", EmbeddingEndpoint(context).handle),
            web.get("/v1/models", models.list),
            web.get("/v1/models/{id:.+}", models.get),
            *extra_routes,
        ]
    )
    return app


def make_runner(app: web.Application, *, shutdown_s: float = 60.0) -> web.AppRunner:
    """A runner with handler cancellation on; `shutdown_s` bounds the wait for open requests."""
    return web.AppRunner(
        app,
        handler_cancellation=True,
        keepalive_timeout=KEEPALIVE_S,
        shutdown_timeout=shutdown_s,
        access_log=None,
        logger=SERVER_LOG,
    )
