"""Admission as clients see it: headers, statuses, and what a refusal costs."""

from __future__ import annotations

import asyncio
import json

import pytest
from strata.api.arrival import TIMEOUT_MS_MAX
from strata.serving.request import CancelReason, Failed, RejectedError, TokensReady
from strata_protocol.messages import ErrorKind

from tests.api.conftest import Server, StartServer
from tests.api.fake_service import finished
from tests.api.sse_reader import read_stream

PATHS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
}


def full(code: str = "queue_full", retry_after_s: float = 7.25) -> RejectedError:
    text = "256 requests are waiting"
    return RejectedError(ErrorKind.OVERLOADED, code, text, retry_after_s=retry_after_s)


@pytest.mark.parametrize("path", PATHS)
async def test_a_refusal_reads_nothing_of_the_body(server: Server, path: str) -> None:
    server.service.closed = full()
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    writer.write(head.encode())  # and no body, ever
    async with asyncio.timeout(5):
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert answer.startswith("http/1.1 503")
    assert "retry-after: 8\r\n" in answer
    assert "retry-after-ms: 7250\r\n" in answer
    assert "x-should-retry: true\r\n" in answer
    body = json.loads(await reader.readuntil(b"}}"))
    assert body["error"]["code"] == "queue_full"
    writer.close()


async def test_only_generating_routes_are_bounded(server: Server) -> None:
    server.service.closed = full()
    async with server.http.get(server.url + "/v1/models") as response:
        assert response.status == 200


async def test_a_limit_per_key_is_429(server: Server) -> None:
    server.service.closed = full("rate_limit_exceeded", 1.0)
    async with server.http.post(server.url + "/v1/completions", json={"prompt": "Hi"}) as response:
        assert response.status == 429
        assert response.headers["Retry-After"] == "1"
        assert response.headers["x-should-retry"] == "true"
        assert (await response.json())["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("path", PATHS)
async def test_a_place_is_held_until_the_request_is_submitted(server: Server, path: str) -> None:
    server.service.script = None
    body = json.dumps(PATHS[path]).encode()
    _, writer = await asyncio.open_connection(server.host, server.port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body[:3])
    async with asyncio.timeout(5):
        await server.service.until(lambda: server.service.places == 1)
    writer.write(body[3:])
    (handle,) = await server.service.submitted(1)
    assert server.service.places == 0
    handle.push(finished(handle.spec, 0))
    writer.close()


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_place_is_given_back_by_what_is_never_submitted(
    server: Server, leaves: bool
) -> None:
    if leaves:
        _, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        async with asyncio.timeout(5):
            await server.service.until(lambda: server.service.places == 1)
        writer.close()
    else:
        assert (await server.post("/v1/completions", {"prompt": 3}))[0] == 400
    async with asyncio.timeout(5):
        await server.service.until(lambda: server.service.places == 0)
    assert len(server.service.reserved) == 1
    assert server.service.handles == []


async def test_keys_are_told_apart(start_server: StartServer) -> None:
    server = await start_server(api_keys=["one", "two"])
    for key in ("one", "two", "one"):
        headers = {"Authorization": f"Bearer {key}"}
        assert (await server.post("/v1/completions", {"prompt": "Hi"}, headers=headers))[0] == 200
    first, second, third = server.service.reserved
    assert first == third != second
    assert "one" not in first
    assert [spec.key for spec in server.service.specs] == server.service.reserved


# --- the client's own limit


@pytest.mark.parametrize("path", PATHS)
async def test_the_time_limit_runs_from_arrival(server: Server, path: str) -> None:
    status, _ = await server.post(path, PATHS[path], headers={"x-request-timeout-ms": "2500"})
    assert status == 200
    await server.post(path, PATHS[path])
    limited, free = server.service.specs
    assert (limited.timeout_ms, free.timeout_ms) == (2500, 0)
    assert 0 < limited.spent_s < 10


@pytest.mark.parametrize("value", ["", "0", "-5", "1.5", "soon", "1e3", str(TIMEOUT_MS_MAX + 1)])
async def test_a_wrong_time_limit_is_refused_with_its_range(server: Server, value: str) -> None:
    headers = {"x-request-timeout-ms": value}
    status, body = await server.post("/v1/completions", {"prompt": "Hi"}, headers=headers)
    assert status == 400
    assert body["error"]["code"] == "invalid_header"
    assert body["error"]["param"] == "x-request-timeout-ms"
    assert f"1 to {TIMEOUT_MS_MAX}" in body["error"]["message"]
    assert server.service.places == 0


LATE = Failed(ErrorKind.OVERLOADED, "deadline_exceeded", "the request did not finish within 1 s")


async def test_late_is_504_and_one_event_of_a_stream(server: Server) -> None:
    server.service.script = lambda _: [LATE]
    async with server.http.post(server.url + "/v1/completions", json={"prompt": "Hi"}) as response:
        assert response.status == 504
        assert (await response.json())["error"]["code"] == "deadline_exceeded"
    body = {"prompt": "Hi", "stream": True}
    async with server.http.post(server.url + "/v1/completions", json=body) as response:
        stream = await read_stream(response)
    assert [error["code"] for error in stream.errors] == ["deadline_exceeded"]
    assert (stream.done, stream.is_complete) == (0, False)


async def test_what_says_when_to_come_back_is_passed_on(server: Server) -> None:
    text = "the engine does not start"
    held = Failed(ErrorKind.OVERLOADED, "engine_hold", text, retry_after_s=41.5)
    server.service.script = lambda _: [held]
    async with server.http.post(server.url + "/v1/completions", json={"prompt": "Hi"}) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "42"
        assert response.headers["retry-after-ms"] == "41500"


# --- priority, and why requests are cancelled


@pytest.mark.parametrize("path", PATHS)
async def test_priority_is_passed_on(server: Server, path: str) -> None:
    for body in (PATHS[path] | {"priority": -3}, PATHS[path]):
        assert (await server.post(path, body))[0] == 200
    assert [spec.priority for spec in server.service.specs] == [-3, 0]
    status, answer = await server.post(path, PATHS[path] | {"priority": 1 << 31})
    assert (status, answer["error"]["param"]) == (400, "priority")


async def test_why_a_request_is_cancelled(server: Server) -> None:
    server.service.script = server.service.answering("one two three")
    assert (await server.complete(stop="two"))[0] == 200
    assert server.service.handles[0].why is CancelReason.STOP
    server.service.handles.clear()
    server.service.script = lambda spec: [LATE] if spec.params.choice else []
    assert (await server.complete(n=2))[0] == 504
    assert server.service.handles[0].why is CancelReason.SIBLING
    server.service.handles.clear()
    server.service.script = None
    _, writer = await asyncio.open_connection(server.host, server.port)
    body = json.dumps({"prompt": "Hi"}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    (handle,) = await server.service.submitted(1)
    handle.push(TokensReady(server.service.ids("x"), []))
    writer.close()
    async with asyncio.timeout(5):
        await handle.cancelled.wait()
    assert handle.why is CancelReason.CLIENT
