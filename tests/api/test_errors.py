"""Whatever comes in: an answer in OpenAI's shape, and a server that goes on."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import threading
from typing import Any

import msgspec
import pytest
from aiohttp import web
from strata.api import app
from strata.api.app import ApiLimits
from strata.serving.request import Failed, RejectedError
from strata_protocol.messages import ErrorKind

from tests.api.conftest import Server, StartServer

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]


def check_shape(body: Any) -> Any:
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


def nested(depth: int) -> bytes:
    return b'{"tools":' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"", "the request body is empty"),
        (b"   ", "the request body is empty"),
        (b"{", "not valid JSON"),
        (b'{"messages": [}', "at byte 14 (line 1, column 15)"),
        (b'{\n "messages": x}', "at byte 15 (line 2, column 14)"),
        (b'{"a": 1,}', "not valid JSON"),
        (b'{"messages": []} trailing', "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b'{"messages": [{"role": "\xff"}]}', "not valid"),
        (b'{"messages": NaN}', "not valid JSON"),
        (b'{"model": "\\ud83d"}', "not valid JSON"),
        (nested(100_000), "nested too deeply"),
        (b"[]", "Expected `object`, got `array`"),
        (b'"text"', "Expected `object`"),
        (b"null", "Expected `object`"),
        (b"{}", "missing required field `messages`"),
    ],
)
async def test_malformed_json(server: Server, raw: bytes, what: str) -> None:
    async with server.http.post(server.url + CHAT, data=raw) as response:
        assert response.status == 400
        error = check_shape(await response.json())
    assert what in error["message"]
    assert error["type"] == "invalid_request_error"
    assert (await server.chat())[0] == 200


@pytest.mark.parametrize(
    ("fields", "param", "what"),
    [
        ({"messages": "Hi"}, "messages", "Expected `array`, got `str`"),
        ({"messages": []}, "messages", "messages is empty"),
        ({"messages": [1]}, "messages[0]", "Expected `object`"),
        ({"messages": [{"content": "x"}]}, "messages[0]", "missing required field `role`"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "got `int`"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "allowed: system"),
        ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role", "got `int`"),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
            "messages[0].content[0].type",
            "'file' (only 'text' is) is not supported",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "missing",
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
            "messages[0].tool_calls[0]",
            "missing required field `function`",
        ),
        ({"max_tokens": "5"}, "max_tokens", "Expected `int | null`, got `str`"),
        ({"max_tokens": [5]}, "max_tokens", "got `array`"),
        ({"max_tokens": 1.5}, "max_tokens", "got `float`"),
        ({"max_tokens": 0}, "max_tokens", "allowed: 1 to"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "allowed: 1 to"),
        ({"max_tokens": 10**30}, "max_tokens", "allowed: 1 to"),
        ({"min_tokens": 9, "max_tokens": 5}, "min_tokens", "allowed: 0 to 5"),
        ({"min_tokens": -1}, "min_tokens", "allowed: 0 to"),
        ({"temperature": 2.1}, "temperature", "temperature is 2.1; allowed: 0 to 2"),
        ({"temperature": -0.1}, "temperature", "allowed: 0 to 2"),
        ({"temperature": True}, "temperature", "got `bool`"),
        ({"top_p": 1.01}, "top_p", "allowed: 0 to 1"),
        ({"top_k": -2}, "top_k", "allowed: -1 to"),
        ({"min_p": 2}, "min_p", "allowed: 0 to 1"),
        ({"typical_p": -1}, "typical_p", "allowed: 0 to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty", "allowed: 0.01 to 100"),
        ({"presence_penalty": 3}, "presence_penalty", "allowed: -2 to 2"),
        ({"frequency_penalty": -2.5}, "frequency_penalty", "allowed: -2 to 2"),
        ({"n": 0}, "n", "allowed: 1 to 8"),
        ({"n": 9}, "n", "allowed: 1 to 8"),
        ({"seed": 2**64}, "seed", "allowed:"),
        ({"seed": 1.5}, "seed", "got `float`"),
        ({"stop": ""}, "stop", "stop[0] has 0 characters"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": ["a" * 1001]}, "stop", "allowed: 1 to 1000"),
        ({"stop": [1]}, "stop[0]", "Expected `str`, got `int`"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "allowed: 0 to"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids", "allowed: 0 to"),
        ({"stop_token_ids": [1] * 2000}, "stop_token_ids", "at most"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "key 'x'; allowed: token ids"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "allowed: token ids"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias", "allowed: token ids"),
        ({"logit_bias": {"1": 101}}, "logit_bias[1]", "allowed: -100 to 100"),
        ({"logit_bias": {"1": "x"}}, "logit_bias[...]", "got `str`"),
        ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias", "twice"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "1025 entries"),
        ({"logprobs": 3}, "logprobs", "Expected `bool | null`"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "allowed: 0 to 20"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"stream": "yes"}, "stream", "Expected `bool | null`"),
        ({"stream_options": []}, "stream_options", "Expected `object | null`"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "Expected `object | null`"),
        ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs[...]", "got `array`"),
        ({"model": 5}, "model", "Expected `str | null`"),
        ({"tool_choice": "required"}, "tool_choice", "only allowed beside tools"),
        ({"functions": [{}]}, "functions", "not supported"),
        ({"response_format": {"type": "xml"}}, "response_format", "type 'xml' is not supported"),
        ({"response_format": 5}, "response_format", "type '5' is not supported"),
        ({"modalities": ["text", "smell"]}, "modalities", "'smell' is not supported"),
        ({"modalities": 5}, "modalities", "'5' is not supported"),
        ({"prompt_logprobs": 1}, "prompt_logprobs", "not supported"),
        ({"n_probs": 3}, "n_probs", "not supported"),
        ({"web_search_options": {}}, "web_search_options", "not supported"),
        ({"continue_final_message": True}, "continue_final_message", "not supported"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, None, "not valid JSON"),
    ],
)  # fmt: skip
async def test_bad_fields(
    server: Server, fields: dict[str, Any], param: str | None, what: str
) -> None:
    status, body = await server.chat(**fields)
    assert status == 400
    error = check_shape(body)
    assert error["param"] == param
    assert what in error["message"]
    assert server.service.specs == []
    assert (await server.chat())[0] == 200


async def test_fields_that_ask_for_nothing(server: Server) -> None:
    status, _ = await server.chat(
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        modalities=["text"],
        mirostat=0,
        dry_multiplier=0.0,
        top_n_sigma=-1,
        lora=[],
        audio=None,
        function_call="none",
        temperature=None,
        stop=None,
        n=None,
        logit_bias=None,
        stream_options=None,
        top_p=0,
    )
    assert status == 200
    assert 0 < server.service.specs[0].params.top_p < 1e-6


@pytest.mark.parametrize("name", [None, "", "tiny", "tiny.gguf"])
async def test_names_of_the_model(server: Server, name: str | None) -> None:
    assert (await server.chat(model=name))[0] == 200


async def test_unknown_model(server: Server) -> None:
    for path, fields in ((CHAT, {"messages": USER}), ("/v1/completions", {"prompt": "x"})):
        status, body = await server.post(path, {"model": "gpt-9", **fields})
        assert status == 404
        error = check_shape(body)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'gpt-9' does not exist; this server has 'tiny'" in error["message"]
    async with server.http.get(server.url + "/v1/models/gpt-9") as response:
        assert response.status == 404
        assert check_shape(await response.json())["code"] == "model_not_found"


async def test_models(server: Server) -> None:
    async with server.http.get(server.url + "/v1/models") as response:
        body = await response.json()
    entry = body["data"][0]
    assert (body["object"], entry["id"], entry["object"]) == ("list", "tiny", "model")
    assert entry["strata"]["context_tokens"] == 256
    assert entry["strata"]["plan"]["batch"] == 8
    assert entry["strata"]["facts"]["architecture"] == "llama"
    async with server.http.get(server.url + "/v1/models/tiny") as response:
        assert await response.json() == entry
    server.service.facts = None
    async with server.http.get(server.url + "/v1/models/tiny") as response:
        assert (await response.json())["strata"]["plan"] is None


async def test_unknown_route_and_method(server: Server) -> None:
    async with server.http.get(server.url + "/v1/nothing") as response:
        assert response.status == 404
        assert "/v1/nothing" in check_shape(await response.json())["message"]
    async with server.http.get(server.url + CHAT) as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"
        assert check_shape(await response.json())["code"] == "method_not_allowed"
    async with server.http.post(server.url + "/v1/models", json={}) as response:
        assert response.status == 405


async def test_huge_body(start_server: StartServer) -> None:
    server = await start_server(limits=ApiLimits(body_bytes=10_000))
    status, body = await server.post(CHAT, {"messages": USER, "pad": "x" * 20_000})
    assert status == 413
    assert "10000 bytes" in check_shape(body)["message"]

    async def chunks() -> Any:  # of unknown length
        for _ in range(100):
            yield b"x" * 1000

    async with server.http.post(server.url + CHAT, data=chunks()) as response:
        assert response.status == 413
    bomb = gzip.compress(b" " * 10_000_000)
    headers = {"Content-Encoding": "gzip"}
    async with server.http.post(server.url + CHAT, data=bomb, headers=headers) as response:
        assert response.status == 413
    assert (await server.chat())[0] == 200


async def test_compressed_bodies(server: Server) -> None:
    headers = {"Content-Encoding": "gzip"}
    good = gzip.compress(json.dumps({"messages": USER}).encode())
    async with server.http.post(server.url + CHAT, data=good, headers=headers) as response:
        assert response.status == 200
    async with server.http.post(server.url + CHAT, data=b"junk", headers=headers) as response:
        assert response.status == 400
        check_shape(await response.json())


@pytest.mark.parametrize(("pad", "thread"), [(10, "MainThread"), (70_000, "text")])
async def test_large_bodies_are_decoded_off_the_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch, pad: int, thread: str
) -> None:
    names: list[str] = []

    def decode(*args: Any, **options: Any) -> Any:
        names.append(threading.current_thread().name)
        return decode_json(*args, **options)

    decode_json = msgspec.json.decode
    monkeypatch.setattr(msgspec.json, "decode", decode)
    assert (await server.chat(pad="x" * pad))[0] == 200
    status, body = await server.chat(pad="x" * pad, n="1")
    assert (status, body["error"]["param"]) == (400, "n")
    assert [name.partition("_")[0] for name in names] == [thread] * 2
    assert gc.isenabled()


async def raw_request(server: Server, data: bytes, *, eof: bool = False) -> bytes:
    """Sends bytes as they are and returns all that comes back."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(data)
    if eof:
        writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_bodies_that_never_come(start_server: StartServer) -> None:
    server = await start_server(limits=ApiLimits(body_idle_s=0.05))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(head + b'{"messages"')
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 408 ")
    error = check_shape(json.loads(await reader.readuntil(b"}}")))
    assert error["code"] == "request_timeout"
    writer.close()
    assert (await server.chat())[0] == 200


async def test_half_open_and_broken_clients(server: Server) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n".encode()
    await raw_request(server, head + b"{", eof=True)  # goes away within its body
    await raw_request(server, b"GET /v1/mo", eof=True)  # and within its head
    chunked = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    for junk in (chunked + b"zz\r\nnot a size\r\n", b"\x16\x03\x01 this is no HTTP\r\n\r\n"):
        answer = await raw_request(server, junk)
        assert answer.split()[1] == b"400", answer
    assert (await server.chat())[0] == 200
    assert len(server.service.specs) == 1


async def test_faults_of_clients_are_no_errors_of_the_service(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    headers = {"Content-Encoding": "gzip"}
    damaged = gzip.compress(b"{}" * 1_000_000)[:-900] + b"x" * 700
    for data in (b"junk", b"junk" * 20_000, damaged):
        async with server.http.post(server.url + CHAT, data=data, headers=headers) as response:
            assert response.status == 400
            assert check_shape(await response.json())["code"] == "bad_body"
    chunked = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    ask = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
    for junk in (
        chunked + b"zz\r\n",
        b"\x16\x03\x01 no HTTP\r\n\r\n",
        ask + b"\r\n\x16\x03 none\r\n\r\n",
        ask + b"no header\r\n\r\n",
        ask + b"A: " + b"x" * 20_000 + b"\r\n\r\n",
    ):
        assert b" 400 " in await raw_request(server, junk)
    assert caplog.records == []
    caplog.set_level(logging.DEBUG)
    await raw_request(server, ask + b"no header\r\n\r\n")
    assert any("Error handling request" in record.getMessage() for record in caplog.records)
    assert all(record.levelno == logging.DEBUG for record in caplog.records)
    logging.getLogger("aiohttp.server").error("other", exc_info=RuntimeError("a bug"))
    assert caplog.records[-1].levelno == logging.ERROR


async def test_silent_connections_are_closed(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "KEEPALIVE_S", 0.05)
    server = await start_server()
    assert await raw_request(server, b"") == b""
    assert await raw_request(server, b"GET /v1/models HTTP/1.1\r\nHo") == b""
    assert (await server.chat())[0] == 200


async def test_many_idle_connections(server: Server) -> None:
    pairs = [await asyncio.open_connection(server.host, server.port) for _ in range(1000)]
    assert (await server.chat())[0] == 200
    for _, writer in pairs:
        writer.close()


@pytest.mark.parametrize(
    ("kind", "code", "retry_after_s", "status", "headers"),
    [
        (ErrorKind.OVERLOADED, "queue_full", 2.3, 503, ("true", "3", "2300")),
        (ErrorKind.OVERLOADED, "engine_starting", 500.0, 503, ("true", "55", "55000")),
        (ErrorKind.OVERLOADED, "engine_refused", None, 503, ("false", None, None)),
        (ErrorKind.INVALID_REQUEST, "context_length_exceeded", None, 400, ("false", None, None)),
        (ErrorKind.UNSUPPORTED, "mode", None, 400, ("false", None, None)),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_rejections(  # noqa: PLR0917  # parameters, not arguments
    server: Server,
    kind: ErrorKind,
    code: str,
    retry_after_s: float | None,
    status: int,
    headers: tuple[str | None, ...],
    stream: bool,
) -> None:
    server.service.rejection = RejectedError(kind, code, "why", retry_after_s=retry_after_s)
    body = {"messages": USER, "stream": stream}
    async with server.http.post(server.url + CHAT, json=body) as response:
        assert response.status == status
        error = check_shape(await response.json())
        names = ("x-should-retry", "Retry-After", "retry-after-ms")
        assert tuple(response.headers.get(name) for name in names) == headers
    assert (error["message"], error["code"]) == ("why", code)


async def test_rejection_of_a_later_choice_cancels_the_earlier(server: Server) -> None:
    server.service.script = None
    server.service.reject_from = 2
    server.service.rejection = RejectedError(ErrorKind.OVERLOADED, "queue_full", "why")
    status, body = await server.chat(n=4)
    assert (status, body["error"]["code"]) == (503, "queue_full")
    assert len(server.service.handles) == 2
    assert all(handle.cancelled.is_set() for handle in server.service.handles)


@pytest.mark.parametrize(
    ("kind", "status", "retry"),
    [
        (ErrorKind.INVALID_REQUEST, 400, "false"),
        (ErrorKind.UNSUPPORTED, 400, "false"),
        (ErrorKind.OVERLOADED, 503, "true"),
        (ErrorKind.CANCELLED, 503, "true"),
        (ErrorKind.NUMERIC_FAULT, 500, "false"),
        (ErrorKind.DEVICE_LOST, 503, "true"),
        (ErrorKind.OUT_OF_MEMORY, 503, "true"),
        (ErrorKind.INTERNAL, 500, "true"),
    ],
)
async def test_failures(server: Server, kind: ErrorKind, status: int, retry: str) -> None:
    server.service.script = lambda _: [Failed(kind, "some_code", "some text")]
    async with server.http.post(server.url + CHAT, json={"messages": USER}) as response:
        assert response.status == status
        assert response.headers["x-should-retry"] == retry
        error = check_shape(await response.json())
    assert (error["message"], error["code"]) == ("some text", "some_code")


async def test_bugs_are_answered(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: object) -> Any:
        raise RuntimeError("a bug")

    server.service.script = broken
    status, body = await server.chat()
    assert status == 500
    assert check_shape(body)["code"] == "internal"
    assert "a bug" not in body["error"]["message"]
    assert "a bug" in caplog.text
    server.service.script = server.service.answering("ok")
    assert (await server.chat())[0] == 200


async def test_request_ids(server: Server) -> None:
    for asked, kept in (("my-id_1.2:3", True), ("bad id", False), ("x" * 65, False), ("", False)):
        headers = {"x-request-id": asked}
        async with server.http.post(
            server.url + CHAT, json={"messages": USER}, headers=headers
        ) as response:
            shown = response.headers["x-request-id"]
        assert (shown == asked) == kept
        assert shown == server.service.specs[-1].request_id
    async with server.http.get(server.url + "/nothing") as response:
        assert response.headers["x-request-id"].startswith("req_")
    body = {"messages": USER, "stream": True}
    async with server.http.post(server.url + CHAT, json=body) as response:
        assert response.headers["x-request-id"] == server.service.specs[-1].request_id


async def test_api_keys(start_server: StartServer) -> None:
    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    routes = [web.get("/health/live", live), web.get("/metrics", live)]
    server = await start_server(api_keys=["secret-1", "secret-2"], extra_routes=routes)
    for header in (None, "Bearer wrong", "Bearer ", "Basic secret-1", "secret-1", "Bearer sécret"):
        headers: dict[str, str] = {} if header is None else {"Authorization": header}
        async with server.http.get(server.url + "/v1/models", headers=headers) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
            error = check_shape(await response.json())
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    async with server.http.get(server.url + "/metrics") as response:
        assert response.status == 401
    async with server.http.get(server.url + "/health/live") as response:
        assert response.status == 200
    for key in ("secret-1", "secret-2"):
        headers = {"Authorization": f"Bearer {key}"}
        assert (await server.post(CHAT, {"messages": USER}, headers=headers))[0] == 200
    first, second = (spec.key for spec in server.service.specs)
    assert first != second  # a fair share each
    assert "secret" not in first + second
