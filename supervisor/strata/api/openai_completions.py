"""`POST /v1/completions`: raw prompts as text or token ids, several at once, echo, logprobs.

The choices of prompt p are p * n .. p * n + n - 1. `max_tokens` 0 with `echo` scores a prompt
without generating anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from aiohttp import web

from strata.api.body_needs import body_needs
from strata.api.choice import ChoiceText
from strata.api.completion_answer import CompletionAnswer, CompletionPrompt
from strata.api.context import ApiContext
from strata.api.errors import invalid
from strata.api.sampling import (
    TOP_LOGPROBS_MAX,
    build_params,
    check_range,
    choice_count,
    choose_seed,
    context_exceeded,
    queue_priority,
    stop_strings,
    token_limit,
)
from strata.api.schemas import CompletionRequest, refuse_unsupported

PROMPTS_MAX = 64  # prompts times n
MAX_TOKENS_DEFAULT = 16  # OpenAI's


class CompletionEndpoint:
    """Handler of the route. Stateless between requests."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def handle(self, request: web.Request) -> web.StreamResponse:
        context = self._context
        body = await context.decode(request, CompletionRequest)
        context.check_model(body.model)
        refuse_unsupported(body)
        context.check_needs(body_needs(body))
        top = -1
        if body.logprobs is not None:
            check_range("logprobs", body.logprobs, 0, TOP_LOGPROBS_MAX)
            top = body.logprobs
        stops = stop_strings(body)
        echo = bool(body.echo)
        parses_special = body.parse_special is not False
        count = choice_count(body)
        priority = queue_priority(body)
        listed = _listed(body.prompt, count, context.context_tokens)
        prompts = [
            await context.in_worker(partial(self._read_prompt, param, raw, parses_special), param)
            for param, raw in listed
        ]
        vocabulary = context.text.vocabulary
        limits = [
            token_limit(
                body,
                prompt_tokens=len(prompt.ids),
                prompt_param="prompt",
                context=context.context_tokens,
                default=MAX_TOKENS_DEFAULT,
                lowest=0 if echo else 1,
            )
            for prompt in prompts
        ]
        params = build_params(
            body,
            stop_ids=vocabulary.stop_ids,
            vocab=vocabulary.size,
            max_tokens=min(limits),
            logprobs=top,
        )
        jobs = []
        for prompt, limit in zip(prompts, limits, strict=True):
            own = msgspec.structs.replace(
                params,
                max_tokens=limit,
                seed=choose_seed(body),
                prompt_logprobs=top if echo else -1,
            )
            jobs += [(prompt.ids, msgspec.structs.replace(own, choice=i)) for i in range(count)]
        generation = context.generation(
            request,
            jobs,
            [ChoiceText(vocabulary, stops, wants_logprobs=top >= 0) for _ in jobs],
            priority,
        )
        await generation.submit()
        answer = CompletionAnswer(context, generation, prompts, count, top, echo=echo)
        if not body.stream:
            return await answer.whole()
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        try:
            return await answer.streamed(request, include_usage=include_usage)
        finally:
            generation.cancel()

    def _read_prompt(
        self, param: str, raw: str | list[int], parses_special: bool
    ) -> CompletionPrompt:
        """Takes as long as the prompt is, so it belongs in a worker. Raises ApiError, TextError."""
        text, context = self._context.text, self._context.context_tokens
        if isinstance(raw, str):
            least = text.tokenizer.token_count_min(len(raw))
            if context and least > context:
                raise context_exceeded(f"at least {least}", context, "prompt")
            ids = text.encode_prompt(raw, parse_special=parses_special)
            prompt = CompletionPrompt(ids, raw, self._is_begin_added(ids, raw))
        else:
            if context and len(raw) > context:
                raise context_exceeded(str(len(raw)), context, "prompt")
            top = text.vocabulary.size - 1
            for token_id in raw:
                if not 0 <= token_id <= top:
                    raise invalid(f"{param} has token id {token_id}; allowed: 0 to {top}", param)
            prompt = CompletionPrompt(raw, None)
        if not prompt.ids:
            raise invalid(f"{param} is empty; at least one token is needed", param)
        return prompt

    def _is_begin_added(self, ids: Sequence[int], raw: str) -> bool:
        vocabulary = self._context.text.vocabulary
        bos = vocabulary.bos_id
        return (
            vocabulary.adds_bos and ids[0] == bos and not raw.startswith(vocabulary.token_text(bos))
        )


def _listed(
    prompt: str | list[str | int | list[int]], count: int, context: int
) -> list[tuple[str, str | list[int]]]:
    """Each prompt with the name an error gives it.

    Raises ApiError for an empty or mixed list, for more than PROMPTS_MAX prompts times `count`, and
    for more ids than `context` (0: not known). Lengths are judged before any item is looked at.
    """
    if isinstance(prompt, str):
        return [("prompt", prompt)]
    if not prompt:
        raise invalid("prompt is an empty list", "prompt")
    if isinstance(prompt[0], int):
        if context and len(prompt) > context:
            raise context_exceeded(str(len(prompt)), context, "prompt")
        ids = [item for item in prompt if isinstance(item, int)]
        if len(ids) == len(prompt):
            return [("prompt", ids)]
        raise invalid("prompt mixes token ids with texts or lists", "prompt")
    if len(prompt) * count > PROMPTS_MAX:
        raise invalid(
            f"{len(prompt)} prompts with n = {count} are {len(prompt) * count} choices;"
            f" at most {PROMPTS_MAX} are allowed",
            "prompt",
        )
    listed: list[tuple[str, str | list[int]]] = []
    for i, item in enumerate(prompt):
        if isinstance(item, int):
            raise invalid("prompt mixes token ids with texts or lists", "prompt")
        listed.append((f"prompt[{i}]", item))
    return listed
