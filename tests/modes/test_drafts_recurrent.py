"""Drafts of models with recurrent layers under the whole service: tokens are refused while others
share the step, states are rolled back, engines are killed, and every text is the one that comes
without drafts."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.system.real_service import Service
from tests.system.test_resume_real import TEXT, Killer, ask
from tools.synth_model import Shape, write_drafter, write_model
from tools.synth_shapes import RECURRENT, STREAMS

ARCHITECTURES = (*RECURRENT, STREAMS)
SHAPE = Shape(
    layers=4,
    tied=False,  # else a predictable model says one word only
    head_dim=32,
    rope_dims=16,
    context=1024,
    experts=6,
    shared_ff=64,
    draft_layers=1,
    top_k=32,
)
CLIENTS = 8
DRAFTS = ("--spec", "3", "--batch-mtp", "on")


async def complete(http: aiohttp.ClientSession, number: int) -> dict[str, Any]:
    """Every other one is sampled, so that drafts of all places are refused."""
    body = {
        "model": "smollm2",
        "prompt": f"{number} is a number. " * (1 + number % 3),
        "max_tokens": 60,
        "temperature": 0.8 * (number % 2),
        "seed": number,
        "ignore_eos": True,
    }
    async with http.post("/v1/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return dict(answer)


async def answers(engine: Path, model: Path, run_dir: Path, *flags: str) -> list[dict[str, Any]]:
    service = Service(engine, model, run_dir, "--batch", "4", "--prefill", "32", *flags)
    try:
        service.wait_ready()
        async with aiohttp.ClientSession(service.url) as http:
            return await asyncio.gather(*(complete(http, number) for number in range(CLIENTS)))
    finally:
        assert service.stop() == 0, "".join(service.lines)


@pytest.fixture
def always_drafts(engine_path: Path, tmp_path: Path) -> Path:
    """On a tiny model drafts do not pay, and an engine that may stop them soon does."""
    engine = tmp_path / "engine"
    engine.write_text(f'#!/bin/sh\nexec "{engine_path}" "$@" --fixed-drafts\n')
    engine.chmod(0o755)
    return engine


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("is_own_file", [False, True])
async def test_texts_are_the_same_with_drafts(
    always_drafts: Path, architecture: str, is_own_file: bool, tmp_path: Path
) -> None:
    shape = dataclasses.replace(SHAPE, architecture=architecture)
    model = write_model(tmp_path / "m.gguf", shape, kind="q8_0", predictable=True)
    mtp = "auto"
    if is_own_file:
        alone = dataclasses.replace(shape, draft_layers=0)
        model = write_model(tmp_path / "m.gguf", alone, kind="q8_0", predictable=True)
        mtp = str(write_drafter(tmp_path / "d.gguf", shape, kind="q8_0", predictable=True))
    plain = await answers(always_drafts, model, tmp_path / "plain", "--mtp", "off")
    drafted = await answers(always_drafts, model, tmp_path / "run", "--mtp", mtp, *DRAFTS)
    texts = [[a["choices"][0]["text"] for a in served] for served in (plain, drafted)]
    assert texts[0] == texts[1]
    details = [a["usage"]["completion_tokens_details"] for a in drafted]
    assert sum(d["accepted_prediction_tokens"] for d in details) > CLIENTS
    assert sum(d["rejected_prediction_tokens"] for d in details) > CLIENTS
    assert not any("completion_tokens_details" in a["usage"] for a in plain)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_streams_survive_an_engine_that_drafted(
    always_drafts: Path, architecture: str, tmp_path: Path
) -> None:
    """The next engine builds the states anew from all tokens, the last ones accepted drafts."""
    shape = dataclasses.replace(SHAPE, architecture=architecture)
    model = write_model(tmp_path / "m.gguf", shape, kind="q8_0", predictable=True)
    asked = [
        {"prompt": f"{n} and", "max_tokens": 500, "temperature": 0.8 * (n % 2), "seed": n}
        | {"ignore_eos": True, "stream": True}
        for n in range(4)
    ]
    service = Service(always_drafts, model, tmp_path / "run", "--batch", "4", *DRAFTS)
    try:
        service.wait_ready()
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(timeout=timeout) as http:

            async def all_of(after: list[int]) -> tuple[list[Any], list[str]]:
                killer = Killer(service.url, http, after)
                got = await asyncio.gather(*(ask(killer, TEXT, body) for body in asked))
                for answer, _ in got:
                    answer.pop("usage", None)  # what was drafted differs
                return [answer for answer, _ in got], [c for _, cs in got for c in cs]

            calm, comments = await all_of([])
            for _ in range(5):  # an engine may be through before it is killed
                stormy, comments = await all_of([8])
                assert stormy == calm
                if any("goes on" in comment for comment in comments):
                    break
    finally:
        assert service.stop() == 0, "".join(service.lines)
    assert any("goes on" in comment for comment in comments)
