"""Turns the outputs of one generation into OpenAI's completion objects: one answer, or chunks.

The choices of prompt p are p * n .. p * n + n - 1. With `echo`, a choice's first chunk is its
prompt.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec
from aiohttp import web

from strata.api.choice import Delta, ScoredToken
from strata.api.chunk_frame import MARK, ChunkFrame
from strata.api.context import ApiContext, new_id
from strata.api.generation import ChoiceEnded, ChoicePaused, Generation, Output, PromptLogprobs
from strata.api.schemas import Completion, CompletionChoice
from strata.api.sse import EventStream
from strata.text.detokenizer import Detokenizer

_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class CompletionPrompt:
    ids: Sequence[int]
    text: str | None  # None where the client gave ids
    begin_added: bool = False  # the first id is a begin token that the text does not show


@dataclass(slots=True)
class _Choice:
    """What has come of one choice."""

    texts: list[str] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)
    reason: str = ""
    chars: int = 0  # of prompt (with echo) and answer, as far as logprobs were written
    decoder: Detokenizer | None = None  # counts the answer's characters
    opened: bool = False  # its prompt was echoed
    scores: dict[int, ScoredToken] = field(default_factory=dict)  # by index in the prompt


class CompletionAnswer:
    """Turns the outputs of one generation into OpenAI's completion objects."""

    def __init__(
        self,
        context: ApiContext,
        generation: Generation,
        prompts: Sequence[CompletionPrompt],
        count: int,
        top: int,
        *,
        echo: bool,
    ) -> None:
        self._context = context
        self._generation = generation
        self._prompts = prompts
        self._count = count
        self._top = top
        self.echo = echo
        self._id = new_id("cmpl")
        self._created = int(time.time())
        self.choices = [_Choice() for _ in range(len(prompts) * count)]

    async def whole(self) -> web.Response:
        await self._generation.run(_Collected(self))
        choices = [self._whole_choice(i) for i in range(len(self.choices))]
        completion = self._completion(choices, is_last=True)
        return web.Response(body=_ENCODER.encode(completion), content_type="application/json")

    def _whole_choice(self, index: int) -> CompletionChoice:
        choice = self.choices[index]
        text, tokens, offsets = self._opening(index)
        text += "".join(choice.texts)
        logprobs = None
        if self._top >= 0:
            offsets += self._offsets(choice, choice.tokens)
            logprobs = self._context.logprobs.completion(
                [*tokens, *choice.tokens], self._top, offsets
            )
        return CompletionChoice(index, text, logprobs, choice.reason)

    async def streamed(self, request: web.Request, *, include_usage: bool) -> web.StreamResponse:
        stream = self._context.stream(request)

        async def produce() -> None:
            await self._generation.run(_Streamed(self, stream))
            if include_usage:
                await stream.send(_ENCODER.encode(self._completion([], is_last=True)))

        return await stream.run(produce)

    def frame(self, index: int) -> ChunkFrame:
        """Of the chunks that hold text and nothing else."""
        return ChunkFrame(self._completion([CompletionChoice(index, MARK)]))

    def opening(self, index: int) -> list[bytes]:
        """The echoed prompt, the first time that it is asked for."""
        choice = self.choices[index]
        if not self.echo or choice.opened:
            return []
        choice.opened = True
        return [self._chunk(index, *self._opening(index))]

    def chunk(self, index: int, delta: Delta) -> bytes:
        offsets = self._offsets(self.choices[index], delta.tokens) if delta.tokens else []
        return self._chunk(index, delta.text, delta.tokens, offsets)

    def end(self, index: int, reason: str) -> bytes:
        return self._chunk(index, "", (), [], reason)

    def score(self, index: int, output: PromptLogprobs) -> None:
        """Keeps what an echoed prompt is shown with."""
        ids = self._prompts[index // self._count].ids
        scores = self.choices[index].scores
        for at, logprob in enumerate(output.logprobs, output.offset):
            if at < len(ids):
                scores[at] = ScoredToken(ids[at], logprob)

    def _chunk(
        self,
        index: int,
        text: str,
        tokens: Sequence[ScoredToken],
        offsets: list[int],
        reason: str | None = None,
    ) -> bytes:
        logprobs = None
        if tokens:
            logprobs = self._context.logprobs.completion(tokens, self._top, offsets)
        choice = CompletionChoice(index, text, logprobs, reason)
        return _ENCODER.encode(self._completion([choice]))

    def _completion(self, choices: list[CompletionChoice], *, is_last: bool = False) -> Completion:
        """The last one tells what the whole request took."""
        completion = Completion(self._id, self._created, self._context.model_name, choices)
        if not is_last:
            return completion
        prompts = range(0, len(self.choices), self._count)
        return msgspec.structs.replace(
            completion,
            usage=self._generation.usage(prompts),
            timings=self._generation.timings(),
        )

    def _opening(self, index: int) -> tuple[str, Sequence[ScoredToken], list[int]]:
        """The echoed prompt and, with logprobs, its scored tokens and where each begins."""
        if not self.echo:
            return "", (), []
        prompt = self._prompts[index // self._count]
        choice = self.choices[index]
        shown = Detokenizer(self._context.text.vocabulary, shows_hidden=True)
        offsets: list[int] = []
        parts: list[str] = []
        chars = 0
        for at, token_id in enumerate(prompt.ids):
            offsets.append(chars)
            if not (at == 0 and prompt.begin_added):
                parts.append(shown.feed(token_id))
                chars += len(parts[-1])
        text = prompt.text if prompt.text is not None else "".join(parts) + shown.flush()
        choice.chars = len(text)
        if self._top < 0:
            return text, (), []
        scores = choice.scores
        return (
            text,
            [scores.get(at, ScoredToken(i, None)) for at, i in enumerate(prompt.ids)],
            offsets,
        )

    def _offsets(self, choice: _Choice, tokens: Sequence[ScoredToken]) -> list[int]:
        """Where the texts of generated tokens begin; they follow those asked about before."""
        if choice.decoder is None:
            choice.decoder = Detokenizer(self._context.text.vocabulary)
        offsets: list[int] = []
        for token in tokens:
            offsets.append(choice.chars)
            choice.chars += len(choice.decoder.feed(token.token_id))
        return offsets


class _Collected:
    """`Sink` of an answer that is sent whole."""

    is_free = True

    def __init__(self, answer: CompletionAnswer) -> None:
        self._answer = answer

    def put_now(self, index: int, delta: Delta) -> None:
        choice = self._answer.choices[index]
        choice.texts.append(delta.text)
        choice.tokens += delta.tokens

    async def put(self, index: int, output: Output) -> None:
        match output:
            case Delta():
                self.put_now(index, output)
            case ChoiceEnded():
                self._answer.choices[index].reason = output.finish_reason
            case PromptLogprobs():
                self._answer.score(index, output)
            case ChoicePaused():
                pass
            case _:
                assert_never(output)


class _Streamed:
    """`Sink` of an answer that is streamed."""

    def __init__(self, answer: CompletionAnswer, stream: EventStream) -> None:
        self._answer = answer
        self._stream = stream
        self._frames = [answer.frame(index) for index in range(len(answer.choices))]

    @property
    def is_free(self) -> bool:
        return self._stream.is_free

    def put_now(self, index: int, delta: Delta) -> None:
        if self._answer.echo:
            for chunk in self._answer.opening(index):
                self._stream.send_now(chunk)
        self._stream.send_now(self._chunk(index, delta))

    async def put(self, index: int, output: Output) -> None:
        match output:
            case Delta():
                await self._open(index)
                await self._stream.send(self._chunk(index, output))
            case ChoiceEnded():
                await self._open(index)
                await self._stream.send(self._answer.end(index, output.finish_reason))
            case PromptLogprobs():
                self._answer.score(index, output)
            case ChoicePaused():
                await self._stream.comment(output.text)
            case _:
                assert_never(output)

    async def _open(self, index: int) -> None:
        for chunk in self._answer.opening(index):
            await self._stream.send(chunk)

    def _chunk(self, index: int, delta: Delta) -> bytes:
        if delta.tokens:
            return self._answer.chunk(index, delta)
        return self._frames[index].fill(delta.text)
