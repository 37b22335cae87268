"""The two reports that this project answers, end to end with the real engine.

A: a backend without kernels for several sequences, asked for a batch.
B: a file whose draft layers have types that no kernel serves, asked for drafts in a batch. (This
backend has kernels for every type, so those of the file are hidden; with them the file is served.)
Each boots, says at start what does not run and why, in every place, serves, and never restarts.
"""

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
from tools.synth_model import Shape, write_model

NO_BATCH = ("--without-kernel", "*:sequences>1")
DRAFT_KINDS = {"nextn.eh_proj": "iq4_nl", "ffn_down": "q2_0"}
NO_DRAFT_KINDS = tuple(
    text for kind in DRAFT_KINDS.values() for text in ("--without-kernel", f"matmul*:weight={kind}")
)
DRAFTS = ("--batch", "4", "--batch-mtp", "on", "--spec", "4")


def row(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in rows if entry["name"] == name)


async def chat(http: aiohttp.ClientSession, number: int) -> str:
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": f"Count to {number}"}],
        "max_tokens": 24,
        "temperature": 0,
    }
    async with http.post("/v1/chat/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return str(answer["choices"][0]["message"]["content"])


async def places(service: Service, http: aiohttp.ClientSession, name: str) -> dict[str, list[str]]:
    """For each place that tells why: `code: sentence` of the mode's reasons, as told there."""
    told: dict[str, list[str]] = {}
    async with http.get("/v1/status") as response:
        status = await response.json()
    told["/v1/status"] = _sentences(row(status["modes"], name))
    async with http.get("/v1/models") as response:
        entry = (await response.json())["data"][0]
    told["/v1/models"] = _sentences(row(entry["strata"]["modes"], name))
    run_dir = status["supervisor"]["run_dir"]
    command = [sys.executable, "-m", "strata", "status", "--run-dir", run_dir]
    shown = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, timeout=60
    )
    every = told["/v1/status"]
    told["status"] = [line for line in every if line.partition(": ")[2] in shown.stdout]
    log = "".join(service.lines)
    told["boot log"] = [line for line in every if line.partition(": ")[2] in log]
    async with http.get("/metrics") as response:
        metrics = await response.text()
    told["metrics"] = [
        line
        for line in every
        if f'strata_mode_disabled{{code="{line.partition(": ")[0]}",mode="{name}"}} 1.0' in metrics
    ]
    return told


def _sentences(mode: dict[str, Any]) -> list[str]:
    return [f"{reason['code']}: {reason['text']}" for reason in mode["because"]]


async def serve_and_compare(service: Service, clients: int) -> dict[str, Any]:
    """As many clients at once; each gets what it gets alone. Returns the status behind it."""
    async with aiohttp.ClientSession(service.url) as http:
        together = await asyncio.gather(*(chat(http, number) for number in range(clients)))
        assert together == [await chat(http, number) for number in range(clients)]
        async with http.get("/v1/status") as response:
            status: dict[str, Any] = await response.json()
    assert status["restarts"]["starts"] == 1, status["restarts"]
    assert status["restarts"]["crashes"] == 0, status["restarts"]
    return status


class Report:
    """A service that is asked for what it cannot run."""

    def __init__(self, service: Service) -> None:
        self.service = service
        service.wait_ready()

    def end(self) -> None:
        assert self.service.stop() == 0, "".join(self.service.lines)


@pytest.fixture(scope="module")
def report_a(
    engine_path: Path, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    run_dir = tmp_path_factory.mktemp("a") / "run"
    report = Report(Service(engine_path, smollm2_path, run_dir, "--batch", "4", *NO_BATCH))
    yield report.service
    report.end()


async def test_a_serves_four_clients_without_a_restart(report_a: Service) -> None:
    status = await serve_and_compare(report_a, 4)
    batch = row(status["modes"], "batch")
    assert (batch["requested"], batch["runs"]) == ("4", "1")
    assert status["state"] == "degraded"


async def test_a_lists_every_missing_kernel_in_every_place(report_a: Service) -> None:
    async with aiohttp.ClientSession(report_a.url) as http:
        told = await places(report_a, http, "batch")
    assert set(map(tuple, told.values())) == {tuple(told["/v1/status"])}, told
    text = "\n".join(told["/v1/status"])
    for op in ("kv_append", "attention", "matmul", "rope", "rms_norm", "swiglu", "add", "embed"):
        assert op in text, f"{op} is not among the missing:\n{text}"
    assert "blk.0." in text


# Runs a command and tells what its processes took. It is a small process of its own, since a child
# begins with the memory of whoever forked it.
MEASURE = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=False)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds = used.ru_utime + used.ru_stime
print(json.dumps([done.returncode, done.stderr, seconds, used.ru_maxrss * 1024]))
"""


def test_a_strict_refuses_before_anything_is_allocated(
    engine_path: Path, smollm2_path: Path, tmp_path: Path
) -> None:
    command = ["-m", "strata", "serve", "--model", str(smollm2_path), "--engine", str(engine_path)]
    command += ["--port", "0", "--run-dir", str(tmp_path / "run"), "--batch", "4", "--strict"]
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, sys.executable, *command, *NO_BATCH],
        capture_output=True,
        check=True,
        timeout=60,
    )
    returncode, text, processor_s, peak_bytes = json.loads(measured.stdout)
    assert returncode == 78, text
    for word in ("batch", "attention", "matmul"):
        assert word in text
    # Processor time, which a busy machine does not stretch: 2 s is what a person waits at most.
    assert processor_s < 2.0
    # An engine that loads has the file's pages and their packed copy in memory: twice the file.
    assert peak_bytes < 1.5 * smollm2_path.stat().st_size


@pytest.fixture(scope="module")
def report_b(
    engine_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, Path]]:
    folder = tmp_path_factory.mktemp("b")
    shape = Shape(width=256, ff=256, heads=4, kv_heads=2, head_dim=64, draft_layers=1)
    model = write_model(folder / "tiny.gguf", shape, kind="q4_0", draft_kinds=DRAFT_KINDS)
    report = Report(Service(engine_path, model, folder / "run", *DRAFTS, *NO_DRAFT_KINDS))
    yield report.service, model
    report.end()


async def test_b_batches_as_usual(report_b: tuple[Service, Path]) -> None:
    service, _ = report_b
    status = await serve_and_compare(service, 8)
    assert row(status["modes"], "batch")["runs"] == "4"
    assert row(status["modes"], "batch_mtp")["runs"] == "off"


async def test_b_names_tensor_and_type_in_every_place(report_b: tuple[Service, Path]) -> None:
    service, _ = report_b
    async with aiohttp.ClientSession(service.url) as http:
        told = await places(service, http, "batch_mtp")
    assert set(map(tuple, told.values())) == {tuple(told["/v1/status"])}, told
    text = "\n".join(told["/v1/status"])
    for tensor, kind in (("nextn.eh_proj", "iq4_nl"), ("ffn_down", "q2_0")):
        line = next(line for line in text.splitlines() if tensor in line and kind in line)
        assert line.startswith("kernel.missing: ")


def test_b_plan_says_the_same(engine_path: Path, report_b: tuple[Service, Path]) -> None:
    _, model = report_b
    flags = [*DRAFTS, *NO_DRAFT_KINDS, "--json"]
    command = ["-m", "strata", "plan", str(model), "--engine", str(engine_path), *flags]
    done = subprocess.run([sys.executable, *command], capture_output=True, check=True, timeout=60)
    because = row(json.loads(done.stdout)["modes"], "batch_mtp")["because"]
    assert any("iq4_nl" in reason["text"] for reason in because)


def test_b_strict_refuses(engine_path: Path, report_b: tuple[Service, Path]) -> None:
    _, model = report_b
    flags = [*DRAFTS, *NO_DRAFT_KINDS, "--strict", "--port", "0"]
    command = ["-m", "strata", "serve", "--model", str(model), "--engine", str(engine_path)]
    command += ["--run-dir", str(model.parent / "strict"), *flags]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 78, done.stderr
    for kind in ("iq4_nl", "q2_0"):
        assert kind in done.stderr


async def test_b_runs_with_the_kernels_of_its_types(engine_path: Path, tmp_path: Path) -> None:
    """The same types where a drafter can be right, and nothing hidden: a batch with drafts."""
    shape = Shape(width=256, ff=256, heads=4, kv_heads=2, head_dim=64, draft_layers=1)
    kinds = {"attn_q.weight": "iq3_s", "ffn_gate": "iq3_s", "ffn_down": "q2_0", "attn_v": "iq4_nl"}
    model = write_model(
        tmp_path / "tiny.gguf", shape, kind="q8_0", kinds=kinds, draft_kinds=kinds, predictable=True
    )
    service = Service(engine_path, model, tmp_path / "run", *DRAFTS, "--strict")
    report = Report(service)
    status = await serve_and_compare(service, 4)
    assert row(status["modes"], "batch")["runs"] == "4"
    assert row(status["modes"], "batch_mtp")["runs"] == "on"
    report.end()
