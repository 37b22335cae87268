"""What every handler shares: the service, the text model, names and limits."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from aiohttp import web
from strata_protocol.messages import SamplingParams

from strata.api.arrival import CLIENT_KEY, PLACE, REQUEST_ID, TIME_LIMIT
from strata.api.body import LOOP_BYTES_MAX, decode_body, decode_large_body, read_body
from strata.api.choice import ChoiceText
from strata.api.errors import ApiError, invalid
from strata.api.generation import Generation
from strata.api.logprobs import LogprobWriter
from strata.api.sse import EventStream
from strata.api.text_workers import TextWorkers
from strata.errors import TextStuckError
from strata.serving.needs import MODE_UNSUPPORTED, Need, misfit
from strata.serving.request import RequestSpec, Service
from strata.text.errors import TemplateError, TextError
from strata.text.model import TextModel

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Bounds of the HTTP side."""

    body_bytes: int = 16 * 1024 * 1024
    body_idle_s: float = 30.0  # a body must make progress this often
    ping_s: float = 10.0  # silence after which a stream gets a `: ping` comment
    write_idle_s: float = 30.0  # a client that takes nothing for so long is cut off


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Immutable; one per application."""

    service: Service
    text: TextModel
    model_name: str
    model_aliases: frozenset[str]
    limits: ApiLimits
    logprobs: LogprobWriter
    workers: TextWorkers  # template and tokeniser run here
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def context_tokens(self) -> int:
        """Tokens a sequence may reach: what runs, or the model's own limit before the engine has
        said; 0 when neither is known (the serving layer checks again)."""
        facts = self.service.facts
        return facts.plan.max_context if facts is not None else self.text.context_length

    async def decode(self, request: web.Request, schema: type[T]) -> T:
        """The request's body as `schema`. Raises ApiError."""
        body = await read_body(
            request, bytes_max=self.limits.body_bytes, idle_s=self.limits.body_idle_s
        )
        if len(body) <= LOOP_BYTES_MAX:
            return decode_body(body, schema)
        return await self._run(partial(decode_large_body, body, schema))

    def check_model(self, name: str | None) -> None:
        """Raises ApiError (404) for a model that is not served here; none means the only one."""
        if name and name != self.model_name and name not in self.model_aliases:
            raise ApiError(
                404,
                f"The model {name[:200]!r} does not exist; this server has {self.model_name!r}",
                code="model_not_found",
                param="model",
            )

    def check_needs(self, needs: Sequence[Need]) -> None:
        """Raises ApiError (400 `mode_unsupported`) for what no running mode has, before
        any work is done for it; the serving layer judges what a sequence's parameters need."""
        facts = self.service.facts
        found = misfit(needs, facts.serving if facts is not None else ())
        if found is not None:
            raise invalid(found.text, found.param, MODE_UNSUPPORTED)

    async def in_worker(self, work: Callable[[], T], param: str) -> T:
        """Runs text work off the event loop. Its errors are the client's, about `param`."""
        try:
            return await self._run(work)
        except TemplateError as error:
            raise invalid(str(error), param, "template_error") from error
        except TextError as error:
            raise invalid(str(error), param, "invalid_text") from error

    async def _run(self, work: Callable[[], T]) -> T:
        """Raises ApiError (500) where it does not end: the same again would take another thread."""
        try:
            return await self.workers.run(work)
        except TextStuckError as error:
            raise ApiError(500, str(error), code="text_stuck") from error

    def generation(
        self,
        request: web.Request,
        prompts: Sequence[tuple[Sequence[int], SamplingParams]],
        texts: Sequence[ChoiceText],
        priority: int = 0,
    ) -> Generation:
        """The sequences of `request`, one per choice: its prompt's ids and its parameters."""
        request_id = request[REQUEST_ID]
        limit = request[TIME_LIMIT]
        specs = [
            RequestSpec(
                request_id=request_id if len(prompts) == 1 else f"{request_id}.{index}",
                prompt_ids=ids,
                params=params,
                key=request[CLIENT_KEY],
                priority=priority,
                timeout_ms=limit.timeout_ms,
                spent_s=limit.spent_s(),
            )
            for index, (ids, params) in enumerate(prompts)
        ]
        return Generation(self.service, specs, texts, request[PLACE])

    def stream(self, request: web.Request) -> EventStream:
        return EventStream(
            request, ping_s=self.limits.ping_s, write_idle_s=self.limits.write_idle_s
        )


def new_id(prefix: str) -> str:
    """An id as OpenAI writes them: `chatcmpl-` and random letters."""
    return f"{prefix}-{secrets.token_hex(12)}"


def key_label(api_key: str) -> str:
    """What stands for an API key in logs and fair shares; the key cannot be got back from it."""
    return "key-" + hashlib.sha256(api_key.encode()).hexdigest()[:12]
