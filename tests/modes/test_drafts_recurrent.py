"""Drafts of models with recurrent layers under the whole service: tokens are refused while others
share the step, states are rolled back, and every text is the one that comes without drafts."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.system.real_service import Service
from tools.synth_model import Shape, write_drafter, write_model
from tools.synth_shapes import RECURRENT, STREAMS

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


@pytest.mark.parametrize("architecture", [*RECURRENT, STREAMS])
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
    drafts = ("--mtp", mtp, "--spec", "3", "--batch-mtp", "on")
    drafted = await answers(always_drafts, model, tmp_path / "run", *drafts)
    texts = [[a["choices"][0]["text"] for a in served] for served in (plain, drafted)]
    assert texts[0] == texts[1]
    details = [a["usage"]["completion_tokens_details"] for a in drafted]
    assert sum(d["accepted_prediction_tokens"] for d in details) > CLIENTS
    assert sum(d["rejected_prediction_tokens"] for d in details) > CLIENTS
    assert not any("completion_tokens_details" in a["usage"] for a in plain)
