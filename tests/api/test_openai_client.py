"""The official `openai` client against a loopback server with a scripted service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import openai
import pytest
from openai import AsyncOpenAI
from strata.serving.request import (
    Event,
    Failed,
    PromptScored,
    RejectedError,
    RequestSpec,
    TokensReady,
)
from strata_protocol.messages import ErrorKind, FinishReason

from tests.api.conftest import Server
from tests.api.fake_service import finished
from tests.api.openai_checks import ASK, CHECKS

Check = Callable[[AsyncOpenAI, str], Awaitable[None]]


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=30
    ) as client:
        yield client


def counting(server: Server) -> Callable[[RequestSpec], Sequence[Event]]:
    """A deterministic model: choice i counts from i on."""

    def script(spec: RequestSpec) -> Sequence[Event]:
        words = " ".join(str(spec.params.choice + k) for k in range(40))
        ids = server.service.ids(f"Yes, {words}")[: spec.params.max_tokens]
        scored = spec.params.logprobs >= 0
        events: list[Event] = []
        if spec.params.prompt_logprobs >= 0:
            events.append(PromptScored(1, [server.service.score(i, 0) for i in spec.prompt_ids]))
        events += [
            TokensReady([i], [server.service.score(i, spec.params.logprobs)] if scored else [])
            for i in ids
        ]
        return [*events, finished(spec, len(ids), FinishReason.LENGTH)]

    return script


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_check(server: Server, client: AsyncOpenAI, check: Check) -> None:
    server.service.script = counting(server)
    await check(client, "tiny")


async def test_error_within_a_stream(server: Server, client: AsyncOpenAI) -> None:
    ids = server.service.ids("some words")
    failure = Failed(ErrorKind.INTERNAL, "engine_restarted", "the engine ended")
    server.service.script = lambda _: [TokensReady(ids, []), failure]
    stream = await client.chat.completions.create(model="tiny", messages=ASK, stream=True)
    texts: list[str] = []

    async def read() -> None:
        async for chunk in stream:
            texts.extend(choice.delta.content or "" for choice in chunk.choices)

    with pytest.raises(openai.APIError, match="the engine ended"):
        await read()
    assert "".join(texts) == "some words"


async def test_overload_is_retried(server: Server, client: AsyncOpenAI) -> None:
    server.service.rejection = RejectedError(
        ErrorKind.OVERLOADED, "queue_full", "full", retry_after_s=0.001
    )
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model="tiny", messages=ASK)
    assert caught.value.status_code == 503
    assert caught.value.code == "queue_full"
    attempts: list[RequestSpec] = []

    def script(spec: RequestSpec) -> Sequence[Event]:
        attempts.append(spec)
        if len(attempts) == 1:
            return [Failed(ErrorKind.INTERNAL, "engine_restarted", "again, please")]
        return counting(server)(spec)

    server.service.rejection = None
    server.service.script = script
    retrying = client.with_options(max_retries=1)
    answer = await retrying.chat.completions.create(model="tiny", messages=ASK, max_tokens=5)
    assert answer.choices[0].message.content
    assert len(attempts) == 2
