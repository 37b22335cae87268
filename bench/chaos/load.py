"""Figures under load: how soon a full service says no at 2000 requests a second, and what the
supervisor itself costs while it passes 64 streams on.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
from strata.config import Config
from strata.errors import StrataError
from strata.model_source import find_model

from bench.chaos.chaos_folder import MODEL, REPOSITORY
from bench.chaos.figure import Bench, Figure, milliseconds, percentile
from bench.chaos.served import PYTHONPATH, Served, served
from tests.fakes.chaos_script import EpochScript

RATE = 2000.0
PROCESSES = 2
CONNECTIONS = 32  # of each process
REJECTED_S = 0.010
STREAMS = 64
CPU_US = 30.0
RSS_MIB = 80.0
JOURNAL_MIB = 0.0  # 64 streams of some thousand tokens are far below one


@dataclass
class _Offered:
    """What several clients saw together."""

    latencies: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    answered_per_s: float = 0.0
    late_s: list[float] = field(default_factory=list)  # of the clients' own turns
    cpu_s: float = 0.0  # of the clients

    def facts(self, service_cpu_s: float) -> dict[str, object]:
        count = max(len(self.latencies), 1)
        return {
            **milliseconds(self.latencies),
            "statuses": self.statuses,
            "answered_per_s": round(self.answered_per_s),
            "service_us_per_answer": round(service_cpu_s / count * 1e6, 1),
            "client_us_per_request": round(self.cpu_s / count * 1e6, 1),
            "client_late_ms_p99": round(percentile(self.late_s, 99) * 1e3, 2),
        }


async def rejection(bench: Bench) -> Figure:
    """A service whose engine is busy and whose line has no place, at several rates. The clients
    keep to one core where there are two."""
    facts: dict[str, object] = {}
    offered = _Offered()
    epoch = EpochScript(batch=1, step_ms=50, max_context=200_000)
    flags = ("--batch", "1", "--queue-requests", "0", "--log-level", "error")
    async with (
        served(bench.folder(epoch), *flags) as service,
        aiohttp.ClientSession() as session,
        asyncio.TaskGroup() as tasks,
    ):
        busy = [tasks.create_task(_occupy(session, service)) for _ in range(3)]
        await _until_full(session, service)
        core = _last_core()
        supervisor = psutil.Process(service.pid)
        for rate in (RATE / 8, RATE / 2, RATE):
            before_s = sum(supervisor.cpu_times()[:2])
            offered = await _offer(service, rate, bench.scale.load_s, core)
            facts[f"{rate:g}/s"] = offered.facts(sum(supervisor.cpu_times()[:2]) - before_s)
        for task in busy:
            task.cancel()
    p99 = percentile(offered.latencies, 99)
    answered, rejected = sum(offered.statuses.values()), offered.statuses.get("503", 0)
    wanted = int(RATE * bench.scale.load_s / PROCESSES) * PROCESSES
    return Figure(
        "rejection latency p99 at 2000 requests/s offered", "10 ms",
        f"{p99 * 1e3:.1f} ms, {rejected} of {wanted} rejected",
        p99 <= REJECTED_S and rejected == answered == wanted, facts,
    )  # fmt: skip


async def _occupy(session: aiohttp.ClientSession, service: Served) -> None:
    body = {"model": "default", "prompt": [5], "max_tokens": 100_000, "stream": True,
            "ignore_eos": True}  # fmt: skip
    async with session.post(service.url + "/v1/completions", json=body) as response:
        async for _ in response.content:
            pass


async def _until_full(session: aiohttp.ClientSession, service: Served) -> None:
    body = {"model": "default", "prompt": [5], "max_tokens": 1}
    async with asyncio.timeout(30):
        while True:
            async with session.get(service.url + "/v1/status") as response:
                load = (await response.json())["load"]
            if load["running"] >= 3:
                break
            await asyncio.sleep(0.02)
        async with session.post(service.url + "/v1/completions", json=body) as response:
            if response.status != 503:
                raise RuntimeError(f"the service is not full: {response.status}")


def _last_core() -> int | None:
    """Where all clients run, so that the service has the others to itself. None where there is one
    core, or the system cannot tell."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return cores[-1] if len(cores) > 1 else None


async def _offer(service: Served, rate: float, seconds: float, core: int | None) -> _Offered:
    """Several clients, each a process, together at `rate`."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.chaos.offer", service.url, str(rate / PROCESSES),
            str(seconds), str(CONNECTIONS), *(() if core is None else (str(core),)),
            stdout=asyncio.subprocess.PIPE, cwd=REPOSITORY, env={"PYTHONPATH": PYTHONPATH},
        )
        for _ in range(PROCESSES)
    ]  # fmt: skip
    offered = _Offered()
    for process in processes:
        out, _ = await process.communicate()
        found = json.loads(out)
        offered.latencies += found["latencies_s"]
        offered.late_s += found["late_s"]
        offered.cpu_s += found["cpu_s"]
        offered.answered_per_s += len(found["latencies_s"]) / found["seconds"]
        for status, count in found["statuses"].items():
            offered.statuses[status] = offered.statuses.get(status, 0) + count
    return offered


async def supervisor_cost(bench: Bench) -> Figure:
    """CPU time of the supervisor per token and its resident memory, with 64 streams at once. Their
    readers are a process of their own, as far as two cores allow. The vocabulary is that of SmolLM2
    where it is installed."""
    model = _real_model()
    epoch = EpochScript(batch=STREAMS, step_ms=20, max_context=200_000)
    flags = ("--batch", str(STREAMS), "--log-level", "warning")
    async with (
        served(bench.folder(epoch), *flags, model=model) as service,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        supervisor = psutil.Process(service.pid)
        idle_mib = supervisor.memory_info().rss / 2**20
        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(_occupy(session, service)) for _ in range(STREAMS)]
            await _tokens_at_least(session, service, 20 * STREAMS)
            begin, begin_tokens = supervisor.cpu_times(), await _tokens(session, service)
            await asyncio.sleep(bench.scale.cost_s)
            end, end_tokens = supervisor.cpu_times(), await _tokens(session, service)
            rss_mib = supervisor.memory_info().rss / 2**20
            for task in readers:
                task.cancel()
    tokens = end_tokens - begin_tokens
    cpu_us = (end.user + end.system - begin.user - begin.system) / max(tokens, 1) * 1e6
    return Figure(
        "supervisor cost at 64 streams", f"30 us CPU per token, {RSS_MIB:.0f} MiB RSS + journal",
        f"{cpu_us:.1f} us per token, {rss_mib:.0f} MiB",
        cpu_us <= CPU_US and rss_mib <= RSS_MIB + JOURNAL_MIB,
        {
            "cpu_us_per_token": round(cpu_us, 1), "rss_mib": round(rss_mib, 1),
            "rss_idle_mib": round(idle_mib, 1), "model": model.name, "tokens": tokens,
            "tokens_per_s": round(tokens / bench.scale.cost_s),
        },
    )  # fmt: skip


def _real_model() -> Path:
    try:
        return find_model(Config(model="smollm2"))
    except StrataError:
        return MODEL


async def _tokens(session: aiohttp.ClientSession, service: Served) -> int:
    async with session.get(service.url + "/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith("strata_generated_tokens_total "):
                return int(float(line.split()[1]))
    raise RuntimeError("strata_generated_tokens_total is not among the metrics")


async def _tokens_at_least(session: aiohttp.ClientSession, service: Served, count: int) -> None:
    async with asyncio.timeout(60):
        while await _tokens(session, service) < count:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.05)
