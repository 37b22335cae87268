"""Turns the outputs of one chat's generation into OpenAI's objects: one answer, or chunks.

A chunk holds one kind of thing: content, reasoning (`reasoning_content`), or a piece of one call,
so that clients which look at one field of a chunk miss nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import assert_never

import msgspec
from aiohttp import web
from msgspec import UNSET

from strata.api.choice import Delta, ScoredToken
from strata.api.chunk_frame import MARK, ChunkFrame
from strata.api.context import ApiContext, new_id
from strata.api.generation import ChoiceEnded, ChoicePaused, Generation, Output, PromptLogprobs
from strata.api.schemas import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    FunctionCall,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)
from strata.api.sse import EventStream
from strata.text.answer_parts import CallArguments, CallBegan, Content, Part, Reasoning, joined

_ENCODER = msgspec.json.Encoder()


class ChatAnswer:
    """The answer to one request, with `count` choices and `top` alternatives a token (-1: no
    logprobs). Call `whole` or `streamed`, once."""

    def __init__(
        self,
        context: ApiContext,
        generation: Generation,
        count: int,
        top: int,
        *,
        shows_reasoning: bool,
    ) -> None:
        self._context = context
        self._generation = generation
        self._count = count
        self._top = top
        self._shows_reasoning = shows_reasoning
        self._id = new_id("chatcmpl")
        self._created = int(time.time())

    async def whole(self) -> web.Response:
        found = _Collected(self._count)
        await self._generation.run(found)
        completion = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._context.model_name,
            choices=[
                ChatChoice(
                    index=i,
                    message=self._message(i, self._parts(found.deltas[i])),
                    logprobs=self._logprobs([t for d in found.deltas[i] for t in d.tokens]),
                    finish_reason=found.reasons[i],
                )
                for i in range(self._count)
            ],
            usage=self._generation.usage([0]),
            timings=self._generation.timings(),
        )
        return web.Response(body=_ENCODER.encode(completion), content_type="application/json")

    async def streamed(self, request: web.Request, *, include_usage: bool) -> web.StreamResponse:
        stream = self._context.stream(request)

        async def produce() -> None:
            for index in range(self._count):
                opening = ChatDelta(role="assistant", content="")
                await stream.send(self.chunk(ChatChunkChoice(index, opening)))
            await self._generation.run(_Streamed(self, stream, self._count))
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

    def chunk(self, choice: ChatChunkChoice) -> bytes:
        return _ENCODER.encode(self._chunk(choice))

    def frame(self, index: int) -> ChunkFrame:
        """Of the chunks that hold content and nothing else."""
        return ChunkFrame(self._chunk(ChatChunkChoice(index, ChatDelta(content=MARK))))

    def chunks(self, index: int, delta: Delta) -> list[bytes]:
        """The chunks of a delta: one for each of its parts, the first with its logprobs."""
        logprobs = self._logprobs(delta.tokens) if delta.tokens else None
        deltas = [self._delta(index, part) for part in self._parts([delta])]
        if not deltas and logprobs is not None:
            deltas = [ChatDelta()]
        return [
            self.chunk(ChatChunkChoice(index, shown, None if at else logprobs))
            for at, shown in enumerate(deltas)
        ]

    def _chunk(self, choice: ChatChunkChoice) -> ChatChunk:
        return ChatChunk(self._id, self._created, self._context.model_name, [choice])

    def _parts(self, deltas: Sequence[Delta]) -> list[Part]:
        parts: list[Part] = []
        for delta in deltas:
            parts += [Content(delta.text)] if delta.text else delta.parts
        if self._shows_reasoning:
            return parts
        return [part for part in parts if not isinstance(part, Reasoning)]

    def _delta(self, choice: int, part: Part) -> ChatDelta:
        match part:
            case Content(text):
                return ChatDelta(content=text)
            case Reasoning(text):
                return ChatDelta(reasoning_content=text)
            case CallBegan(index, name):
                function = FunctionDelta(name=name, arguments="")
                call = ToolCallDelta(index, self._call_id(choice, index), "function", function)
                return ChatDelta(tool_calls=[call])
            case CallArguments(index, text):
                function = FunctionDelta(arguments=text)
                return ChatDelta(tool_calls=[ToolCallDelta(index, function=function)])
            case _:
                assert_never(part)

    def _message(self, choice: int, parts: Sequence[Part]) -> AssistantMessage:
        content, reasoning = "", ""
        names: list[str] = []
        arguments: list[str] = []
        for part in joined(parts):
            match part:
                case Content(text):
                    content += text
                case Reasoning(text):
                    reasoning += text
                case CallBegan(_, name):
                    names.append(name)
                    arguments.append("")
                case CallArguments(index, text):
                    arguments[index] += text
                case _:
                    assert_never(part)
        calls = [
            ToolCall(self._call_id(choice, i), FunctionCall(name, arguments[i]))
            for i, name in enumerate(names)
        ]
        return AssistantMessage(
            "assistant",
            content or (None if reasoning or calls else ""),
            reasoning_content=reasoning or UNSET,
            tool_calls=calls or UNSET,
        )

    def _call_id(self, choice: int, index: int) -> str:
        """The same for the same call of the same answer, whenever it is asked for."""
        digest = hashlib.sha256(f"{self._id}.{choice}.{index}".encode()).hexdigest()
        return f"call_{digest[:24]}"

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> ChatLogprobs | None:
        return None if self._top < 0 else self._context.logprobs.chat(tokens, self._top)


class _Collected:
    """`Sink` of an answer that is sent whole."""

    is_free = True

    def __init__(self, count: int) -> None:
        self.deltas: list[list[Delta]] = [[] for _ in range(count)]
        self.reasons = [""] * count

    def put_now(self, index: int, delta: Delta) -> None:
        self.deltas[index].append(delta)

    async def put(self, index: int, output: Output) -> None:
        match output:
            case Delta():
                self.put_now(index, output)
            case ChoiceEnded():
                self.reasons[index] = output.finish_reason
            case PromptLogprobs():
                pass  # chats never ask for them
            case ChoicePaused():
                pass
            case _:
                assert_never(output)


class _Streamed:
    """`Sink` of an answer that is streamed."""

    def __init__(self, answer: ChatAnswer, stream: EventStream, count: int) -> None:
        self._answer = answer
        self._stream = stream
        self._frames = [answer.frame(index) for index in range(count)]

    @property
    def is_free(self) -> bool:
        return self._stream.is_free

    def put_now(self, index: int, delta: Delta) -> None:
        for chunk in self._chunks(index, delta):
            self._stream.send_now(chunk)

    async def put(self, index: int, output: Output) -> None:
        match output:
            case Delta():
                for chunk in self._chunks(index, output):
                    await self._stream.send(chunk)
            case ChoiceEnded():
                choice = ChatChunkChoice(index, ChatDelta(), None, output.finish_reason)
                await self._stream.send(self._answer.chunk(choice))
            case PromptLogprobs():
                pass  # chats never ask for them
            case ChoicePaused():
                await self._stream.comment(output.text)
            case _:
                assert_never(output)

    def _chunks(self, index: int, delta: Delta) -> Sequence[bytes]:
        if delta.text and not delta.tokens:
            return (self._frames[index].fill(delta.text),)
        return self._answer.chunks(index, delta)
