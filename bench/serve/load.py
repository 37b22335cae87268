#!/usr/bin/env python3
"""Streaming load on an OpenAI-compatible server on this machine; used by run.py, or by hand.

    bench/serve/load.py --base-url http://127.0.0.1:8000 --clients 1,4 --rounds 5

A row is one client count. In a round every client sends one streaming request at once and reads
it to its end. Figures of a row: tok_s (tokens of a round / wall time), ttft (sent -> first chunk
with text), itl (gap between chunks with text). Plain sockets keep the client's own cost small
beside an engine that uses every core. Requests differ in their first words, so a prefix cache
cannot hide the prefill of the question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TOPICS = (
    "Explain how a bicycle stays upright when it is moving.",
    "Describe how bread is baked, from flour to loaf.",
    "Explain what a compiler does and why programmers need one.",
    "Write a letter to a friend about a visit to the sea.",
)
FILLER = (
    "rivers carry sand and stones from the hills down to a wide plain where farmers grow wheat and "
    "keep sheep while boats bring letters salt and iron to the market every second week"
)
LOOPBACK = ("127.", "localhost", "::1")


@dataclass
class Sample:
    """One request: times in seconds of time.perf_counter()."""

    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)
    chunks: int = 0
    completion_tokens: int = 0
    prompt_tokens: int = 0
    error: str = ""

    @property
    def tokens(self) -> int:
        return self.completion_tokens or self.chunks


def question(serial: int, words: int) -> str:
    topic = TOPICS[serial % len(TOPICS)]
    words_of = FILLER.split()
    padding = " ".join(words_of[(i + serial) % len(words_of)] for i in range(max(0, words - 12)))
    return f"Request {serial}. {padding} {topic}"


async def chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        size = int((await reader.readline()).split(b";")[0] or b"-1", 16)
        if size < 0:
            raise ConnectionError("closed inside the chunked body")
        if size == 0:
            return
        yield await reader.readexactly(size)
        await reader.readexactly(2)


def take_event(sample: Sample, payload: bytes, now: float) -> None:
    event = json.loads(payload)
    if "error" in event:
        sample.error = json.dumps(event["error"])[:200]
        return
    usage = event.get("usage") or {}
    sample.completion_tokens = usage.get("completion_tokens") or sample.completion_tokens
    sample.prompt_tokens = usage.get("prompt_tokens") or sample.prompt_tokens
    for choice in event.get("choices") or []:
        if not (choice.get("delta") or {}).get("content"):
            continue
        sample.chunks += 1
        if sample.first:
            sample.gaps.append(now - sample.last)
        else:
            sample.first = now
        sample.last = now


async def request(url: str, body: dict[str, Any], sample: Sample) -> None:
    """Sends one streaming chat and fills the sample; failures become `sample.error`."""
    target = urlsplit(url)
    data = json.dumps(body).encode()
    head = (
        f"POST {target.path.rstrip('/')}/v1/chat/completions HTTP/1.1\r\nHost: {target.netloc}\r\n"
        "Content-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    sample.sent = time.perf_counter()
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    try:
        writer.write(head.encode() + data)
        await writer.drain()
        status = await reader.readline()
        while (await reader.readline()).strip():
            pass
        if b" 200 " not in status:
            sample.error = (status + await reader.read(300)).decode(errors="replace")
            return
        rest, done = b"", False
        async for piece in chunked(reader):
            now = time.perf_counter()
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                payload = line.strip().removeprefix(b"data: ")
                if not line.startswith(b"data: "):
                    continue
                done = done or payload == b"[DONE]"
                if payload != b"[DONE]":
                    take_event(sample, payload, now)
        if not done and not sample.error:
            sample.error = "stream ended without [DONE]"
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        sample.error = f"{type(error).__name__}: {error}"
    finally:
        writer.close()


def percentile(values: list[float], q: float) -> float:
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[round(q) - 1]


def row(clients: int, rates: list[float], samples: list[Sample]) -> dict[str, Any]:
    good = [s for s in samples if s.first]
    ttft = [(s.first - s.sent) * 1e3 for s in good]
    itl = [gap * 1e3 for s in good for gap in s.gaps]
    prompts = [s.prompt_tokens for s in good if s.prompt_tokens]
    return {
        "clients": clients,
        "tok_s_median": statistics.median(rates),
        "tok_s_min": min(rates),
        "tok_s_max": max(rates),
        "ttft_ms_p50": percentile(ttft, 50),
        "ttft_ms_p95": percentile(ttft, 95),
        "itl_ms_p50": percentile(itl, 50),
        "itl_ms_p95": percentile(itl, 95),
        "prompt_tokens_median": statistics.median(prompts) if prompts else 0,
        "requests": len(samples),
        "n_errors": sum(bool(s.error) for s in samples),
        "errors": sorted({s.error for s in samples if s.error})[:5],
    }


async def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows, serial = [], args.first_serial
    for clients in args.clients:
        rates: list[float] = []
        kept: list[Sample] = []
        for number in range(args.warmup + args.rounds):
            samples = [Sample() for _ in range(clients)]
            started = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for index, sample in enumerate(samples):
                    message = {
                        "role": "user",
                        "content": question(serial + index, args.prompt_words),
                    }
                    body = {
                        **({"model": args.model} if args.model else {}),
                        "messages": [message],
                        "max_tokens": args.max_tokens,
                        "temperature": 0,
                        "stream": True,
                        "stream_options": {"include_usage": True},
                        "ignore_eos": args.ignore_eos,
                    }
                    group.create_task(request(args.base_url, body, sample))
            wall = time.perf_counter() - started
            serial += clients
            if number >= args.warmup:
                rates.append(sum(s.tokens for s in samples) / wall)
                kept += samples
        rows.append(row(clients, rates, kept))
        last = rows[-1]
        print(
            f"{clients:>3} clients  {last['tok_s_median']:8.1f} tok/s  "
            f"ttft {last['ttft_ms_p50']:.1f}/{last['ttft_ms_p95']:.1f} ms  "
            f"itl {last['itl_ms_p50']:.2f}/{last['itl_ms_p95']:.2f} ms  errors {last['n_errors']}",
            flush=True,
        )
        for text in last["errors"]:
            print(f"    {text}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", default="1,4", type=lambda s: [int(x) for x in s.split(",")])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prompt-words", type=int, default=0)
    parser.add_argument("--model", default="", help="left out = the model that is served")
    parser.add_argument("--ignore-eos", action="store_true")
    parser.add_argument("--first-serial", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    args = parser.parse_args()
    if not (urlsplit(args.base_url).hostname or "").startswith(LOOPBACK):
        sys.exit("only servers on this machine (loopback addresses) are loaded")
    rows = asyncio.run(run(args))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(1 if any(r["n_errors"] for r in rows) else 0)


if __name__ == "__main__":
    main()
