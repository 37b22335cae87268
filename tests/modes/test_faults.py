"""Kernels that are present and crash: the probe catches what it can reach, and what only real load
reaches costs one crash. Never a second of the same signature."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.modes.test_reports import chat, row
from tests.system.real_service import Service
from tools.synth_model import Shape, write_model

# Only a step that two sequences share reaches these kernels' faults.
IN_PROBE = "*:phase=probe,mode=batch,sequences>1"
UNDER_LOAD = "attention*:phase=decode,sequences>1,step>=8"
ACTIONS = {  # how a kernel ends, and what the sentence says of it
    "segv": "SIGSEGV",
    "abort": "SIGABRT",
    "ill": "SIGILL",
    "exit1": "exit status 1",
    "loop": "hang",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", kind="q4_1")


def quarantine(run_dir: Path, *command: str) -> Any:
    flags = ["-m", "strata", "quarantine", *command, "--run-dir", str(run_dir), "--json"]
    done = subprocess.run([sys.executable, *flags], capture_output=True, check=True, timeout=60)
    return json.loads(done.stdout)


async def status_of(http: aiohttp.ClientSession) -> dict[str, Any]:
    async with http.get("/v1/status") as response:
        found: dict[str, Any] = await response.json()
    return found


async def asked(http: aiohttp.ClientSession, number: int, tokens: int = 400) -> str:
    """One streamed-length answer of a prompt of its own; raises where it is an error."""
    body = {
        "model": "smollm2", "prompt": [number + 5, 6], "max_tokens": tokens, "temperature": 0,
        "ignore_eos": True,
    }  # fmt: skip
    async with http.post("/v1/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        assert answer["usage"]["completion_tokens"] == tokens
        return str(answer["choices"][0]["text"])


async def ask_until(
    http: aiohttp.ClientSession, count: int, is_over: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """`count` requests at once, twice, and then as often as it takes: which of them share a step is
    up to the machine. Their answers are those that each gets alone. Returns the status."""
    alone = [await asked(http, number) for number in range(count)]
    for again in range(20):
        assert await asyncio.gather(*(asked(http, n) for n in range(count))) == alone
        status = await status_of(http)
        if again and is_over(status):
            break
    return status


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_probe_that_dies_takes_its_mode_out(
    faulty_engine_path: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
) -> None:
    monkeypatch.setenv("STRATA_FAULT", f"{IN_PROBE}@{action}")
    run_dir = tmp_path / "run"
    service = Service(faulty_engine_path, model, run_dir, "--batch", "4")
    try:
        service.wait_ready()
        async with aiohttp.ClientSession(service.url) as http:
            texts = await asyncio.gather(*(chat(http, number) for number in range(4)))
            assert len(texts) == 4
            status = await status_of(http)
    finally:
        ended = service.stop()
    assert ended == 0, "".join(service.lines)
    batch = row(status["modes"], "batch")
    assert (batch["requested"], batch["runs"]) == ("4", "1")
    assert {reason["code"] for reason in batch["because"]} == {"mode.quarantined"}
    text = " ".join(reason["text"] for reason in batch["because"])
    assert ACTIONS[action] in text
    assert "while proving batch" in text
    assert status["restarts"]["starts"] == 2, status["restarts"]
    records = quarantine(run_dir, "list")
    assert [record["mode"] for record in records] == ["batch"]


async def test_under_load_it_costs_one_crash_and_never_a_second(
    faulty_engine_path: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_FAULT", f"{UNDER_LOAD}@segv")
    run_dir = tmp_path / "run"
    for run in range(2):  # the second supervisor knows it from disk
        service = Service(faulty_engine_path, model, run_dir, "--batch", "4")
        try:
            service.wait_ready()
            async with aiohttp.ClientSession(service.url) as http:
                crashes = 1 - run
                status = await ask_until(
                    http, 4, lambda s, n=crashes: s["restarts"]["crashes"] >= n
                )
        finally:
            ended = service.stop()
        assert ended == 0, "".join(service.lines)
        assert status["restarts"]["crashes"] == 1 - run, "".join(service.lines)
        batch = row(status["modes"], "batch")
        assert (batch["requested"], batch["runs"]) == ("4", "1")
        text = " ".join(reason["text"] for reason in batch["because"])
        assert "SIGSEGV" in text
        assert "attention" in text
    assert [record["mode"] for record in quarantine(run_dir, "list")] == ["batch"]
    quarantine(run_dir, "clear", "--all")
    assert quarantine(run_dir, "list") == []


async def test_a_wrong_result_is_caught_by_the_probe(
    faulty_engine_path: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No crash, but logits that differ from the plain path: the mode is not run."""
    monkeypatch.setenv("STRATA_FAULT", "attention*:phase=probe,mode=batch,sequences>1@nan")
    service = Service(faulty_engine_path, model, tmp_path / "run", "--batch", "4")
    try:
        service.wait_ready()
        async with aiohttp.ClientSession(service.url) as http:
            status = await status_of(http)
            await asyncio.gather(*(chat(http, number) for number in range(4)))
    finally:
        ended = service.stop()
    assert ended == 0, "".join(service.lines)
    batch = row(status["modes"], "batch")
    assert (batch["requested"], batch["runs"]) == ("4", "1")
    assert "probe.differs" in {reason["code"] for reason in batch["because"]}
    assert status["restarts"]["starts"] == 1


async def served_with(
    faulty: Path, model: Path, run_dir: Path, *flags: str
) -> tuple[dict[str, Any], list[Any]]:
    """Four clients at once; the status behind them and the quarantine."""
    service = Service(faulty, model, run_dir, *flags)
    try:
        service.wait_ready()
        async with aiohttp.ClientSession(service.url) as http:
            await asyncio.gather(*(chat(http, number) for number in range(4)))
            status = await status_of(http)
    finally:
        ended = service.stop()
    assert ended == 0, "".join(service.lines)
    return status, quarantine(run_dir, "list")


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "long.gguf"
    return write_model(path, Shape(context=4096), kind="q4_1")


LONG_CONTEXT = "attention*:phase=probe,mode=max_context"


async def test_a_context_that_crashes_costs_one_engine_and_leaves_the_shorter_ones(
    faulty_engine_path: Path, long_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe goes from short to long: here the very first length crashes."""
    monkeypatch.setenv("STRATA_FAULT", f"{LONG_CONTEXT}@segv")
    status, records = await served_with(faulty_engine_path, long_model, tmp_path / "run")
    assert status["restarts"]["starts"] == 2, status["restarts"]
    context = row(status["modes"], "max_context")
    assert int(context["runs"]) < 128
    assert "SIGSEGV" in " ".join(reason["text"] for reason in context["because"])
    assert [record["mode"] for record in records] == ["max_context=128"]


async def test_a_context_with_wrong_results_is_shortened(
    faulty_engine_path: Path, long_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_FAULT", f"{LONG_CONTEXT}@nan")
    status, records = await served_with(faulty_engine_path, long_model, tmp_path / "run")
    context = row(status["modes"], "max_context")
    assert context["runs"] == "73"  # what the plain path has proven
    assert "numeric.logits" in {reason["code"] for reason in context["because"]}
    assert status["restarts"]["starts"] == 1
    assert records == []


async def test_a_mode_is_acquitted_when_the_same_crash_comes_without_it(
    faulty_engine_path: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the plain path: no mode has a part in it, so none stays out."""
    monkeypatch.setenv("STRATA_FAULT", "attention*:phase=probe,mode=solo@segv")
    run_dir = tmp_path / "run"
    service = Service(faulty_engine_path, model, run_dir)
    try:
        await asyncio.to_thread(service.wait_line, "is offered again: the same crash came without")
    finally:
        service.stop()
    assert "quarantined" not in {
        r["state"] for r in quarantine(run_dir, "list") if r["mode"] == "kv=f16"
    }
    monkeypatch.delenv("STRATA_FAULT")
    status, _ = await served_with(faulty_engine_path, model, run_dir)
    assert row(status["modes"], "kv")["runs"] == "f16"


async def test_requests_that_shared_steps_spoil_run_again_alone_and_the_mode_goes(
    faulty_engine_path: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN in steps of several only: nobody hears of it, and the second time `batch` is out."""
    monkeypatch.setenv("STRATA_FAULT", f"{UNDER_LOAD}@nan")
    run_dir = tmp_path / "run"
    service = Service(faulty_engine_path, model, run_dir, "--batch", "4")
    try:
        service.wait_ready()
        async with aiohttp.ClientSession(service.url) as http:
            text = "starts again to run without batch"
            await ask_until(http, 4, lambda _: any(text in line for line in service.lines))
            await asyncio.to_thread(service.wait_line, text)
            status = await ask_until(http, 4, lambda _: True)
    finally:
        ended = service.stop()
    assert ended == 0, "".join(service.lines)
    assert status["restarts"]["crashes"] == 0
    batch = row(status["modes"], "batch")
    assert (batch["requested"], batch["runs"]) == ("4", "1")
    assert "not finite" in " ".join(reason["text"] for reason in batch["because"])
    assert [record["mode"] for record in quarantine(run_dir, "list")] == ["batch"]


async def test_eight_streams_survive_a_kernel_that_throws_in_shared_steps(
    faulty_engine_path: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_FAULT", "matmul*:phase=decode,step>=5,sequences>1@throw")
    service = Service(faulty_engine_path, model, tmp_path / "run", "--batch", "8")
    try:
        service.wait_ready()
        async with aiohttp.ClientSession(service.url) as http:
            status = await ask_until(http, 8, lambda s: s["restarts"]["crashes"] >= 1)
    finally:
        ended = service.stop()
    assert ended == 0, "".join(service.lines)
    assert status["restarts"]["crashes"] >= 1


async def test_a_kernel_that_every_request_dies_of_leads_down_and_refuses_few(
    faulty_engine_path: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of one row implicate no mode, but the kernel says which type a lower rung changes."""
    monkeypatch.setenv("STRATA_FAULT", "attention*:phase=decode,step>=3,plan.kv=f16@segv")
    service = Service(faulty_engine_path, model, tmp_path / "run", "--batch", "2")
    answers: list[int] = []
    try:
        service.wait_ready()
        async with aiohttp.ClientSession(service.url) as http:
            for number in [0, 1, 2, 0]:
                body = {"model": "smollm2", "prompt": [number + 5, 6], "max_tokens": 20}
                async with http.post("/v1/completions", json=body) as response:
                    answers.append(response.status)
            status = await status_of(http)
    finally:
        ended = service.stop()
    assert ended == 0, "".join(service.lines)
    assert answers == [400, 200, 200, 200], "the first is tried again on the lower rung"
    assert row(status["modes"], "kv")["runs"] == "f32"
    assert status["restarts"]["crashes"] == 4
