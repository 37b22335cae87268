"""Event streams: silence, disconnects, and exactly one terminal event."""

from __future__ import annotations

import asyncio
import json

import pytest
from strata.api.app import ApiLimits
from strata.serving.request import Failed, TokensReady
from strata_protocol.messages import ErrorKind

from tests.api.conftest import Server, StartServer
from tests.api.fake_service import FakeHandle, finished
from tests.api.sse_reader import read_stream

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}


def raw_post(body: dict[str, object]) -> bytes:
    payload = json.dumps(body).encode()
    return (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n".encode()
        + payload
    )


async def only_handle(server: Server) -> FakeHandle:
    return (await server.service.submitted(1))[0]


async def test_headers_come_at_admission(server: Server) -> None:
    server.service.script = None  # nothing is generated yet
    async with server.http.post(server.url + CHAT, json=BODY) as response:
        assert response.status == 200
        first = await response.content.readuntil(b"\n\n")
        assert b'"role":"assistant"' in first
        handle = await only_handle(server)
        handle.push(TokensReady(server.service.ids("x"), []), finished(handle.spec, 1))
        stream = await read_stream(response)
    assert stream.text() == "x"
    assert stream.done == 1


async def test_ping_in_silence(start_server: StartServer) -> None:
    server = await start_server(limits=ApiLimits(ping_s=0.02))
    server.service.script = None
    async with server.http.post(server.url + CHAT, json=BODY) as response:
        await response.content.readuntil(b"\n\n")
        for _ in range(3):
            assert await response.content.readuntil(b"\n\n") == b": ping\n\n"
        handle = await only_handle(server)
        handle.push(TokensReady(server.service.ids("x"), []), finished(handle.spec, 1))
        stream = await read_stream(response)
    assert stream.text() == "x"
    assert stream.done == 1


FAILURES = [
    Failed(ErrorKind.INTERNAL, "engine_restarted", "the engine ended"),
    Failed(ErrorKind.NUMERIC_FAULT, "numeric_fault", "NaN in layer 3"),
    Failed(ErrorKind.OVERLOADED, "shutting_down", "the server stops"),
    Failed(ErrorKind.OUT_OF_MEMORY, "out_of_memory", "no pages"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda f: f.code)
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("n", [1, 3])
async def test_one_error_and_no_done(server: Server, failure: Failed, begun: bool, n: int) -> None:
    ids = server.service.ids("some words")

    def script(spec: object) -> list[TokensReady | Failed]:
        return [TokensReady(ids, []), failure] if begun else [failure]

    server.service.script = script
    async with server.http.post(server.url + CHAT, json=BODY | {"n": n}) as response:
        assert response.status == 200
        stream = await read_stream(response)
    assert stream.done == 0
    assert [error["code"] for error in stream.errors] == [failure.code]
    assert stream.errors[0]["message"] == failure.text
    assert stream.order[-1] == "error"
    assert not stream.is_complete  # the body is cut off
    assert stream.finish_reasons() == []
    assert all(handle.cancelled.is_set() for handle in server.service.handles)
    server.service.script = server.service.answering("ok")
    assert (await server.chat())[0] == 200


async def test_one_error_for_a_bug(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.service.script = lambda _: [TokensReady(["not an id"], [])]  # type: ignore[list-item]
    async with server.http.post(server.url + CHAT, json=BODY) as response:
        stream = await read_stream(response)
    assert [error["code"] for error in stream.errors] == ["internal"]
    assert stream.done == 0
    assert "a stream failed" in caplog.text


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 2])
async def test_disconnect_cancels(server: Server, stream: bool, n: int) -> None:
    server.service.script = None
    _, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(raw_post(BODY | {"stream": stream, "n": n}))
    handles = await server.service.submitted(n)
    for handle in handles:
        handle.push(TokensReady(server.service.ids("x"), []))
    writer.close()
    for handle in handles:
        async with asyncio.timeout(5):
            await handle.cancelled.wait()


async def test_reset_cancels(server: Server) -> None:
    server.service.script = None
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(raw_post(BODY))
    handle = await only_handle(server)
    await reader.readuntil(b"assistant")
    writer.transport.abort()
    async with asyncio.timeout(5):
        await handle.cancelled.wait()


async def test_a_client_that_takes_nothing_is_let_go(start_server: StartServer) -> None:
    server = await start_server(limits=ApiLimits(ping_s=0.02, write_idle_s=0.1))
    ids = server.service.ids("word " * 2000)
    server.service.script = lambda _: [TokensReady(ids, []) for _ in range(2000)]
    _, writer = await asyncio.open_connection(server.host, server.port, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(raw_post(BODY))
    handle = await only_handle(server)
    async with asyncio.timeout(20):
        await handle.cancelled.wait()
    writer.transport.abort()
    server.service.script = server.service.answering("ok")
    assert (await server.chat())[0] == 200


async def test_a_client_that_leaves_during_the_prompt_is_not_submitted_for(
    server: Server,
) -> None:
    server.service.script = None
    payload = raw_post(BODY)
    _, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(payload[:-5])
    writer.close()
    await writer.wait_closed()
    server.service.script = server.service.answering("ok")
    assert (await server.chat())[0] == 200
    assert len(server.service.handles) == 1  # the second one
