"""The official `openai` client against the whole service: supervisor, engine and SmolLM2."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from tests.api.openai_checks import ASK, CHECKS, streamed
from tests.system.real_service import Service

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture(scope="module")
def service(
    engine_path: Path, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    service = Service(engine_path, smollm2_path, tmp_path_factory.mktemp("run"))
    try:
        service.wait_ready()
        yield service
    finally:
        status = service.stop()
    assert status == 0, "".join(service.lines)


@pytest.fixture
async def client(service: Service) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=service.url + "/v1", api_key="unused", max_retries=0, timeout=60
    ) as client:
        yield client


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_check(client: AsyncOpenAI, check: Any) -> None:
    await check(client, "smollm2")


async def test_sixteen_different_chats(client: AsyncOpenAI) -> None:
    """More than fit a batch; each gets what it would have got alone."""

    async def ask(number: int) -> str:
        answer = await client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": f"Tell me about the number {number}."}],
            temperature=0,
            max_tokens=8,
        )
        return answer.choices[0].message.content or ""

    alone = [await ask(number) for number in range(4)]
    together = await asyncio.gather(*(ask(number) for number in range(16)))
    assert together[:4] == alone
    assert all(together)


async def test_a_prefix_is_reused(client: AsyncOpenAI) -> None:
    story = "Once upon a time there was a fox. " * 40
    options: dict[str, Any] = {"model": "smollm2", "max_tokens": 2, "temperature": 0}
    await client.completions.create(prompt=story, **options)
    again = await client.completions.create(prompt=story + "It", **options)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) > 0


async def test_prompt_logprobs_of_ids_and_text_agree(client: AsyncOpenAI, service: Service) -> None:
    async def score(prompt: Any) -> Any:
        body = {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 2}
        async with (
            aiohttp.ClientSession() as http,
            http.post(service.url + "/v1/completions", json=body) as response,
        ):
            assert response.status == 200, await response.text()
            return (await response.json())["choices"][0]

    text = await score("Hello world")
    ids = await score([19556, 905])
    assert text == ids
    assert text["text"] == "Hello world"
    assert text["logprobs"]["token_logprobs"][0] is None
    assert text["logprobs"]["token_logprobs"][1] < 0


async def test_disconnect_frees_the_engine(service: Service, client: AsyncOpenAI) -> None:
    payload = json.dumps(
        {"messages": ASK, "stream": True, "ignore_eos": True, "max_tokens": 8000}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n"
    host, port = service.url.removeprefix("http://").split(":")
    for _ in range(12):  # more than a batch: each must have made room for the next
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + b"\r\n" + payload)
        await reader.readuntil(b'"content":"')
        await reader.readuntil(b'"content":"')  # a token, not only the opening
        writer.transport.abort()
    async with asyncio.timeout(30):
        text, reasons, _ = await streamed(client, model="smollm2", max_tokens=4, temperature=0)
    assert text
    assert reasons
