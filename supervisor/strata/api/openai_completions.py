"""`POST /v1/completions`: raw prompts as text or token ids, several at once, echo, logprobs.

The choices of prompt p are p * n .. p * n + n - 1. `max_tokens` 0 with `echo` scores a prompt
without generating anything.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

import msgspec
from aiohttp import web

from strata.api.body_needs import body_needs
from strata.api.choice import ChoiceText, Delta, ScoredToken
from strata.api.context import ApiContext, new_id
from strata.api.errors import invalid
from strata.api.generation import ChoiceEnded, ChoicePaused, Generation, Output, PromptLogprobs
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
from strata.api.schemas import (
    Completion,
    CompletionChoice,
    CompletionRequest,
    refuse_unsupported,
)
from strata.text.detokenizer import Detokenizer

PROMPTS_MAX = 64  # prompts times n
MAX_TOKENS_DEFAULT = 16  # OpenAI's
_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class _Prompt:
    ids: Sequence[int]
    text: str | None  # None where the client gave ids
    begin_added: bool = False  # the first id is a begin token that the text does not show


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
        answer = _Answer(context, generation, prompts, count, top, echo=echo)
        if not body.stream:
            return await answer.whole()
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        try:
            return await answer.streamed(request, include_usage=include_usage)
        finally:
            generation.cancel()

    def _read_prompt(self, param: str, raw: str | list[int], parses_special: bool) -> _Prompt:
        """Takes as long as the prompt is, so it belongs in a worker. Raises ApiError, TextError."""
        text, context = self._context.text, self._context.context_tokens
        if isinstance(raw, str):
            least = text.tokenizer.token_count_min(len(raw))
            if context and least > context:
                raise context_exceeded(f"at least {least}", context, "prompt")
            ids = text.encode_prompt(raw, parse_special=parses_special)
            prompt = _Prompt(ids, raw, self._is_begin_added(ids, raw))
        else:
            if context and len(raw) > context:
                raise context_exceeded(str(len(raw)), context, "prompt")
            top = text.vocabulary.size - 1
            for token_id in raw:
                if not 0 <= token_id <= top:
                    raise invalid(f"{param} has token id {token_id}; allowed: 0 to {top}", param)
            prompt = _Prompt(raw, None)
        if not prompt.ids:
            raise invalid(f"{param} is empty; at least one token is needed", param)
        return prompt

    def _is_begin_added(self, ids: Sequence[int], raw: str) -> bool:
        vocabulary = self._context.text.vocabulary
        bos = vocabulary.bos_id
        return (
            vocabulary.adds_bos and ids[0] == bos and not raw.startswith(vocabulary.token_text(bos))
        )


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


class _Answer:
    """Turns the outputs of one generation into OpenAI's completion objects."""

    def __init__(
        self,
        context: ApiContext,
        generation: Generation,
        prompts: Sequence[_Prompt],
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
        self._echo = echo
        self._id = new_id("cmpl")
        self._created = int(time.time())
        self._choices = [_Choice() for _ in range(len(prompts) * count)]

    async def whole(self) -> web.Response:
        async def collect(index: int, output: Output) -> None:
            choice = self._choices[index]
            match output:
                case Delta():
                    choice.texts.append(output.text)
                    choice.tokens += output.tokens
                case ChoiceEnded():
                    choice.reason = output.finish_reason
                case PromptLogprobs():
                    self._score(index, output)
                case ChoicePaused():
                    pass
                case _:
                    assert_never(output)

        await self._generation.run(collect)
        choices = [self._whole_choice(i) for i in range(len(self._choices))]
        completion = self._completion(choices, is_last=True)
        return web.Response(body=_ENCODER.encode(completion), content_type="application/json")

    def _whole_choice(self, index: int) -> CompletionChoice:
        choice = self._choices[index]
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

        async def send(index: int, output: Output) -> None:
            choice = self._choices[index]
            if isinstance(output, PromptLogprobs):
                self._score(index, output)
                return
            if isinstance(output, ChoicePaused):
                await stream.comment(output.text)
                return
            if self._echo and not choice.opened:
                choice.opened = True
                await stream.send(self._chunk(index, *self._opening(index)))
            match output:
                case Delta(text, tokens):
                    offsets = self._offsets(choice, tokens) if tokens else []
                    await stream.send(self._chunk(index, text, tokens, offsets))
                case ChoiceEnded():
                    await stream.send(self._chunk(index, "", (), [], output.finish_reason))
                case _:
                    assert_never(output)

        async def produce() -> None:
            await self._generation.run(send)
            if include_usage:
                await stream.send(_ENCODER.encode(self._completion([], is_last=True)))

        return await stream.run(produce)

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
        prompts = range(0, len(self._choices), self._count)
        return msgspec.structs.replace(
            completion,
            usage=self._generation.usage(prompts),
            timings=self._generation.timings(),
        )

    def _score(self, index: int, output: PromptLogprobs) -> None:
        ids = self._prompts[index // self._count].ids
        scores = self._choices[index].scores
        for at, logprob in enumerate(output.logprobs, output.offset):
            if at < len(ids):
                scores[at] = ScoredToken(ids[at], logprob)

    def _opening(self, index: int) -> tuple[str, Sequence[ScoredToken], list[int]]:
        """The echoed prompt and, with logprobs, its scored tokens and where each begins."""
        if not self._echo:
            return "", (), []
        prompt = self._prompts[index // self._count]
        choice = self._choices[index]
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
