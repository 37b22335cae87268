#!/usr/bin/env python3
"""The main job, shown: boot, modes, four chats at once, the same with a killed engine, status.

Runs the installed `strata-supervisor` on a free loopback port with a run directory of its own and
ends it afterwards. Exit status 0 means that everything shown here really happened.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import aiohttp
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
RUN_DIR = ROOT / ".demo"
SUPERVISOR = Path(sys.executable).with_name("strata-supervisor")
QUESTIONS = [
    "Why is the sky blue?",
    "Write a two-line poem about the sea.",
    "Give me one tip for better sleep.",
    "Explain in one sentence what a compiler does.",
]
READY = re.compile(r"ready: (http://\S+)/v1")
PIECES_PER_LINE = 12
DEMO_TIMEOUT_S = 120


@dataclass
class Chat:
    question: str
    text: str = ""
    tokens: int = 0
    first_s: float = 0.0  # from sending to the first text
    pause_s: float = 0.0  # the longest time between two pieces of text
    ended: str = ""  # how the stream ended: a finish reason or an error code
    first_token: asyncio.Event = field(default_factory=asyncio.Event)


def say(title: str) -> None:
    print(f"\n=== {title}", flush=True)


class Screen:
    """Four streams at once: a live table on a terminal, else a line per dozen pieces of text."""

    def __init__(self, chats: list[Chat]) -> None:
        self._chats = chats
        self._console = Console(highlight=False)
        self._live = Live(self._table(), console=self._console, refresh_per_second=20)
        self._shown = [0] * len(chats)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.update(self._table())
            self._live.stop()
            return
        for chat in self._chats:
            print(f"  > {chat.question}\n    {short(chat.text)}  [{chat.ended}]", flush=True)

    def update(self, chat: Chat) -> None:
        if self._console.is_terminal:
            self._live.update(self._table())
        elif chat.tokens % PIECES_PER_LINE == 0:
            index = self._chats.index(chat)
            piece = " ".join(chat.text[self._shown[index] :].split())
            self._shown[index] = len(chat.text)
            print(f"  [{index + 1}] ... {piece}", flush=True)

    def _table(self) -> Table:
        table = Table("question", "answer, as it streams", "ended", box=None, pad_edge=False)
        for chat in self._chats:
            table.add_row(Text(chat.question), Text(short(chat.text)), Text(chat.ended))
        return table


def short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 150 else line[:150] + "..."


async def stream(session: aiohttp.ClientSession, base: str, chat: Chat, screen: Screen) -> None:
    """Reads one streamed chat to its end and records how it ended."""
    sent = last = time.perf_counter()
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": chat.question}],
        "max_tokens": 64,
        "temperature": 0,
        "stream": True,
    }
    try:
        async with session.post(f"{base}/v1/chat/completions", json=body) as response:
            async for raw in response.content:
                line = raw.decode().strip()
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    chat.ended = f"error {event['error']['code']}"
                    continue
                for choice in event["choices"]:
                    chat.ended = choice.get("finish_reason") or chat.ended
                    text = choice["delta"].get("content") or ""
                    if text:
                        chat.text += text
                        now = time.perf_counter()
                        if chat.tokens:
                            chat.pause_s = max(chat.pause_s, now - last)
                        else:
                            chat.first_s = now - sent
                        chat.tokens += 1
                        last = now
                        chat.first_token.set()
                        screen.update(chat)
    except aiohttp.ClientPayloadError:
        chat.ended = chat.ended or "connection closed"
    finally:
        chat.first_token.set()


async def chats(session: aiohttp.ClientSession, base: str) -> list[Chat]:
    """Four chats at once, shown as they stream."""
    running = [Chat(q) for q in QUESTIONS]
    started = time.perf_counter()
    with Screen(running) as screen:
        await asyncio.gather(*(stream(session, base, c, screen) for c in running))
    seconds = time.perf_counter() - started
    total = sum(c.tokens for c in running)
    first_s = max(c.first_s for c in running)
    print(f"  {total} pieces of text in {seconds:.2f} s, the last first one after {first_s:.2f} s")
    return running


async def status(session: aiohttp.ClientSession, base: str) -> dict[str, object]:
    async with session.get(f"{base}/v1/status") as response:
        found: dict[str, object] = await response.json()
        return found


async def boot() -> tuple[asyncio.subprocess.Process, str, asyncio.Task[None]]:
    """Starts the service, shows what it prints, returns when it says that it is ready."""
    shutil.rmtree(RUN_DIR, ignore_errors=True)
    process = await asyncio.create_subprocess_exec(
        str(SUPERVISOR), "serve", "--model", "smollm2", "--port", "0",
        "--run-dir", str(RUN_DIR), "--log-level", "warning",
        stdout=asyncio.subprocess.PIPE, stderr=None, limit=1 << 20,
    )  # fmt: skip
    assert process.stdout is not None
    base = ""
    while not base:
        line = (await process.stdout.readline()).decode()
        if not line:
            sys.exit(f"demo: the service ended with status {await process.wait()}")
        print("  " + line, end="", flush=True)
        found = READY.search(line)
        base = found.group(1) if found else ""
    stdout = process.stdout

    async def echo() -> None:
        async for raw in stdout:
            print("  [service] " + raw.decode(), end="", flush=True)

    return process, base, asyncio.create_task(echo())


async def interrupted(session: aiohttp.ClientSession, base: str, engine_pid: int) -> list[Chat]:
    """Four chats whose engine is killed once each has its first token."""
    running = [Chat(q) for q in QUESTIONS]
    with Screen(running) as screen:
        tasks = [asyncio.create_task(stream(session, base, c, screen)) for c in running]
        await asyncio.gather(*(c.first_token.wait() for c in running))
        begun = sum(not c.ended for c in running)
        assert begun, "streams end before the engine does"
        os.kill(engine_pid, signal.SIGKILL)
        await asyncio.gather(*tasks)
    pause_s = max(c.pause_s for c in running)
    print(f"  that was kill -9 {engine_pid} under {begun} streams: a pause of {pause_s:.2f} s")
    return running


async def demo() -> list[str]:
    """Returns what failed."""
    say("boot: the engine proves what it can run, then says ready")
    process, base, echo = await boot()
    failures: list[str] = []
    try:
        async with aiohttp.ClientSession() as session:
            say("four chats at once")
            before = await chats(session, base)
            failures += [c.question for c in before if c.ended not in {"stop", "length"}]

            say("the engine is killed in the middle of four more")
            facts = await status(session, base)
            engine = facts["engine"]
            assert isinstance(engine, dict)
            cut = await interrupted(session, base, int(engine["pid"]))
            same = [(c.text, c.ended) for c in cut] == [(c.text, c.ended) for c in before]
            print(f"  same answers as without it: {'yes' if same else 'NO'}")
            if not same:
                failures.append("answers differ where the engine was killed")
            now = (await status(session, base))["engine"]
            assert isinstance(now, dict)
            if now["pid"] == engine["pid"]:
                failures.append("the engine was not killed")

            say("strata-supervisor status")
            command = await asyncio.create_subprocess_exec(
                str(SUPERVISOR), "status", "--run-dir", str(RUN_DIR)
            )
            if await command.wait() != 0:
                failures.append("status")
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        code = await process.wait()
        await echo
        shutil.rmtree(RUN_DIR, ignore_errors=True)
    if code != 0:
        failures.append(f"the service ended with status {code}")
    return failures


def main() -> None:
    if failures := asyncio.run(asyncio.wait_for(demo(), DEMO_TIMEOUT_S)):
        sys.exit("demo failed: " + "; ".join(failures))
    say("done: `make serve` keeps it running")


if __name__ == "__main__":
    main()
