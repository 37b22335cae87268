#!/usr/bin/env python3
"""What a token costs the supervisor, part by part, in microseconds of its processor time.

    bench/serve/token_path.py [--streams 64] [--steps 400] [--rounds 5] [--out FILE]

One process plays the engine's end of the pipe and runs the supervisor's own code behind it, with
each part of the path added to the ones before: reading the frame, the scheduler and its journal
and metrics, the detokeniser, the chunk's JSON, and at last the whole HTTP application on loopback
sockets that another process reads. A part is the difference of two medians over rounds, so it may
come out a little below zero where it costs nothing. Processor time is that of this process, user
and system; how long the engine computes is no part of it. `make chaos CHAOS_FLAGS='--only cost'`
measures the same of the running service.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import selectors
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2]))

import strata_protocol.messages as m  # noqa: E402
from aiohttp import web  # noqa: E402
from strata.api.app import build_app, make_runner  # noqa: E402
from strata.api.choice import ChoiceText  # noqa: E402
from strata.api.chunk_frame import MARK, ChunkFrame  # noqa: E402
from strata.api.schemas import Completion, CompletionChoice  # noqa: E402
from strata.config import Config  # noqa: E402
from strata.engines.frame_ring import RecordedPeer  # noqa: E402
from strata.engines.port import EngineReady  # noqa: E402
from strata.observe.metrics import Metrics  # noqa: E402
from strata.serving.handle import RequestHandle  # noqa: E402
from strata.serving.request import Failed, Finished, RequestSpec, TokensReady  # noqa: E402
from strata.serving.service import EngineService  # noqa: E402
from strata.text.model import TextModel  # noqa: E402
from strata_protocol.features import FIELDS  # noqa: E402
from strata_protocol.framing import encode_frame  # noqa: E402
from strata_protocol.order import Phase  # noqa: E402

from bench.serve.run import RESULTS, Row, machine, revision  # noqa: E402

MODEL = HERE.parents[2] / "tests" / "data" / "oracle" / "tiny-llama.gguf"
TOKENS = (40, 200)  # ids that are sent: from, below
CONTEXT = 1 << 20
Take = Callable[[RequestHandle, TokensReady], bool]


class Port:
    """Implements `EnginePort`: an engine that takes everything and says nothing by itself."""

    def __init__(self, service: EngineService) -> None:
        self.rids: list[int] = []
        plan = m.ModePlan(
            batch=256, max_context=CONTEXT, kv="f16", prefill=256, activations="int8", threads=1,
            kv_tokens=CONTEXT,
        )  # fmt: skip
        ready = m.Ready(
            plan=plan,
            load_ms=0,
            warm_ms=0,
            kv_pages=1 << 15,
            page_tokens=32,
            serving=[m.ServingMode(features=list(FIELDS))],
        )
        service.on_ready(EngineReady(m.ModelFacts(), ready, ()), self)

    def send(self, message: m.Submit | m.Resume | m.Cancel | m.Credit) -> None:
        if isinstance(message, m.Submit):
            self.rids.append(message.rid)

    def fault(self, text: str) -> None:
        raise RuntimeError(text)


class Engine:
    """The frames of steps in which each of `rids` gets one token."""

    def __init__(self) -> None:
        self._ids = cycle(range(*TOKENS))
        self._step = 0
        self.peer = RecordedPeer()
        self.peer.phase = Phase.RUN

    def frame(self, rids: list[int]) -> bytes:
        """Made outside what is measured."""
        items = [m.TokensItem(rid=r, offset=self._step, ids=[next(self._ids)]) for r in rids]
        self._step += 1
        return encode_frame(m.Tokens(step=self._step, items=items))


async def feed(service: EngineService | None, rids: list[int], steps: int) -> float:
    """Seconds of processor time for `steps` frames."""
    engine = Engine()
    spent = 0.0
    for _ in range(steps):
        frame = engine.frame(rids)
        begin = time.process_time()
        for message in engine.peer.feed(frame):
            if service is not None and isinstance(message, m.Tokens):
                service.on_message(message)
        await asyncio.sleep(0)
        spent += time.process_time() - begin
    return spent


async def read(handle: RequestHandle, take: Take) -> None:
    while not isinstance(await handle.next(lambda event: take(handle, event)), Finished | Failed):
        pass


async def with_readers(streams: int, steps: int, make_take: Callable[[], Take]) -> float:
    service = EngineService(Config(), Metrics())
    port = Port(service)
    readers = []
    for number in range(streams):
        spec = RequestSpec(f"call-{number}", [1, 2, 3], m.SamplingParams(max_tokens=CONTEXT // 2))
        handle = await service.submit(spec)
        readers.append(asyncio.create_task(read(handle, make_take())))
    await asyncio.sleep(0)
    spent = await feed(service, port.rids, steps)
    service.end_all()
    await asyncio.gather(*readers)
    return spent


def taking(text: TextModel | None, *, with_chunk: bool) -> Callable[[], Take]:
    """Makes what a stream does with its tokens: nothing, their text, or the chunk's JSON, too."""

    def make() -> Take:
        if text is None:
            return lambda _handle, _event: True
        choice = ChoiceText(text.vocabulary, (), wants_logprobs=False)
        shown = Completion("cmpl-0", 0, "model", [CompletionChoice(0, MARK)])
        frame = ChunkFrame(shown)

        def take(_: RequestHandle, event: TokensReady) -> bool:
            delta = choice.feed(event.ids, event.logprobs)
            if with_chunk and not delta.is_empty:
                frame.fill(delta.text)
            return True

        return take

    return make


@asynccontextmanager
async def application(service: EngineService, text: TextModel) -> AsyncIterator[int]:
    """The whole HTTP application; its port."""
    runner = make_runner(build_app(service, "model", text), shutdown_s=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def swallow(port: int, streams: int) -> None:
    """Another process: opens the streams and reads whatever comes until they end."""
    body = json.dumps(
        {"prompt": [1, 2, 3], "stream": True, "max_tokens": CONTEXT // 2, "ignore_eos": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    selector = selectors.DefaultSelector()
    for _ in range(streams):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(head.encode() + body)
        selector.register(client, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            client = key.fileobj  # type: ignore[assignment]
            if not client.recv(1 << 16):
                selector.unregister(client)


async def over_http(text: TextModel, streams: int, steps: int) -> float:
    service = EngineService(Config(), Metrics())
    port = Port(service)
    async with application(service, text) as number:
        client = multiprocessing.get_context("spawn").Process(
            target=swallow, args=(number, streams)
        )
        client.start()
        async with asyncio.timeout(30):
            while len(port.rids) < streams:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
        spent = await feed(service, port.rids, steps)
        service.end_all()
    await asyncio.to_thread(client.join)
    return spent


async def one_round(text: TextModel, streams: int, steps: int) -> list[float]:
    """Microseconds per token up to and with each part."""
    spent = [
        await feed(None, list(range(1, streams + 1)), steps),
        await with_readers(streams, steps, taking(None, with_chunk=False)),
        await with_readers(streams, steps, taking(text, with_chunk=False)),
        await with_readers(streams, steps, taking(text, with_chunk=True)),
        await over_http(text, streams, steps),
    ]
    return [seconds / (streams * steps) * 1e6 for seconds in spent]


PARTS = ("frame", "scheduler, journal, metrics", "text", "chunk", "HTTP and socket")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "token-path-last.json")
    args = parser.parse_args()
    text = TextModel.from_gguf(MODEL)
    load_before = os.getloadavg()
    rounds = [asyncio.run(one_round(text, args.streams, args.steps)) for _ in range(args.rounds)]
    up_to = [statistics.median(values) for values in zip(*rounds, strict=True)]
    parts = {
        name: round(total - before, 2)
        for name, total, before in zip(PARTS, up_to, [0.0, *up_to], strict=False)
    }
    for name, cost in parts.items():
        print(f"{cost:6.2f} us  {name}")
    print(f"{up_to[-1]:6.2f} us  in all, per token of {args.streams} streams")
    result: Row = {
        "what": "bench/serve/token_path.py: processor time of the supervisor per token",
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "revision": revision(),
        "machine": machine(),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "streams": args.streams,
        "us_per_token": parts | {"in all": round(up_to[-1], 2)},
        "rounds": [[round(cost, 2) for cost in one] for one in rounds],
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
