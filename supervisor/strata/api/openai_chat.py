"""`POST /v1/chat/completions`: validate, render, submit, and answer whole or as a stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import assert_never

import msgspec
from aiohttp import web

from strata.api.body_needs import body_needs, message_needs
from strata.api.choice import ChoiceText, Delta, ScoredToken
from strata.api.context import ApiContext, new_id
from strata.api.errors import invalid, unsupported
from strata.api.generation import ChoiceEnded, ChoicePaused, Generation, Output, PromptLogprobs
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
from strata.api.schemas import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
    Message,
    refuse_unsupported,
)
from strata.text.chat_template import ROLES, ChatMessage, TemplateValue

_ENCODER = msgspec.json.Encoder()
_ROLE_SPELLINGS = {"developer": "system"}  # what templates know it as
_OWN_NAMES = ("messages", "add_generation_prompt", "bos_token", "eos_token", "tools")


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
        prompt_ids = await self._prompt_ids(body)
        limit = token_limit(
            body,
            prompt_tokens=len(prompt_ids),
            prompt_param="messages",
            context=context.context_tokens,
            default=None,
        )
        vocabulary = context.text.vocabulary
        params = build_params(
            body,
            stop_ids=vocabulary.stop_ids,
            vocab=vocabulary.size,
            max_tokens=limit,
            logprobs=top,
        )
        generation = context.generation(
            request,
            [(prompt_ids, msgspec.structs.replace(params, choice=i)) for i in range(count)],
            [ChoiceText(vocabulary, stops, wants_logprobs=top >= 0) for _ in range(count)],
            priority,
        )
        await generation.submit()
        answer = _Answer(context, generation, count, top)
        if not body.stream:
            return await answer.whole()
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        try:
            return await answer.streamed(request, include_usage=include_usage)
        finally:
            generation.cancel()

    async def _prompt_ids(self, body: ChatRequest) -> Sequence[int]:
        return await self._context.in_worker(partial(self._encode, body), "messages")

    def _encode(self, body: ChatRequest) -> Sequence[int]:
        """Takes as long as the messages are, so it belongs in a worker. Raises ApiError too."""
        text, context = self._context.text, self._context.context_tokens
        self._context.check_needs(message_needs(body.messages))
        messages = _messages(body.messages)
        variables = _variables(body)
        least = text.tokenizer.token_count_min(sum(len(m.content) for m in messages))
        if context and least >= context:
            raise context_exceeded(f"at least {least}", context, "messages")
        return text.encode_chat(messages, variables)


class _Answer:
    """Turns the outputs of one generation into OpenAI's chat objects."""

    def __init__(self, context: ApiContext, generation: Generation, count: int, top: int) -> None:
        self._context = context
        self._generation = generation
        self._count = count
        self._top = top
        self._id = new_id("chatcmpl")
        self._created = int(time.time())

    async def whole(self) -> web.Response:
        texts: list[list[str]] = [[] for _ in range(self._count)]
        tokens: list[list[ScoredToken]] = [[] for _ in range(self._count)]
        reasons = [""] * self._count

        async def collect(index: int, output: Output) -> None:
            match output:
                case Delta():
                    texts[index].append(output.text)
                    tokens[index] += output.tokens
                case ChoiceEnded():
                    reasons[index] = output.finish_reason
                case PromptLogprobs():
                    pass  # chats never ask for them
                case ChoicePaused():
                    pass
                case _:
                    assert_never(output)

        await self._generation.run(collect)
        completion = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._context.model_name,
            choices=[
                ChatChoice(
                    index=i,
                    message=AssistantMessage("assistant", "".join(texts[i])),
                    logprobs=self._logprobs(tokens[i]),
                    finish_reason=reasons[i],
                )
                for i in range(self._count)
            ],
            usage=self._generation.usage([0]),
            timings=self._generation.timings(),
        )
        return web.Response(body=_ENCODER.encode(completion), content_type="application/json")

    async def streamed(self, request: web.Request, *, include_usage: bool) -> web.StreamResponse:
        stream = self._context.stream(request)

        async def send(index: int, output: Output) -> None:
            match output:
                case Delta():
                    logprobs = self._logprobs(output.tokens) if output.tokens else None
                    delta = ChatDelta(content=output.text)
                    choice = ChatChunkChoice(index, delta, logprobs)
                case ChoiceEnded():
                    choice = ChatChunkChoice(index, ChatDelta(), None, output.finish_reason)
                case PromptLogprobs():
                    return  # chats never ask for them
                case ChoicePaused():
                    await stream.comment(output.text)
                    return
                case _:
                    assert_never(output)
            await stream.send(self._chunk([choice]))

        async def produce() -> None:
            for index in range(self._count):
                opening = ChatDelta(role="assistant", content="")
                await stream.send(self._chunk([ChatChunkChoice(index, opening)]))
            await self._generation.run(send)
            if include_usage:
                chunk = ChatChunk(
                    self._id,
                    self._created,
                    self._context.model_name,
                    [],
                    usage=self._generation.usage([0]),
                    timings=self._generation.timings(),
                )
                await stream.send(_ENCODER.encode(chunk))

        return await stream.run(produce)

    def _chunk(self, choices: list[ChatChunkChoice]) -> bytes:
        return _ENCODER.encode(
            ChatChunk(self._id, self._created, self._context.model_name, choices)
        )

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> ChatLogprobs | None:
        return None if self._top < 0 else self._context.logprobs.chat(tokens, self._top)


def _top_logprobs(body: ChatRequest) -> int:
    """Alternatives per token, -1 for no logprobs at all."""
    if body.top_logprobs is not None:
        check_range("top_logprobs", body.top_logprobs, 0, TOP_LOGPROBS_MAX)
        if not body.logprobs and body.top_logprobs > 0:
            raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else -1


def _messages(messages: Sequence[Message]) -> list[ChatMessage]:
    if not messages:
        raise invalid("messages is empty; at least one is needed", "messages")
    return [_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def _message(path: str, message: Message) -> ChatMessage:
    role = _ROLE_SPELLINGS.get(message.role, message.role)
    if role not in ROLES:
        raise invalid(
            f"{path}.role is {message.role[:40]!r}; allowed: {', '.join((*ROLES, 'developer'))}",
            f"{path}.role",
        )
    for field in ("tool_calls", "function_call"):
        if getattr(message, field):
            raise unsupported(f"{path}.{field}", f"{path}.{field}")
    match message.content:
        case None:
            if role != "assistant":
                raise invalid(f"{path}.content is missing", f"{path}.content")
            content = ""
        case str():
            content = message.content
        case parts:
            texts: list[str] = []
            for j, part in enumerate(parts):
                if part.type != "text":
                    where = f"{path}.content[{j}].type"
                    raise unsupported(where, f"{where} {part.type[:40]!r} (only 'text' is)")
                if part.text is None:
                    where = f"{path}.content[{j}].text"
                    raise invalid(f"{where} is missing", where)
                texts.append(part.text)
            content = "\n".join(texts)
    return ChatMessage(role, content, message.name)


def _variables(body: ChatRequest) -> dict[str, TemplateValue]:
    variables: dict[str, TemplateValue] = dict(body.chat_template_kwargs or {})
    for name in _OWN_NAMES:
        if name in variables:
            raise invalid(
                f"chat_template_kwargs.{name} is set by the server",
                f"chat_template_kwargs.{name}",
            )
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return variables
