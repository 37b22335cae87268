"""Figure of the kill soak: the engine is killed every few seconds while 16 clients that behave like
the official SDKs talk to the service over HTTP, streaming and not, chat and completions. Two of
them ask for answers so long that more crashes than a request survives fall into them.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from bench.chaos.figure import Bench, Figure
from bench.chaos.sdk_client import Outcome, Verdict, call
from bench.chaos.served import Served, served
from tests.fakes.chaos_script import EpochScript

CLIENTS = 16
CRASHES_BORNE = 2  # that a request survives unseen
STEP_MS = 20.0
LONG_CLIENTS = 2  # one streams, one does not
LONG_KILLS = 4  # that fall into their answers at least, where nothing ends those earlier
MINUTE_S = 60.0  # from here on, the run must have had answers with more crashes than borne


@dataclass
class Tally:
    kills: int = 0
    calls: int = 0
    terminals_wrong: int = 0
    crossed: Counter[int] = field(default_factory=Counter)  # calls by kills during them
    seen: list[str] = field(default_factory=list)  # errors with at most CRASHES_BORNE kills
    typed: int = 0  # with more
    untyped: list[str] = field(default_factory=list)  # with more
    wrong: int = 0  # whole, but another text than the same request got before
    texts: dict[str, str] = field(default_factory=dict)


async def kill_soak(bench: Bench) -> Figure:
    tally = Tally()
    loop = asyncio.get_running_loop()
    folder = bench.folder(
        EpochScript(step_ms=STEP_MS, load_ms=100, vocab=(10, 90), max_context=16384)
    )
    flags = ("--log-level", "warning", "--batch", "8")
    async with served(folder, *flags) as service:
        timeout = aiohttp.ClientTimeout(total=600)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            end_s = loop.time() + bench.scale.soak_s
            chance = bench.random
            long_tokens = int(LONG_KILLS * bench.scale.soak_kill_s[1] / (STEP_MS / 1e3))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_kill(service, bench, tally, end_s))
                for number in range(CLIENTS):
                    own = random.Random(chance.random())
                    sizes = [long_tokens] if number < LONG_CLIENTS else [8, 60, 200]
                    client = _Client(number, own, sizes, end_s)
                    tasks.create_task(_talk(session, service, tally, client))
    bench.count_terminals(tally.calls, tally.calls - tally.terminals_wrong)
    more = sum(count for kills, count in tally.crossed.items() if kills > CRASHES_BORNE)
    return Figure(
        f"client-visible errors in a kill soak of {bench.scale.soak_s / 60:.1f} min",
        "0 for at most 2 crashes, else 100 % typed",
        f"{len(tally.seen)} of {tally.calls - more}; {more - len(tally.untyped)} of {more} typed or"
        f" complete; {tally.wrong} wrong texts; {tally.kills} kills",
        not tally.seen
        and not tally.untyped
        and not tally.wrong
        and tally.kills > 0
        and (more > 0 or bench.scale.soak_s < MINUTE_S),
        {
            "kills": tally.kills,
            "calls": tally.calls,
            "calls_by_kills_during_them": dict(sorted(tally.crossed.items())),
            "typed_after_more_kills": tally.typed,
            "errors": tally.seen[:20],
            "untyped": tally.untyped[:20],
            "wrong_texts": tally.wrong,
        },
    )


async def _kill(service: Served, bench: Bench, tally: Tally, end_s: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        pause_s = bench.random.uniform(*bench.scale.soak_kill_s)
        if loop.time() + pause_s > end_s:
            return
        await asyncio.sleep(pause_s)
        engine = service.engine()
        if engine is not None:
            tally.kills += 1
            os.kill(engine[0], signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _Client:
    number: int
    chance: random.Random
    sizes: Sequence[int]  # tokens of its answers
    end_s: float  # loop time after which it asks no more


async def _talk(
    session: aiohttp.ClientSession, service: Served, tally: Tally, client: _Client
) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() < client.end_s:
        path, body = _request(client)
        before = tally.kills
        outcome = await call(session, service.url + path, body, client.chance)
        _enter(tally, path + repr(sorted(body.items())), outcome, tally.kills - before)


def _request(client: _Client) -> tuple[str, dict[str, object]]:
    chance, number = client.chance, client.number
    body: dict[str, object] = {
        "model": "default",
        "max_tokens": chance.choice(client.sizes),
        "stream": bool(number % 2),
        "ignore_eos": True,
        "temperature": 0 if number % 3 else 0.8,
        "seed": chance.randrange(3),
    }
    words = f"say something of {chance.choice(['rivers', 'boats', 'wheat', 'sheep'])}"
    if number % 4 < 2:
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": words}]}
    return "/v1/completions", {**body, "prompt": words}


def _enter(tally: Tally, key: str, outcome: Outcome, kills: int) -> None:
    tally.calls += 1
    tally.crossed[kills] += 1
    tally.terminals_wrong += outcome.terminals != 1
    if outcome.verdict is Verdict.COMPLETE:
        tally.wrong += tally.texts.setdefault(key, outcome.text) != outcome.text
    elif kills <= CRASHES_BORNE:
        tally.seen.append(f"after {kills} kills, {outcome.retries} retries: {outcome.error}")
    elif outcome.verdict is Verdict.TYPED:
        tally.typed += 1
    else:
        tally.untyped.append(f"after {kills} kills: {outcome.error}")
