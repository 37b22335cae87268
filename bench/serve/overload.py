#!/usr/bin/env python3
"""What a refusal costs: fills the queue of a running service, then offers more than it takes.

    bench/serve/overload.py --base-url http://127.0.0.1:8000 --rate 2000 --seconds 10

Streams are opened until one is refused; they stay open. Then `--processes` clients offer `--rate`
requests per second in all on `--connections` connections that are kept alive, each at its time
whether or not earlier ones were answered. Figures: latency from the time a request was due to the
last byte of its answer, so a client or a server that falls behind shows; the service's own
processor time per answer, where `--pid` names it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

PATH = "/v1/chat/completions"
FILL_MAX = 4096  # streams that are opened at most
DRAIN_S = 5.0  # for answers that are still due at the end


@dataclass
class Offer:
    """What one client process does."""

    host: str
    port: int
    rate: float
    seconds: float
    connections: int
    body_bytes: int


@dataclass
class Outcome:
    latencies: list[float] = field(default_factory=list)  # seconds, of answered requests
    statuses: Counter[int] = field(default_factory=Counter)
    lost: int = 0  # not answered by the end; one that was accepted is among them


def head(host: str, body: bytes) -> bytes:
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()


def chat_body(*, stream: bool, size: int = 0) -> bytes:
    text = "Tell me about rivers. " * max(size // 22, 1)
    body = {"messages": [{"role": "user", "content": text}], "stream": stream, "ignore_eos": True}
    return json.dumps(body).encode()


class Client(asyncio.Protocol):
    """One connection: a request at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._buffer = b""
        self._due = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.on_lost(self)

    def send(self, request: bytes, due: float) -> None:
        assert self._transport is not None
        self._due = due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        header = self._buffer[:end].lower()
        length = int(header.split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self._buffer) < end + 4 + length:
            return
        self._buffer = self._buffer[end + 4 + length :]
        self._load.on_answer(self, int(header[9:12]), time.perf_counter() - self._due)


class Load:
    """An open loop: requests fall due whether or not earlier ones were answered."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        body = chat_body(stream=False, size=offer.body_bytes)
        self._request = head(offer.host, body) + body
        self._idle: deque[Client] = deque()
        self._due: deque[float] = deque()
        self._open = 0
        self._is_all_sent = False
        self._done = asyncio.Event()
        self.outcome = Outcome()

    def on_answer(self, client: Client, status: int, latency: float) -> None:
        self.outcome.latencies.append(latency)
        self.outcome.statuses[status] += 1
        self._open -= 1
        self._idle.append(client)
        self._send()

    def on_lost(self, client: Client) -> None:
        if client in self._idle:
            self._idle.remove(client)
        else:
            self._open -= 1
            self.outcome.lost += 1

    def _send(self) -> None:
        while self._due and self._idle:
            self._open += 1
            self._idle.popleft().send(self._request, self._due.popleft())
        self._check_done()

    def _check_done(self) -> None:
        if self._is_all_sent and not self._open and not self._due:
            self._done.set()

    async def run(self) -> None:
        loop, offer = asyncio.get_running_loop(), self._offer
        for _ in range(offer.connections):
            _, client = await loop.create_connection(lambda: Client(self), offer.host, offer.port)
            self._idle.append(client)
        begin = time.perf_counter()
        total, sent = int(offer.rate * offer.seconds), 0
        while sent < total:
            elapsed = time.perf_counter() - begin
            while sent < total and sent / offer.rate <= elapsed:
                self._due.append(begin + sent / offer.rate)
                sent += 1
            self._send()
            await asyncio.sleep(0.0005)
        self._is_all_sent = True
        self._check_done()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._done.wait()
        self.outcome.lost += self._open + len(self._due)


def offer_load(offer: Offer) -> Outcome:
    load = Load(offer)
    asyncio.run(load.run())
    return load.outcome


async def fill(host: str, port: int) -> list[asyncio.StreamWriter]:
    """Opens streams until one is refused."""
    body = chat_body(stream=True)
    writers: list[asyncio.StreamWriter] = []
    for _ in range(FILL_MAX):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(head(host, body) + body)
        status = int((await reader.readline())[9:12])
        if status == 503:
            writer.close()
            return writers
        if status != 200:
            raise SystemExit(f"the service answers {status}, neither a stream nor a refusal")
        writers.append(writer)
    raise SystemExit(f"the service took {FILL_MAX} streams; set a lower --queue-requests")


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    parts = urlsplit(args.base_url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    writers = await fill(host, port)
    count = args.processes
    offer = Offer(
        host, port, args.rate / count, args.seconds, args.connections // count, args.body_bytes
    )
    process = psutil.Process(args.pid) if args.pid else None
    before = sum(process.cpu_times()[:2]) if process else 0.0
    loop = asyncio.get_running_loop()
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        outcomes = await loop.run_in_executor(None, pool.map, offer_load, [offer] * count)
    spent = sum(process.cpu_times()[:2]) - before if process else 0.0
    for writer in writers:
        writer.close()
    ordered = sorted(latency for outcome in outcomes for latency in outcome.latencies)
    statuses: Counter[int] = Counter()
    for outcome in outcomes:
        statuses.update(outcome.statuses)
    if not ordered:
        raise SystemExit("nothing was answered")
    return {
        "offered_per_s": args.rate,
        "answered": len(ordered),
        "lost": sum(outcome.lost for outcome in outcomes),
        "statuses": {str(status): n for status, n in sorted(statuses.items())},
        "streams_open": len(writers),
        "latency_ms": {
            name: round(1000 * quantile(ordered, share), 2)
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
        },
        "service_us_per_answer": round(1e6 * spent / len(ordered), 1) if process else None,
        "load_average_1min": round(psutil.getloadavg()[0], 2),
        "cores": psutil.cpu_count(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--rate", type=float, default=2000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--body-bytes", type=int, default=200)
    parser.add_argument("--pid", type=int, default=0, help="of the supervisor, for its own cost")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    args = parser.parse_args()
    text = json.dumps(asyncio.run(measure(args)), indent=1)
    sys.stdout.write(text + "\n")
    if args.json:
        args.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
