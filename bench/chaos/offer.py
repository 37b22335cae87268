"""Offers requests at a fixed rate, come what may, from one process; used by load.py in several.

    python -m bench.chaos.offer URL RATE SECONDS CONNECTIONS [CORE]

An open loop: request i is due at i / RATE, and its latency counts from then, so that waiting for a
free connection or for this very client is part of it. So what this client costs is told beside it:
its processor time, and how late it got its own turns. It runs on CORE where one is given. Prints
one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter, deque
from urllib.parse import urlsplit

BODY = b'{"model":"default","prompt":[5,6],"max_tokens":4}'
TICK_S = 0.001
GRACE_S = 5.0  # for answers after the last request


class Offer:
    def __init__(self, url: str) -> None:
        target = urlsplit(url)
        self.host, self.port = target.hostname or "", target.port or 80
        self.request = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {target.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        ).encode() + BODY
        self.free: deque[Connection] = deque()
        self.due: deque[float] = deque()
        self.latencies: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.sent = 0
        self.lost = 0
        self.late_s: list[float] = []  # of this process' own turns

    def send_due(self) -> None:
        while self.due and self.free:
            self.free.popleft().send(self.due.popleft())
            self.sent += 1

    async def run(self, rate: float, seconds: float, connections: int) -> dict[str, object]:
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            await loop.create_connection(lambda: Connection(self), self.host, self.port)
        begin, begin_cpu_s = time.perf_counter(), time.process_time()
        total, offered = int(rate * seconds), 0
        while offered < total:
            now = time.perf_counter() - begin
            while offered < total and offered / rate <= now:
                self.due.append(begin + offered / rate)
                offered += 1
            self.send_due()
            due_s = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self.late_s.append(time.perf_counter() - due_s)
        end = time.perf_counter() + GRACE_S
        while len(self.latencies) + self.lost < total and time.perf_counter() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        answered_s = time.perf_counter() - begin
        return {
            "offered": total,
            "latencies_s": [round(x, 6) for x in self.latencies],
            "statuses": dict(self.statuses),
            "lost": total - len(self.latencies),
            "seconds": answered_s,
            "late_s": [round(x, 6) for x in self.late_s],
            "cpu_s": time.process_time() - begin_cpu_s,
        }


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._due_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            self._offer.free.append(self)

    def send(self, due_s: float) -> None:
        self._due_s = due_s
        if self._transport is not None:
            self._transport.write(self._offer.request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        at = head.lower().find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n")[0]) if at >= 0 else 0
        if len(body) < length:
            return
        self._buffer = b""
        self._offer.latencies.append(time.perf_counter() - self._due_s)
        self._offer.statuses[head[9:12].decode()] += 1
        self._offer.free.append(self)
        self._offer.send_due()

    def connection_lost(self, exc: Exception | None) -> None:
        self._offer.lost += 1


def main() -> None:
    url, rate, seconds, connections, *core = sys.argv[1:]
    if core:
        os.sched_setaffinity(0, {int(core[0])})
    offer = Offer(url)
    print(json.dumps(asyncio.run(offer.run(float(rate), float(seconds), int(connections)))))


if __name__ == "__main__":
    main()
