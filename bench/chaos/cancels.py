"""Figure of cancelling: from the cancel until the engine has said DONE and its pages are free.

The step that the cancel falls into is measured, too, by the stream that runs beside it: on a shared
machine, steps take as long as others let them. A stall of the supervisor itself would count as part
of that step, so the whole times are among the facts.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench.chaos.chaos_folder import MODEL
from bench.chaos.figure import Bench, Figure, milliseconds, percentile
from bench.chaos.rig import running
from tests.fakes.chaos_script import EpochScript

STEP_MS = 20.0
BEYOND_STEP_S = 0.020
REAL_TOKENS = 4000


async def cancel_to_freed(bench: Bench) -> Figure:
    fake = await _measure(bench, None, STEP_MS)
    facts: dict[str, object] = {"fake engine": fake.facts()}
    p99 = percentile(fake.beyond_s, 99)
    text = f"1 step + {max(p99, 0) * 1e3:.1f} ms (p99), {fake.pages} pages left"
    is_met = p99 <= BEYOND_STEP_S and fake.pages == 0
    if bench.engine is not None:
        real = await _measure(bench, bench.engine, 0.0)
        facts["real engine"] = real.facts()
        p99 = percentile(real.beyond_s, 99)
        text += f"; real engine 1 step + {max(p99, 0) * 1e3:.1f} ms"
        is_met = is_met and p99 <= BEYOND_STEP_S
    return Figure("cancel to freed pages", "1 step + 20 ms", text, is_met, facts)


@dataclass
class _Cancels:
    """Seconds of each cancel."""

    taken_s: list[float] = field(default_factory=list)
    beyond_s: list[float] = field(default_factory=list)  # the step that it fell into
    pages: int | None = None  # in use once everything has ended, as STATS says

    def facts(self) -> dict[str, object]:
        return {
            "in all": milliseconds(self.taken_s),
            "beyond the step": milliseconds(self.beyond_s),
            "pages_left": self.pages,
        }


def _step_s(token_s: Sequence[float], begin_s: float, end_s: float) -> float:
    """The longest gap between tokens that are next to `begin_s`..`end_s`."""
    first = max(bisect_left(token_s, begin_s) - 1, 0)
    around = token_s[first : bisect_right(token_s, end_s) + 1]
    return max((after - before for before, after in pairwise(around)), default=0.0)


async def _measure(bench: Bench, engine: Path | None, step_ms: float) -> _Cancels:
    found = _Cancels()
    loop = asyncio.get_running_loop()
    folder = bench.folder(EpochScript(step_ms=step_ms, max_context=100_000))
    async with running(folder, engine=engine, model=MODEL, batch=8) as rig:
        await rig.ready()
        beside = await rig.submit([9, 9], max_tokens=REAL_TOKENS)
        for number in range(bench.scale.cancels):
            call = await rig.submit([number % 250, 3], max_tokens=REAL_TOKENS)
            wanted = bench.random.randint(1, 5)
            await rig.observer.until(lambda call=call, n=wanted: len(call.ids) >= n)  # type: ignore[misc]
            begin_s = loop.time()
            call.cancel()
            await call.ended()
            end_s = loop.time()
            await rig.observer.until(
                lambda beside=beside, end_s=end_s: (  # type: ignore[misc]
                    bool(beside.terminals) or beside.token_s[-1:] > [end_s]
                )
            )
            found.taken_s.append(end_s - begin_s)
            found.beyond_s.append(end_s - begin_s - _step_s(beside.token_s, begin_s, end_s))
            if beside.terminals:
                beside = await rig.submit([9, 9], max_tokens=REAL_TOKENS)
        beside.cancel()
        await rig.all_ended()
        stats = rig.service.stats
        found.pages = None if stats is None else stats.kv_pages_used
    bench.count(rig)
    return found
