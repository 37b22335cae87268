"""Figures of single failures: how soon an exit or a hang is noticed, what a client waits beyond
reload and prefill, and what one poison request among eight costs.
"""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import islice

from strata.engines.exits import ExitClass, Intent
from strata.engines.watch import Patience
from strata.serving.request import Failed, Finished, RejectedError

from bench.chaos.figure import Bench, Figure, milliseconds, percentile
from bench.chaos.rig import EAGER, Call, Rig, running, unlimited_restarts
from tests.fakes.chaos_script import EpochScript, Fault, Place, continuation, fingerprint

EXIT_NOTICED_S = 0.050
HANG_NOTICED_S = 10.0
HANG_LOOKS_S = 0.5  # no hang can be told before its limit has passed and somebody looks
HANG_WAIT_S = 300.0  # a supervisor that was late itself starts to count anew
GAP_S = 1.0
STOPPED_S = 12.0  # longer than a hang may go unnoticed


def is_right(call: Call) -> bool:
    """Whether a whole, right stream was delivered."""
    expected = list(islice(continuation(call.prompt, call.params), call.params.max_tokens))
    return isinstance(call.end, Finished) and call.ids == expected


async def exit_noticed(bench: Bench) -> Figure:
    """From kill -9 of an engine with streams in it until its exit is known and judged."""
    times: list[float] = []
    loop = asyncio.get_running_loop()
    with unlimited_restarts():
        async with running(bench.folder(EpochScript(step_ms=2))) as rig:
            for number in range(1, bench.scale.exits + 1):
                await rig.ready(starts=number)
                calls = [await rig.submit([n, number % 250], max_tokens=4000) for n in range(4)]
                await rig.observer.until(lambda calls=calls: all(c.ids for c in calls))  # type: ignore[misc]
                killed_s = loop.time()
                os.kill(rig.pid, signal.SIGKILL)
                await rig.exited(number)
                times.append(rig.observer.exit_s[-1] - killed_s)
                for call in calls:
                    call.cancel()
            await rig.all_ended()
        bench.count(rig)
    p99 = percentile(times, 99)
    return Figure(
        "exit noticed, p99", "50 ms", f"{p99 * 1e3:.1f} ms of {len(times)}",
        p99 <= EXIT_NOTICED_S, milliseconds(times),
    )  # fmt: skip


async def hang_noticed(bench: Bench) -> Figure:
    """From the last token until the hang is judged, for a frozen compute thread and a frozen
    process; and engines ended for nothing in a calm time with long prompts and SIGSTOP."""
    patience = EAGER if bench.scale.hangs_eagerly else Patience()
    limit_s = HANG_NOTICED_S if not bench.scale.hangs_eagerly else patience.step_s
    times: dict[str, float] = {}
    ended: dict[str, float] = {}  # the time that it was given to tell where it hangs
    for kind in ("freeze_compute", "freeze"):
        epoch = EpochScript(faults=[Fault(do=kind, at="decode", after=5)])
        with unlimited_restarts():
            async with running(bench.folder(epoch, EpochScript()), patience=patience) as rig:
                call = await rig.submit([1, 2], max_tokens=20)
                await rig.observer.until(lambda: _is_judged(rig), HANG_WAIT_S)
                judged_s = asyncio.get_running_loop().time()
                exited = await rig.exited()
                if exited.exit_class is not ExitClass.HANG:
                    raise RuntimeError(f"not a hang: {exited.text}")
                await rig.all_ended()
                last_s = max(s for s in call.token_s if s < judged_s)
                times[kind] = judged_s - last_s
                ended[kind] = rig.observer.exit_s[0] - judged_s
            bench.count(rig)
    false_kills, spells = await _calm(bench, patience)
    worst = max(times.values())
    slack_s = 1.0 if bench.scale.hangs_eagerly else HANG_LOOKS_S
    facts: dict[str, object] = {f"{k}_s": round(v, 2) for k, v in times.items()}
    facts |= {f"{k}_ended_after_s": round(v, 2) for k, v in ended.items()}
    facts |= {"false_kills": false_kills, "calm_s": bench.scale.calm_s, "sigstops": spells}
    return Figure(
        "hang noticed" + (f" (limit set to {limit_s:g} s)" if bench.scale.hangs_eagerly else ""),
        f"{limit_s:g} s and {slack_s:g} s until it is looked at, 0 false kills",
        f"{worst:.1f} s, {false_kills} false kills in {bench.scale.calm_s / 60:.0f} min",
        worst <= limit_s + slack_s and false_kills == 0,
        facts,
    )


def _is_judged(rig: Rig) -> bool:
    """Whether the first engine is being ended as one that hangs."""
    epoch = rig.owner.view.epoch
    is_ending = epoch is not None and epoch.process is not None
    return bool(rig.observer.exits) or (
        is_ending and epoch.process.intent is Intent.HANG  # type: ignore[union-attr]
    )


async def _calm(bench: Bench, patience: Patience) -> tuple[int, int]:
    """Prompts of 8192 tokens in steps of up to 2 s, beside short ones, and a SIGSTOP now and
    then. Returns engines that ended, and the SIGSTOPs."""
    if not bench.scale.calm_s:
        return 0, 0
    epoch = EpochScript(max_context=16384, prefill=256, step_ms=150)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + bench.scale.calm_s
    spells = 0
    async with running(bench.folder(epoch), patience=patience) as rig:
        await rig.ready()
        while loop.time() < end_s:
            long = await rig.submit([n % 250 for n in range(8192)], max_tokens=4)
            short = [await rig.submit([n, 1], max_tokens=60) for n in range(3)]
            await rig.observer.until(lambda: any(c.ids for c in short), 120)  # noqa: B023
            if spells * 60 < bench.scale.calm_s - (end_s - loop.time()):
                spells += 1
                os.kill(rig.pid, signal.SIGSTOP)
                await asyncio.sleep(STOPPED_S if spells % 3 else 3 * STOPPED_S)
                os.kill(rig.pid, signal.SIGCONT)
            await asyncio.gather(*(call.ended(300) for call in (long, *short)))
        ended = len(rig.observer.exits)
    bench.count(rig)
    return ended, spells


async def gap(bench: Bench) -> Figure:
    """What a client waits between two tokens around a kill, without the engine's own reload (start
    to READY) and its prefill of what it had."""
    epoch = EpochScript(step_ms=10, load_ms=100, prefill=64)
    times: list[float] = []
    with unlimited_restarts():
        async with running(bench.folder(epoch)) as rig:
            for number in range(1, bench.scale.gaps + 1):
                await rig.ready(starts=number)
                prompt = [(n * 7 + number) % 250 for n in range(100)]
                call = await rig.submit(prompt, max_tokens=90)
                wanted = bench.random.randint(3, 60)
                await rig.observer.until(lambda call=call, n=wanted: len(call.ids) >= n)  # type: ignore[misc]
                os.kill(rig.pid, signal.SIGKILL)
                had = len(call.ids)
                await call.ended()
                if not isinstance(call.end, Finished):
                    continue  # not resumed; the streams' figure tells
                started_s, ready_s = rig.observer.start_s[number], rig.observer.ready_s[number]
                at = next(i for i, s in enumerate(call.token_s) if s > ready_s)
                steps = -(-(len(prompt) + had) // epoch.prefill)
                own_s = ready_s - started_s + steps * epoch.step_ms / 1e3
                times.append(call.token_s[at] - call.token_s[at - 1] - own_s)
        bench.count(rig)
    worst = max(times, default=float("nan"))
    return Figure(
        "gap beyond reload and re-prefill", "1 s",
        f"{worst * 1e3:.0f} ms at most, of {len(times)}",
        len(times) == bench.scale.gaps and worst <= GAP_S, milliseconds(times),
    )  # fmt: skip


async def poison(bench: Bench) -> Figure:
    """One request that ends every engine that computes it, among eight that run together."""
    completed = 0
    most_crashes = 0
    refused = 0
    rounds = 0
    places: tuple[Place, ...] = ("prefill", "decode")
    for _ in range(bench.scale.poisons):
        for place in places:
            rounds += 1
            bad = [13, 13, bench.random.randrange(250)]
            fault = Fault(
                do="signal", at=place, after=bench.random.randrange(4) if place == "decode" else 0,
                value=signal.SIGSEGV, prompt=fingerprint(bad),
            )  # fmt: skip
            with unlimited_restarts():
                async with running(bench.folder(EpochScript(faults=[fault], step_ms=5))) as rig:
                    await rig.ready()
                    good = [await rig.submit([n, 50], max_tokens=60) for n in range(4)]
                    await rig.observer.until(lambda good=good: all(c.ids for c in good))  # type: ignore[misc]
                    guilty = await rig.submit(bad, max_tokens=60)
                    good += [await rig.submit([n, 51], max_tokens=60) for n in range(3)]
                    await rig.all_ended()
                    completed += sum(is_right(call) for call in good)
                    most_crashes = max(most_crashes, len(rig.observer.exits))
                    refused += isinstance(guilty.end, Failed) and await _is_refused(rig, bad)
                bench.count(rig)
    return Figure(
        "one poison request among 8", "7 complete, at most 2 crashes, third try refused",
        f"{completed / rounds:g} complete, at most {most_crashes} crashes,"
        f" {refused} of {rounds} refused",
        completed == 7 * rounds and most_crashes <= 2 and refused == rounds,
        {"rounds": rounds, "completed": completed, "crashes_max": most_crashes, "refused": refused},
    )  # fmt: skip


async def _is_refused(rig: Rig, prompt: list[int]) -> bool:
    try:
        call = await rig.submit(prompt, max_tokens=60)
    except RejectedError as error:
        return error.code == "request_quarantined"
    await call.ended()
    return False
