"""What the official `openai` client must be able to do, against any server of ours.

Used with the scripted service (tests/api) and with a real engine (tests/system), so nothing here
depends on what the model says.
"""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

ASK: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Count from one to ten, please."}
]


async def streamed(client: AsyncOpenAI, **options: Any) -> tuple[str, list[str], Any]:
    """Text, finish reasons and usage of choice 0."""
    stream: Any = await client.chat.completions.create(
        messages=ASK, stream=True, stream_options={"include_usage": True}, **options
    )
    text, reasons, usage = "", [], None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    return text, reasons, usage


async def check_stream_equals_whole(client: AsyncOpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 12}
    whole = await client.chat.completions.create(messages=ASK, **options)
    text, reasons, usage = await streamed(client, **options)
    assert text == whole.choices[0].message.content
    assert reasons == [whole.choices[0].finish_reason]
    assert text
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens > 0


async def check_eight_at_once(client: AsyncOpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 10}
    alone = await streamed(client, **options)
    for answer in await asyncio.gather(*(streamed(client, **options) for _ in range(8))):
        assert answer[:2] == alone[:2]


async def check_choices(client: AsyncOpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "n": 2, "seed": 7, "max_tokens": 10}
    first = await client.chat.completions.create(messages=ASK, **options)
    again = await client.chat.completions.create(messages=ASK, **options)
    assert [choice.index for choice in first.choices] == [0, 1]
    assert [c.message.content for c in first.choices] == [c.message.content for c in again.choices]
    assert all(choice.finish_reason in ("stop", "length") for choice in first.choices)


async def check_logprobs(client: AsyncOpenAI, model: str) -> None:
    answer = await client.chat.completions.create(
        messages=ASK, model=model, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    shown = b"".join(bytes(entry.bytes or []) for entry in logprobs.content)
    assert shown.decode(errors="replace") == answer.choices[0].message.content
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob <= 0
        ordered = [top.logprob for top in entry.top_logprobs]
        assert ordered == sorted(ordered, reverse=True)


async def check_stop_strings(client: AsyncOpenAI, model: str) -> None:
    text, _, _ = await streamed(client, model=model, temperature=0, max_tokens=12)
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    expected = text[: text.index(stop)]
    cut, reasons, usage = await streamed(
        client, model=model, temperature=0, max_tokens=12, stop=[stop]
    )
    assert cut == expected
    assert reasons == ["stop"]
    assert 0 < usage.completion_tokens <= 12


async def check_completions(client: AsyncOpenAI, model: str) -> None:
    text = await client.completions.create(model=model, prompt="Hello", max_tokens=4, temperature=0)
    assert text.choices[0].text
    echoed = await client.completions.create(
        model=model, prompt="Hello", max_tokens=4, temperature=0, echo=True
    )
    assert echoed.choices[0].text == "Hello" + text.choices[0].text
    many = await client.completions.create(model=model, prompt=["Hello", "Once"], max_tokens=3)
    assert [choice.index for choice in many.choices] == [0, 1]
    stream = await client.completions.create(
        model=model, prompt="Hello", max_tokens=4, temperature=0, stream=True
    )
    parts = [choice.text async for chunk in stream for choice in chunk.choices]
    assert "".join(parts) == text.choices[0].text


async def check_models(client: AsyncOpenAI, model: str) -> None:
    assert [entry.id async for entry in client.models.list()] == [model]
    assert (await client.models.retrieve(model)).id == model


async def check_errors(client: AsyncOpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        await client.chat.completions.create(model="gpt-9", messages=ASK)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model=model, messages=ASK, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as too_long:
        await client.completions.create(model=model, prompt="word " * 200_000)
    assert too_long.value.code == "context_length_exceeded"


CHECKS = (
    check_stream_equals_whole,
    check_eight_at_once,
    check_choices,
    check_logprobs,
    check_stop_strings,
    check_completions,
    check_models,
    check_errors,
)
