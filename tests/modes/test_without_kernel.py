"""Missing kernels, end to end: the mode that needs them is not offered, the service says why in
every place it says anything, and what it does offer works."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.system.real_service import Service
from tools.synth_model import write_model

# hidden kernels -> the mode that gives way, what was wanted, what runs
CASES = {
    "*:sequences>1": ("batch", "8", "1"),
    "attention*:kv=f16": ("kv", "auto", "f32"),
    "kv_append*:kv=f16": ("kv", "auto", "f32"),
    "matmul*:act=int8": ("activations", "auto", "f32"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path, kind="q4_1")
    return path


def plan(engine: Path, model: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "strata", "plan", str(model), "--engine", str(engine), "--json", *flags]
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=60
    )


def mode(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(row for row in rows if row["name"] == name)


def test_nothing_hidden_nothing_missing(engine_path: Path, model: Path) -> None:
    rows = json.loads(plan(engine_path, model).stdout)["modes"]
    for name in ("batch", "kv", "activations"):
        assert mode(rows, name)["state"] == "ready", rows


@pytest.mark.parametrize("hidden", CASES)
def test_plan_names_mode_and_kernel(engine_path: Path, model: Path, hidden: str) -> None:
    name, requested, runs = CASES[hidden]
    row = mode(
        json.loads(plan(engine_path, model, "--without-kernel", hidden).stdout)["modes"], name
    )
    assert (row["requested"], row["runs"]) == (requested, runs)
    expected = {"kernel.missing", "kernel.kv_type"} if name == "kv" else {"kernel.missing"}
    assert {reason["code"] for reason in row["because"]} == expected
    assert any(hidden in reason["text"] for reason in row["because"])


def test_nothing_left_is_refused_with_the_whole_list(engine_path: Path, model: Path) -> None:
    done = plan(engine_path, model, "--without-kernel", "matmul*", "--without-kernel", "rope*")
    assert done.returncode == 78
    assert "blk.0.attn_q.weight" in done.stdout + done.stderr
    assert "rope" in done.stdout + done.stderr


def test_a_mask_that_cannot_be_read_is_named(engine_path: Path, model: Path) -> None:
    done = plan(engine_path, model, "--without-kernel", "*:speed>1")
    assert done.returncode == 78
    assert "speed" in done.stderr


def test_a_pattern_that_names_no_kernel_is_said(engine_path: Path, model: Path) -> None:
    said = {}
    for pattern in ("matmull*", "matmull*:sequences>1", "matmul*:sequences>1000"):
        command = [engine_path, "--plan", str(model), "--without-kernel", pattern]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        said[pattern] = done.stderr
        assert json.loads(done.stdout)["type"] == "CAPS"
    for pattern in ("matmull*", "matmull*:sequences>1"):
        (line,) = said[pattern].splitlines()
        assert f"'{pattern}' hides nothing: no kernel of the backend cpu" in line
    # Kernels are named here, though no step of this model asks them for so much.
    assert said["matmul*:sequences>1000"] == ""


def test_strict_refuses_what_was_asked_and_cannot_run(engine_path: Path, model: Path) -> None:
    command = ["-m", "strata", "serve", "--model", str(model), "--engine", str(engine_path)]
    flags = ["--port", "0", "--run-dir", str(model.parent / "strict"), "--batch", "8", "--strict"]
    done = subprocess.run(
        [sys.executable, *command, *flags, "--without-kernel", "*:sequences>1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 78, done.stderr
    assert "batch" in done.stderr


@pytest.fixture(params=CASES)
def limited(
    request: pytest.FixtureRequest, engine_path: Path, model: Path, tmp_path: Path
) -> Iterator[tuple[str, Service]]:
    service = Service(engine_path, model, tmp_path / "run", "--without-kernel", request.param)
    try:
        service.wait_ready()
        yield request.param, service
    finally:
        status = service.stop()
    assert status == 0, "".join(service.lines)


async def test_what_is_offered_serves_and_says_why(limited: tuple[str, Service]) -> None:
    hidden, service = limited
    name, _, runs = CASES[hidden]
    async with aiohttp.ClientSession(service.url) as http:

        async def chat(number: int) -> str:
            body = {
                "messages": [{"role": "user", "content": f"number {number}"}],
                "max_tokens": 4,
                "temperature": 0,
                "ignore_eos": True,
            }
            async with http.post("/v1/chat/completions", json=body) as response:
                answer = await response.json()
                assert response.status == 200, answer
                assert answer["usage"]["completion_tokens"] == 4
                return str(answer["choices"][0]["message"]["content"])

        alone = [await chat(number) for number in range(4)]
        assert await asyncio.gather(*(chat(number) for number in range(4))) == alone

        async with http.get("/v1/status") as response:
            row = mode((await response.json())["modes"], name)
        assert row["runs"] == runs
        assert any(hidden in reason["text"] for reason in row["because"])
        async with http.get("/v1/models") as response:
            entry = (await response.json())["data"][0]
        assert mode(entry["strata"]["modes"], name)["runs"] == runs
        async with http.get("/metrics") as response:
            assert f'strata_mode_disabled{{code="kernel.missing",mode="{name}"}} 1.0' in (
                await response.text()
            )
    table = "".join(service.lines)
    assert hidden in table, table
