"""Reasoning and calls with the real engine, killed while it answers: each answer has the parts that
it would have had, whole or as a stream.

The model is a synthetic one whose likely tokens are the tags and words of answers, so that what it
says at random has reasoning, calls, broken calls and text in all orders.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.api.sse_reader import Stream, read_line
from tests.api.test_resume_chat import TOOL, WORDS, choices_of, folded
from tests.system.real_service import Service
from tests.system.test_resume_real import Killer
from tests.text.thinking_templates import QWEN35
from tools.synth_model import Shape, write_model
from tools.synth_tokenizer import MERGES, SPECIALS, byte_tokens

pytestmark = pytest.mark.slow

TOKENS = [*byte_tokens(), *(merge.replace(" ", "") for merge in MERGES), *SPECIALS, *WORDS]
PLAIN = len(TOKENS) - len(SPECIALS) - len(WORDS)
END = TOKENS.index("<|im_end|>")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = list(dict.fromkeys(word for word in WORDS if word not in TOKENS[:PLAIN]))
    tokens = [*TOKENS[: PLAIN + len(SPECIALS)], *words]
    return write_model(
        tmp_path_factory.mktemp("model") / "wordy.gguf",
        Shape(
            "qwen3",
            layers=4,
            width=256,
            head_dim=32,
            ff=512,
            vocab=len(tokens),
            context=1024,
            tied=False,
        ),
        metadata={
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * PLAIN + [3] * len(SPECIALS) + [4] * len(words),
            "tokenizer.chat_template": QWEN35,
        },
    )


@pytest.fixture
def service(engine_path: Path, model_path: Path, tmp_path: Path) -> Iterator[Service]:
    service = Service(engine_path, model_path, tmp_path / "run")
    try:
        service.wait_ready()
        yield service
    finally:
        status = service.stop()
    assert status == 0, "".join(service.lines)


def chats(rng: random.Random) -> list[dict[str, Any]]:
    first = PLAIN + len(SPECIALS)
    bias = {str(first + i): 100 for i in range(len({w for w in WORDS if w not in TOKENS[:PLAIN]}))}
    bias |= {str(TOKENS.index(word)): 100 for word in WORDS if word in TOKENS[:PLAIN]}
    return [
        {
            "messages": [{"role": "user", "content": f"Question {i}"}],
            "max_tokens": rng.choice([60, 150]),
            "min_tokens": 50,
            "seed": rng.randint(0, 10**6),
            "n": 1 + i % 2,
            "stream": i % 3 != 2,
            "stream_options": {"include_usage": True},
            "tools": [TOOL],
            "enable_thinking": i % 4 != 3,
            "logit_bias": bias | {str(END): 97},
            "logprobs": i == 1,
        }
        for i in range(6)
    ]


async def ask(killer: Killer, body: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    url = killer.url + "/v1/chat/completions"
    async with killer.http.post(url, json=body) as response:
        if not body["stream"]:
            answer = await response.json()
            assert response.status == 200, answer
            return choices_of(answer), []
        stream = Stream()
        async for raw in response.content:
            if read_line(stream, raw):
                await killer.on_chunk()
        return folded(stream, body["n"]), stream.comments


async def test_parts_do_not_depend_on_kills(service: Service) -> None:
    rng = random.Random(5)
    bodies = chats(rng)
    timeout = aiohttp.ClientTimeout(total=100)
    async with aiohttp.ClientSession(timeout=timeout) as http:

        async def all_of(after: list[int]) -> tuple[list[Any], list[str], int]:
            killer = Killer(service.url, http, after)
            answers = await asyncio.gather(*(ask(killer, body) for body in bodies))
            return [a for a, _ in answers], [c for _, cs in answers for c in cs], killer.kills

        calm, _, _ = await all_of([])
        stormy, comments, kills = await all_of([rng.randint(5, 60), rng.randint(100, 200)])
    for got, wanted, body in zip(stormy, calm, bodies, strict=True):
        assert got == wanted, body
    assert kills
    assert any("goes on" in comment for comment in comments)
    choices = [choice for choices in calm for choice in choices]
    assert any(choice["reasoning"] for choice in choices)
    assert any(choice["calls"] for choice in choices)
    assert any(choice["content"] for choice in choices)
