"""Figure of cancelling: from the cancel until the engine has said DONE and its pages are free."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.chaos.chaos_folder import MODEL
from bench.chaos.figure import Bench, Figure, milliseconds, percentile
from bench.chaos.rig import running
from tests.fakes.chaos_script import EpochScript

STEP_MS = 20.0
BEYOND_STEP_S = 0.020
REAL_TOKENS = 4000


async def cancel_to_freed(bench: Bench) -> Figure:
    fake, pages = await _measure(bench, None, STEP_MS)
    facts: dict[str, object] = {"fake engine": milliseconds(fake), "pages_left": pages}
    p99 = percentile(fake, 99) - STEP_MS / 1e3
    text = f"1 step + {max(p99, 0) * 1e3:.1f} ms (p99), {pages} pages left"
    is_met = p99 <= BEYOND_STEP_S and pages == 0
    if bench.engine is not None:
        real, _ = await _measure(bench, bench.engine, 0.0)
        facts["real engine"] = milliseconds(real)
        real_p99 = percentile(real, 99)
        text += f"; real engine {real_p99 * 1e3:.1f} ms"
        is_met = is_met and real_p99 <= BEYOND_STEP_S  # its steps are far below a millisecond
    return Figure("cancel to freed pages", "1 step + 20 ms", text, is_met, facts)


async def _measure(
    bench: Bench, engine: Path | None, step_ms: float
) -> tuple[list[float], int | None]:
    """Times of cancels, and pages in use once everything has ended (as STATS says)."""
    times: list[float] = []
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
            times.append(loop.time() - begin_s)
            if beside.terminals:
                beside = await rig.submit([9, 9], max_tokens=REAL_TOKENS)
        beside.cancel()
        await rig.all_ended()
        stats = rig.service.stats
        pages = None if stats is None else stats.kv_pages_used
    bench.count(rig)
    return times, pages
