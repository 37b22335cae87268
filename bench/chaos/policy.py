"""Figure of an engine that can never start: starts in the first hour under a virtual clock, for
each way of not starting, and how HTTP answers meanwhile (real clock).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
from strata.engines.exits import ExitClass
from strata.engines.restart import Ended, Hold, RestartPolicy, StartAfter

from bench.chaos.figure import Bench, Figure, milliseconds
from bench.chaos.served import served
from tests.fakes.chaos_script import EpochScript, Fault

STARTS_MAX = 8
HTTP_S = 0.010
HOUR_S = 3600.0
PAUSE_S = 0.01  # between rounds of requests
LAG_BUCKET = r'^strata_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$'
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
    http = await _http_times(bench)
    slowest = max(http.times)
    return Figure(
        "engine that can never start",
        "at most 8 starts in the first hour, HTTP under 10 ms throughout",
        f"{worst} starts; HTTP {slowest * 1e3:.1f} ms at most, with a loop up to"
        f" {http.service_late_ms:g} ms late",
        worst <= STARTS_MAX and slowest <= HTTP_S,
        {"starts": starts, "http": http.facts()},
    )


@dataclass
class _Http:
    """Answers, one after another, and how late the event loops at both ends were meanwhile."""

    times: list[float] = field(default_factory=list)
    slowest_path: str = ""
    client_late_s: list[float] = field(default_factory=list)
    service_late_ms: float = 0.0  # no turn was later than this: a bound of its histogram

    def facts(self) -> dict[str, object]:
        return {
            **milliseconds(self.times),
            "slowest_path": self.slowest_path,
            "service_loop_late_ms_at_most": self.service_late_ms,
            "client_loop_late_ms_max": round(max(self.client_late_s) * 1e3, 2),
        }


async def _http_times(bench: Bench) -> _Http:
    """Answers of a service whose engine ends at each start, by the policy as it is."""
    epoch = EpochScript(faults=[Fault(do="exit", at="handshake", value=70)])
    http = _Http()
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
                took_s = time.perf_counter() - begin_s
                if took_s > max(http.times, default=0.0):
                    http.slowest_path = path
                http.times.append(took_s)
            due_s = time.perf_counter() + PAUSE_S
            await asyncio.sleep(PAUSE_S)
            http.client_late_s.append(time.perf_counter() - due_s)
        async with session.get(service.url + "/metrics") as response:
            http.service_late_ms = _latest_ms(await response.text())
    return http


def _latest_ms(metrics: str) -> float:
    """The least bound of the histogram of the loop's lateness that holds all of its turns."""
    found = re.findall(LAG_BUCKET, metrics, re.MULTILINE)
    total = max(float(count) for _, count in found)
    bounds = [float(bound) for bound, count in found if float(count) == total]
    return round(min(bounds) * 1e3, 3)
