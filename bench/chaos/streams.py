"""Figure of resumed streams: kill -9 at a random moment, and whether each stream that was cut is
the one that would have been; with the chaos engine, and with the real one on a tiny model.
"""

from __future__ import annotations

import os
import random
import signal
from itertools import islice
from pathlib import Path

from strata.serving.request import Finished

from bench.chaos.figure import Bench, Figure
from bench.chaos.rig import Call, Rig, running, unlimited_restarts
from tests.fakes.chaos_script import EpochScript, continuation

TOGETHER = 8
_ROUNDS_WITHOUT_MAX = 20  # in a row without a stream that was cut


async def identical_fake(bench: Bench) -> Figure:
    wanted = bench.scale.streams_fake
    with unlimited_restarts():
        async with running(bench.folder(EpochScript(step_ms=1)), batch=TOGETHER) as rig:
            same, cut = await _kill_until(rig, wanted, bench.random, _expected_of_chaos, 50)
        bench.count(rig)
    return _figure("streams identical after a kill, fake engine", same, cut, wanted)


async def identical_real(bench: Bench) -> Figure | None:
    """None where there is no real engine."""
    wanted = bench.scale.streams_real
    if bench.engine is None:
        return None
    with unlimited_restarts():
        folder = bench.folder()
        async with running(folder, engine=bench.engine, batch=TOGETHER, threads=1) as rig:
            known: dict[str, list[int]] = {}

            async def expected(call: Call) -> list[int]:
                """What the engine says when nothing disturbs it."""
                key = repr((call.prompt, call.params))
                if key not in known:
                    again = await _submit(rig, call)
                    await again.ended()
                    known[key] = again.ids
                return known[key]

            same, cut = await _kill_until(rig, wanted, bench.random, expected, 300)
        bench.count(rig)
    return _figure("streams identical after a kill, real engine", same, cut, wanted)


async def _expected_of_chaos(call: Call) -> list[int]:
    return list(islice(continuation(call.prompt, call.params), call.params.max_tokens))


async def _submit(rig: Rig, like: Call) -> Call:
    p = like.params
    return await rig.submit(
        like.prompt, p.max_tokens, temperature=p.temperature, seed=p.seed,
        presence_penalty=p.presence_penalty, repetition_penalty=p.repetition_penalty,
    )  # fmt: skip


async def _kill_until(
    rig: Rig, wanted: int, chance: random.Random, expected: object, max_tokens: int
) -> tuple[int, int]:
    """Streams that were cut by a kill, and how many of them were the ones they had to be."""
    same = cut = without = 0
    starts = 1
    while cut < wanted and without < _ROUNDS_WITHOUT_MAX:
        await rig.ready(starts)
        calls = []
        for index in range(TOGETHER):
            prompt = [chance.randrange(250) for _ in range(chance.randint(1, 40))]
            kind: dict[str, float] = {}
            if index % 2:
                kind = {"temperature": 0.9, "seed": chance.randrange(1 << 30)}
            if index % 4 >= 2:
                kind |= {"presence_penalty": 0.4, "repetition_penalty": 1.1}
            calls.append(await rig.submit(prompt, max_tokens, **kind))
        total = chance.randint(1, TOGETHER * max_tokens * 3 // 4)
        await rig.observer.until(
            lambda calls=calls, total=total: sum(len(c.ids) for c in calls) >= total  # type: ignore[misc]
        )
        open_calls = [call for call in calls if not call.terminals and call.ids]
        os.kill(rig.pid, signal.SIGKILL)
        starts += 1
        for call in calls:
            await call.ended()
        await rig.ready(starts)
        # A stream whose last token was on its way was not cut after all; it must be right too.
        for call in open_calls:
            is_same = isinstance(call.end, Finished) and call.ids == await expected(call)  # type: ignore[operator]
            same += is_same
            cut += 1
        without = 0 if open_calls else without + 1
    return same, cut


def _figure(name: str, same: int, cut: int, wanted: int) -> Figure:
    return Figure(
        name, f"{wanted} of {wanted}", f"{same} of {cut}", same == cut and cut >= wanted,
        {"identical": same, "cut": cut},
    )  # fmt: skip


def find_engine_beside(engine: Path) -> Path | None:
    """The build of the real engine whose kernels fail on request, where it was built too."""
    faults = engine.with_name(engine.name + "-faults")
    return faults if faults.is_file() else None
