"""`POST /v1/chat/completions`: validate, render, submit, and answer whole or as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from aiohttp import web

from strata.api.body_needs import body_needs, message_needs
from strata.api.chat_answer import ChatAnswer
from strata.api.chat_prompt import read_messages, template_variables
from strata.api.chat_tools import ToolUse, read_tools
from strata.api.choice import ChoiceText
from strata.api.context import ApiContext
from strata.api.errors import invalid
from strata.api.sampling import (
    TOP_LOGPROBS_MAX,
    build_params,
    check_range,
    choice_count,
    context_exceeded,
    queue_priority,
    stop_strings,
    token_limit,
)
from strata.api.schemas import ChatRequest, refuse_unsupported
from strata.serving.needs import MODE_UNSUPPORTED
from strata.text.chat_template import ChatMessage
from strata.text.errors import TemplateError
from strata.text.model import ChatPrompt

_REASONING_FORMATS = {"auto": True, "deepseek": True, "none": False}


class ChatEndpoint:
    """Handler of the route. Stateless between requests."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def handle(self, request: web.Request) -> web.StreamResponse:
        context = self._context
        body = await context.decode(request, ChatRequest)
        context.check_model(body.model)
        refuse_unsupported(body)
        context.check_needs(body_needs(body))
        top = _top_logprobs(body)
        stops = stop_strings(body)
        count = choice_count(body)
        priority = queue_priority(body)
        splits_reasoning = _splits_reasoning(body)
        use, prompt = await context.in_worker(partial(self._encode, body), "messages")
        limit = token_limit(
            body,
            prompt_tokens=len(prompt.ids),
            prompt_param="messages",
            context=context.context_tokens,
            default=None,
        )
        text = context.text
        vocabulary = text.vocabulary
        params = build_params(
            body,
            stop_ids=vocabulary.stop_ids,
            vocab=vocabulary.size,
            max_tokens=limit,
            logprobs=top,
        )
        shape = use.shape(thinks=splits_reasoning and text.answer_format.thinks)
        generation = context.generation(
            request,
            [(prompt.ids, msgspec.structs.replace(params, choice=i)) for i in range(count)],
            [
                ChoiceText(
                    vocabulary,
                    stops,
                    wants_logprobs=top >= 0,
                    shape=shape,
                    is_reasoning=prompt.is_reasoning,
                    revealed=text.revealed_ids(shape),
                )
                for _ in range(count)
            ],
            priority,
        )
        await generation.submit()
        answer = ChatAnswer(
            context, generation, count, top, shows_reasoning=body.include_reasoning is not False
        )
        if not body.stream:
            return await answer.whole()
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        try:
            return await answer.streamed(request, include_usage=include_usage)
        finally:
            generation.cancel()

    def _encode(self, body: ChatRequest) -> tuple[ToolUse, ChatPrompt]:
        """Takes as long as messages and tools are, so it belongs in a worker. Raises ApiError
        too."""
        text, context = self._context.text, self._context.context_tokens
        self._context.check_needs(message_needs(body.messages))
        if not text.has_chat:
            raise TemplateError(text.template_problem)
        answers = text.answer_format
        use = read_tools(body, answers)
        messages = read_messages(body.messages, answers)
        variables = template_variables(body, answers, is_call_forced=use.forced is not None)
        least = text.tokenizer.token_count_min(_length(messages))
        if context and least >= context:
            raise context_exceeded(f"at least {least}", context, "messages")
        prompt = text.prepare_chat(messages, variables, tools=use.definitions, opening=use.opening)
        if prompt.is_reasoning and use.forced is not None:
            raise invalid(
                f"tool_choice begins the call of {use.forced!r} in the prompt, which the model's"
                " chat template ends inside the reasoning and cannot be told not to; let"
                " tool_choice be 'auto'",
                "tool_choice",
                MODE_UNSUPPORTED,
            )
        return use, prompt


def _length(messages: Sequence[ChatMessage]) -> int:
    return sum(len(message.content) for message in messages)


def _splits_reasoning(body: ChatRequest) -> bool:
    kind = body.reasoning_format
    if kind is None:
        return True
    if kind not in _REASONING_FORMATS:
        raise invalid(
            f"reasoning_format is {kind[:40]!r}; allowed: {', '.join(_REASONING_FORMATS)}",
            "reasoning_format",
        )
    return _REASONING_FORMATS[kind]


def _top_logprobs(body: ChatRequest) -> int:
    """Alternatives per token, -1 for no logprobs at all."""
    if body.top_logprobs is not None:
        check_range("top_logprobs", body.top_logprobs, 0, TOP_LOGPROBS_MAX)
        if not body.logprobs and body.top_logprobs > 0:
            raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else -1
