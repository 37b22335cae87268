"""Figure of an engine that can never start: starts in the first hour under a virtual clock, for
each way of not starting, and how HTTP answers meanwhile (real clock).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiohttp
from strata.engines.exits import ExitClass
from strata.engines.restart import Ended, Hold, RestartPolicy, StartAfter

from bench.chaos.figure import Bench, Figure, milliseconds, percentile
from bench.chaos.served import served
from tests.fakes.chaos_script import EpochScript, Fault

STARTS_MAX = 8
HTTP_S = 0.010
HOUR_S = 3600.0
# How it ends, and after how long.
WAYS = (
    (ExitClass.BOOT, 0.01),
    (ExitClass.EXIT, 0.2),
    (ExitClass.SIGNAL, 1.0),
    (ExitClass.SIGNAL, 20.0),
    (ExitClass.OOM, 5.0),
    (ExitClass.PROTOCOL, 0.2),
    (ExitClass.HANG, 30.0),
)
MIXES = 1000
PATHS = ("/health/live", "/health/ready", "/v1/status", "/v1/models")


def starts_in_first_hour(way: Callable[[], tuple[ExitClass, float]], jitter: float) -> int:
    """`way`: of the next start."""
    policy = RestartPolicy(lambda: jitter)
    now = 0.0
    starts = 0
    while now < HOUR_S:
        starts += 1
        policy.on_started(now)
        exit_class, life_s = way()
        now += life_s
        match policy.on_exited(Ended(exit_class, exit_class.value), now):
            case StartAfter(delay_s) | Hold(delay_s, _):
                now += delay_s
            case _:
                break
    return starts


async def never_starts(bench: Bench) -> Figure:
    starts = {
        f"{way[0].value}, {way[1]:g} s": starts_in_first_hour(lambda way=way: way, 0.5)  # type: ignore[misc]
        for way in WAYS
    }
    mixed = (
        starts_in_first_hour(lambda: bench.random.choice(WAYS), bench.random.uniform(0.5, 1.0))
        for _ in range(MIXES)
    )
    starts[f"the most of {MIXES} random mixes"] = max(mixed)
    worst = max(starts.values())
    times = await _http_times(bench)
    p99 = percentile(times, 99)
    return Figure(
        "engine that can never start",
        "at most 8 starts in the first hour, HTTP under 10 ms",
        f"{worst} starts; HTTP p99 {p99 * 1e3:.1f} ms",
        worst <= STARTS_MAX and p99 <= HTTP_S,
        {"starts": starts, "http": milliseconds(times)},
    )


async def _http_times(bench: Bench) -> list[float]:
    """Answers of a service whose engine ends at each start, by the policy as it is."""
    epoch = EpochScript(faults=[Fault(do="exit", at="handshake", value=70)])
    times: list[float] = []
    async with (
        served(bench.folder(epoch), is_unlimited=False, waits=False) as service,
        aiohttp.ClientSession() as session,
    ):
        await service.listening(session)
        end_s = time.monotonic() + bench.scale.never_s
        while time.monotonic() < end_s:
            for path in PATHS:
                begin_s = time.perf_counter()
                async with session.get(service.url + path) as response:
                    await response.read()
                times.append(time.perf_counter() - begin_s)
            await asyncio.sleep(0.01)
    return times
