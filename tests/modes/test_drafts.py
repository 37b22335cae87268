"""Drafts under the whole service: they run in a batch and are counted; a drafter that is no good,
or whose kernels are missing or crash, costs drafts and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.modes.test_faults import quarantine, status_of
from tests.modes.test_reports import chat, row
from tests.system.real_service import Service
from tools.synth_model import Shape, write_model

SHAPE = Shape(width=256, ff=256, heads=4, kv_heads=2, head_dim=64, draft_layers=1)
FLAGS = ("--batch", "4", "--batch-mtp", "on", "--spec", "4")
UNDER_LOAD = "attention*:phase=draft,sequences>1,step>=1"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "drafting.gguf"
    return write_model(path, SHAPE, kind="q4_0", predictable=True)


async def served(
    engine: Path, model: Path, run_dir: Path, *flags: str, clients: int = 8, crashes: int = 0
) -> tuple[dict[str, Any], list[str]]:
    """As many clients at once, twice, and up to 20 times until there were that many crashes: who
    shares a step is up to the machine. The status behind them and their texts."""
    service = Service(engine, model, run_dir, *flags)
    try:
        service.wait_ready()
        async with aiohttp.ClientSession(service.url) as http:
            texts = await asyncio.gather(*(chat(http, number) for number in range(clients)))
            again = await asyncio.gather(*(chat(http, number) for number in range(clients)))
            assert texts == again
            status = await status_of(http)
            for _ in range(20):
                if status["restarts"]["crashes"] >= crashes:
                    break
                again = await asyncio.gather(*(chat(http, number) for number in range(clients)))
                assert texts == again
                status = await status_of(http)
    finally:
        ended = service.stop()
    assert ended == 0, "".join(service.lines)
    return status, texts


def runs(status: dict[str, Any]) -> dict[str, str]:
    return {name: row(status["modes"], name)["runs"] for name in ("batch", "spec", "batch_mtp")}


def because(status: dict[str, Any], name: str) -> tuple[set[str], str]:
    reasons = row(status["modes"], name)["because"]
    return {r["code"] for r in reasons}, " ".join(r["text"] for r in reasons)


async def test_drafts_run_in_a_batch_and_are_counted(
    engine_path: Path, model: Path, tmp_path: Path
) -> None:
    _, plain = await served(engine_path, model, tmp_path / "plain", "--batch", "4", "--mtp", "off")
    service = Service(engine_path, model, tmp_path / "run", *FLAGS)
    try:
        service.wait_ready()
        async with aiohttp.ClientSession(service.url) as http:
            assert plain == await asyncio.gather(*(chat(http, number) for number in range(8)))
            body = {"model": "smollm2", "messages": [{"role": "user", "content": "Count"}]}
            async with http.post("/v1/chat/completions", json=body | {"max_tokens": 40}) as answer:
                done = await answer.json()
            status = await status_of(http)
            async with http.get("/metrics") as answer:
                metrics = await answer.text()
    finally:
        assert service.stop() == 0, "".join(service.lines)
    assert runs(status) == {"batch": "4", "spec": "4", "batch_mtp": "on"}
    assert status["restarts"]["starts"] == 1
    details, timings = done["usage"].get("completion_tokens_details", {}), done["timings"]
    drafted = timings.get("draft_n", 0)
    assert timings.get("draft_n_accepted", 0) <= drafted
    if drafted:
        assert details["accepted_prediction_tokens"] == timings["draft_n_accepted"]
        assert sum(details.values()) == drafted
    assert "vllm:spec_decode_num_draft_tokens_total" in metrics
    assert "vllm:spec_decode_num_accepted_tokens_total" in metrics


async def test_where_drafts_cannot_share_a_step_they_run_alone(
    engine_path: Path, model: Path, tmp_path: Path
) -> None:
    """The step that verifies a draft of each of four sequences has more rows than any other."""
    few = ("--batch", "4", "--batch-mtp", "on", "--spec", "1", "--prefill", "1")
    mask = ("--without-kernel", f"attention*:rows={4 * 2 + 1}")
    status, _ = await served(engine_path, model, tmp_path / "run", *few, *mask)
    assert runs(status) == {"batch": "4", "spec": "1", "batch_mtp": "off"}
    codes, text = because(status, "batch_mtp")
    assert "kernel.missing" in codes
    assert "attention" in text
    assert status["restarts"]["starts"] == 1


async def test_a_drafter_that_is_never_right_is_not_run(engine_path: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "random.gguf", SHAPE, kind="q4_0")
    status, _ = await served(engine_path, model, tmp_path / "run", *FLAGS)
    assert runs(status) == {"batch": "4", "spec": "0", "batch_mtp": "off"}
    codes, text = because(status, "mtp")
    assert "drafter.acceptance" in codes
    assert "at least a twentieth must be" in text
    assert status["restarts"]["starts"] == 1


@pytest.mark.parametrize(
    ("fault", "mode", "left"),
    [
        ("matmul*:phase=probe,mode=batch_mtp@segv", "batch_mtp", {"spec": "4", "batch_mtp": "off"}),
        ("matmul*:phase=probe,mode=mtp@abort", "mtp", {"spec": "0", "batch_mtp": "off"}),
    ],
)
async def test_a_probe_of_drafts_that_dies_takes_them_out(  # noqa: PLR0917 - fixtures
    faulty_engine_path: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    mode: str,
    left: dict[str, str],
) -> None:
    monkeypatch.setenv("STRATA_FAULT", fault)
    status, _ = await served(faulty_engine_path, model, tmp_path / "run", *FLAGS)
    assert runs(status) == {"batch": "4"} | left
    codes, text = because(status, mode)
    assert codes == {"mode.quarantined"}
    assert f"while proving {mode}" in text
    assert status["restarts"]["starts"] == 2, status["restarts"]
    assert [record["mode"] for record in quarantine(tmp_path / "run", "list")] == [mode]


async def test_drafts_that_crash_under_load_cost_one_crash(
    faulty_engine_path: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_FAULT", f"{UNDER_LOAD}@segv")
    # On a tiny model drafts do not pay, and an engine that may stop them soon does.
    always_drafts = tmp_path / "engine"
    always_drafts.write_text(f'#!/bin/sh\nexec "{faulty_engine_path}" "$@" --fixed-drafts\n')
    always_drafts.chmod(0o755)
    for run in range(2):  # the second supervisor knows it from disk
        run_dir = tmp_path / "run"
        status, _ = await served(always_drafts, model, run_dir, *FLAGS, crashes=1 - run)
        assert status["restarts"]["crashes"] == 1 - run, status["restarts"]
        assert runs(status) == {"batch": "4", "spec": "4", "batch_mtp": "off"}
        codes, text = because(status, "batch_mtp")
        assert codes == {"mode.quarantined"}
        assert "SIGSEGV" in text
        assert "attention" in text
    assert [r["mode"] for r in quarantine(tmp_path / "run", "list")] == ["batch_mtp"]
