"""`timings` beside `usage`: sums over the choices, rates, and where they appear."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from strata.serving.request import Event, Finished, RequestSpec
from strata_protocol.messages import Timings

from tests.api.conftest import Server
from tests.api.sse_reader import read_stream

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": [5, 6, 7, 8, 9], "n": 2, "max_tokens": 3},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Hi"}],
        "n": 2,
        "max_tokens": 3,
    },
}


def time_answers(server: Server, timings: Timings) -> None:
    """Every choice: three tokens, two of the prompt's from the cache."""
    answer = server.service.answering("Hello there!", cached=2)

    def script(spec: RequestSpec) -> list[Event]:
        return [
            dataclasses.replace(event, timings=timings) if isinstance(event, Finished) else event
            for event in answer(spec)
        ]

    server.service.script = script


@pytest.mark.parametrize("path", BODIES)
async def test_timings_of_answers_and_streams(server: Server, path: str) -> None:
    time_answers(server, Timings(queue_ms=1.5, prefill_ms=100, decode_ms=50))
    _, body = await server.post(path, BODIES[path])
    prompt = len(server.service.specs[0].prompt_ids)
    expected = {
        "queue_ms": 3.0,
        "prefill_ms": 200.0,
        "decode_ms": 100.0,
        "prompt_per_second": (prompt - 2) * 10.0,
        "predicted_per_second": 40.0,
    }
    assert body["timings"] == expected
    streamed = BODIES[path] | {"stream": True, "stream_options": {"include_usage": True}}
    async with server.http.post(server.url + path, json=streamed) as response:
        stream = await read_stream(response)
    *chunks, last = stream.chunks
    assert last["timings"] == expected
    assert last["usage"] == body["usage"]
    assert not any("timings" in chunk for chunk in chunks)


async def test_rates_of_nothing_are_null(server: Server) -> None:
    time_answers(server, Timings())
    _, body = await server.complete()
    assert body["timings"]["prompt_per_second"] is None
    assert body["timings"]["predicted_per_second"] is None
