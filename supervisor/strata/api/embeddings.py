"""`POST /v1/embeddings`: no mode has embeddings so far, and the answer says so in the same words
as for any other need that the running mode lacks.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
from aiohttp import web
from strata_protocol.features import Feature

from strata.api.context import ApiContext
from strata.serving.needs import Need

_NEED = Need(Feature.EMBEDDINGS, "/v1/embeddings", "input")


class EmbeddingRequest(msgspec.Struct, forbid_unknown_fields=False):
    input: Any
    model: str | None = None


class EmbeddingEndpoint:
    """Handler of the route. Stateless between requests."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def handle(self, request: web.Request) -> NoReturn:
        body = await self._context.decode(request, EmbeddingRequest)
        self._context.check_model(body.model)
        self._context.check_needs([_NEED])
        raise RuntimeError("a mode has embeddings, but this endpoint cannot ask for them")
