#!/usr/bin/env python3
"""The main job, shown: boot, modes, four chats at once, a killed engine, four chats again, status.

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

import aiohttp

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
STEP_TIMEOUT_S = 120


@dataclass
class Chat:
    question: str
    text: str = ""
    tokens: int = 0
    ended: str = ""  # how the stream ended: a finish reason or an error code
    first_token: asyncio.Event = field(default_factory=asyncio.Event)


def say(title: str) -> None:
    print(f"\n=== {title}", flush=True)


async def stream(session: aiohttp.ClientSession, base: str, chat: Chat) -> None:
    """Reads one streamed chat to its end and records how it ended."""
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
                        chat.tokens += 1
                        chat.first_token.set()
    except aiohttp.ClientPayloadError:
        chat.ended = chat.ended or "connection closed"
    finally:
        chat.first_token.set()


async def chats(session: aiohttp.ClientSession, base: str) -> list[Chat]:
    """Four chats at once, printed when all have ended."""
    running = [Chat(q) for q in QUESTIONS]
    started = time.perf_counter()
    await asyncio.gather(*(stream(session, base, c) for c in running))
    seconds = time.perf_counter() - started
    show(running)
    total = sum(c.tokens for c in running)
    print(f"  4 chats at once: {total} chunks in {seconds:.2f} s")
    return running


def show(ended: list[Chat]) -> None:
    for chat in ended:
        text = " ".join(chat.text.split())
        shown = text if len(text) <= 150 else text[:150] + "..."
        print(f"  > {chat.question}\n    {shown}  [{chat.ended}]")


async def status(session: aiohttp.ClientSession, base: str) -> dict[str, object]:
    async with session.get(f"{base}/v1/status") as response:
        found: dict[str, object] = await response.json()
        return found


async def until_ready(session: aiohttp.ClientSession, base: str) -> float:
    """Seconds until /health/ready answers 200 again."""
    started = time.perf_counter()
    while True:
        async with session.get(f"{base}/health/ready") as response:
            if response.status == 200:
                return time.perf_counter() - started
        await asyncio.sleep(0.05)


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
    tasks = [asyncio.create_task(stream(session, base, c)) for c in running]
    await asyncio.gather(*(c.first_token.wait() for c in running))
    print(f"  kill -9 {engine_pid}", flush=True)
    os.kill(engine_pid, signal.SIGKILL)
    await asyncio.gather(*tasks)
    show(running)
    return running


async def demo() -> None:
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
            failures += [c.question for c in cut if not c.ended]
            if not any(c.ended == "error engine_restarted" for c in cut):
                failures.append("no stream saw the engine end")
            seconds = await until_ready(session, base)
            print(f"  the service is ready again after {seconds:.2f} s; it never stopped answering")

            say("the same four chats, from the new engine")
            after = await chats(session, base)
            same = [c.text for c in after] == [c.text for c in before]
            print(f"  same answers as before the crash: {'yes' if same else 'NO'}")
            if not same:
                failures.append("answers differ after the restart")

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
    if failures:
        sys.exit("demo failed: " + "; ".join(failures))
    say("done: `make serve` keeps it running")


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(demo(), STEP_TIMEOUT_S))
