"""Figure of orphans: how long an engine outlives its killed supervisor, whatever it is doing, and
whether any SIGKILL, of supervisor or engine, ever leaves two engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
from strata_protocol import beacon

from bench.chaos.chaos_folder import is_alive, wait_gone
from bench.chaos.figure import Bench, Figure, milliseconds
from bench.chaos.served import Served, launch, served
from tests.fakes.chaos_script import EpochScript, Fault

GONE_S = 1.0
WAIT_S = 30.0
LOOP = "matmul*:phase=decode,step>=4@loop"  # a kernel that never ends


async def orphan_gone(bench: Bench) -> Figure:
    """From SIGKILL of the supervisor to the end of its engine."""
    kinds: dict[str, Callable[[Bench], asyncio.Future[float]]] = {
        "idle": lambda b: asyncio.ensure_future(_idle(b)),
        "in a step": lambda b: asyncio.ensure_future(_in_a_step(b)),
        "with a full pipe": lambda b: asyncio.ensure_future(_full_pipe(b)),
        "stopped": lambda b: asyncio.ensure_future(_stopped(b)),
        "the real engine, stopped": lambda b: asyncio.ensure_future(_stopped(b, b.engine)),
    }
    if bench.faults is not None:
        kinds["within a kernel of the real engine"] = lambda b: asyncio.ensure_future(_kernel(b))
    times: dict[str, list[float]] = {}
    for kind, measure in kinds.items():
        times[kind] = [await measure(bench) for _ in range(bench.scale.orphans)]
    every = [value for values in times.values() for value in values]
    facts: dict[str, object] = {kind: milliseconds(values) for kind, values in times.items()}
    if bench.faults is None:
        facts["within a kernel of the real engine"] = "not measured: no strata-engine-cpu-faults"
    return Figure(
        "orphan gone after SIGKILL of the supervisor", "1 s",
        f"{max(every) * 1e3:.0f} ms at most, of {len(every)} ({', '.join(times)})",
        max(every) <= GONE_S, facts,
    )  # fmt: skip


async def _killed(service: Served) -> float:
    """Kills the supervisor; seconds until its engine is gone."""
    engine = service.engine()
    if engine is None:
        raise RuntimeError(f"no engine runs: {service.log()}")
    begin_s = time.monotonic()
    service.kill()
    if not await asyncio.to_thread(wait_gone, *engine, WAIT_S):
        raise RuntimeError(f"engine {engine[0]} outlives its supervisor by {WAIT_S:g} s")
    return time.monotonic() - begin_s


async def _idle(bench: Bench) -> float:
    async with served(bench.folder()) as service:
        return await _killed(service)


async def _stopped(bench: Bench, engine: Path | None = None) -> float:
    """The parent-death signal is SIGKILL, which a stopped process gets too."""
    async with served(bench.folder(), "--threads", "1", engine=engine) as service:
        running = service.engine()
        if running is None:
            raise RuntimeError(f"no engine runs: {service.log()}")
        os.kill(running[0], signal.SIGSTOP)
        return await _killed(service)


async def _in_a_step(bench: Bench) -> float:
    """The second step takes a minute."""
    epoch = EpochScript(faults=[Fault(do="slow", at="decode", after=1, value=60_000)])
    async with served(bench.folder(epoch)) as service, streaming(service) as response:
        await response.content.readline()
        await _beacon_says(service, "decode", 3)
        return await _killed(service)


async def _full_pipe(bench: Bench) -> float:
    """The supervisor is stopped, so nobody reads: the engine's writer stands in a full pipe."""
    epoch = EpochScript(max_context=200_000, faults=[Fault(do="fill", at="decode", after=3)])
    async with served(bench.folder(epoch)) as service, streaming(service) as response:
        await response.content.readline()
        os.kill(service.pid, signal.SIGSTOP)
        async with asyncio.timeout(WAIT_S):
            while not service.folder.has_mark("full"):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
        return await _killed(service)


async def _kernel(bench: Bench) -> float:
    async with (
        served(
            bench.folder(), "--threads", "1", engine=bench.faults,
            environment={"STRATA_FAULT": LOOP},
        ) as service,
        streaming(service) as response,
    ):  # fmt: skip
        await response.content.readline()
        await _beacon_says(service, "decode", 4)
        return await _killed(service)


@contextlib.asynccontextmanager
async def streaming(service: Served, max_tokens: int = 2000):  # type: ignore[no-untyped-def]
    """A response whose end nobody waits for."""
    async with aiohttp.ClientSession() as session:
        body = {
            "model": "default", "prompt": [5, 6], "max_tokens": max_tokens, "stream": True,
            "ignore_eos": True,
        }  # fmt: skip
        async with session.post(service.url + "/v1/completions", json=body) as response:
            yield response


async def _beacon_says(service: Served, phase: str, step: int) -> None:
    """Waits until the newest engine is in this step or a later one."""
    async with asyncio.timeout(WAIT_S):
        while True:
            files = sorted(service.folder.run_dir.glob("beacon-*"))
            view = _view(files[-1]) if files else None
            if view is not None and view.phase == phase and view.step >= step:
                return
            await asyncio.sleep(0.005)


def _view(path: Path) -> beacon.BeaconView | None:
    view, _ = beacon.read(path.read_bytes())
    return view


async def _at_some_moment(service: Served, chance: random.Random) -> tuple[int, str] | None:
    """Waits into the boot of the service, or until it has an engine and into that one's boot.
    Returns the engine, where one is known."""
    if chance.random() < 0.7:
        async with asyncio.timeout(WAIT_S):
            while (engine := service.engine()) is None or not is_alive(*engine):
                if service.process.poll() is not None:
                    raise RuntimeError(f"serve ended: {service.log()}")
                await asyncio.sleep(0.005)
    await asyncio.sleep(chance.uniform(0.0, 0.4))
    return service.engine()


async def never_two(bench: Bench) -> Figure:
    """SIGKILL of supervisor or engine at a random moment, and a new supervisor on the same run
    directory at once; each engine looks by a lock whether another one lives."""
    folder = bench.folder(EpochScript(load_ms=50))
    service = launch(folder)
    services = [service]
    try:
        async with aiohttp.ClientSession() as session:
            for _ in range(bench.scale.takeovers):
                engine = await _at_some_moment(service, bench.random)
                if engine is not None and bench.random.random() < 0.5 and is_alive(*engine):
                    os.kill(engine[0], signal.SIGKILL)
                    if bench.random.random() < 0.5:
                        continue
                service.kill()
                service = launch(folder)
                services.append(service)
            await service.ready(session)
        alive = folder.alive()
    finally:
        await service.stop()
        for other in services:
            other.process.wait()
    left = folder.end_all(within_s=2.0)
    twins = folder.twins
    return Figure(
        "two engines at once after SIGKILL of anything", "never",
        f"{twins} in {bench.scale.takeovers} kills, {folder.starts} engine starts",
        twins == 0 and len(alive) == 1 and not left,
        {"twins": twins, "starts": folder.starts, "alive_at_end": len(alive), "left": len(left)},
    )  # fmt: skip
