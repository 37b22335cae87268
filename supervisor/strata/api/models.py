"""`GET /v1/models` and `/v1/models/{id}`: the one model, and what runs it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aiohttp import web
from strata_protocol.messages import ModelFacts, ModePlan

from strata.api.context import ApiContext
from strata.engines.modes import ModeRow


class ModelDetails(msgspec.Struct, frozen=True):
    """Ours. What the engine says is null until it has been ready once."""

    context_tokens: int  # a request's prompt and answer together; 0: not known yet
    vocab: int
    has_chat: bool
    has_reasoning: bool  # answers have reasoning_content
    tool_form: str | None  # how calls of tools are written; null: tools are refused
    facts: ModelFacts | None
    plan: ModePlan | None
    modes: Sequence[ModeRow]  # requested, runs, because; empty before the first READY


class ModelEntry(msgspec.Struct, frozen=True):
    id: str
    created: int
    strata: ModelDetails
    object: str = "model"
    owned_by: str = "strata"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelEntry]
    object: str = "list"


class ModelEndpoint:
    """Handlers of both routes."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def list(self, request: web.Request) -> web.Response:
        return _json(ModelList([self._entry()]))

    async def get(self, request: web.Request) -> web.Response:
        self._context.check_model(request.match_info["id"])
        return _json(self._entry())

    def _entry(self) -> ModelEntry:
        context = self._context
        facts = context.service.facts
        form = context.text.answer_format.tool_form
        return ModelEntry(
            id=context.model_name,
            created=context.created_s,
            strata=ModelDetails(
                context_tokens=context.context_tokens,
                vocab=context.text.vocabulary.size,
                has_chat=context.text.has_chat,
                has_reasoning=context.text.answer_format.thinks,
                tool_form=None if form is None else form.value,
                facts=None if facts is None else facts.model,
                plan=None if facts is None else facts.plan,
                modes=() if facts is None else facts.modes,
            ),
        )


def _json(value: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
