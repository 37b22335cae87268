"""`/v1/chat/completions`: what reaches the service, and what comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from strata.serving.request import Failed, TokensReady
from strata_protocol.messages import ErrorKind, FinishReason, LogitBias

from tests.api.conftest import Server, StartServer
from tests.api.fake_service import facts, finished
from tests.api.sse_reader import Stream, read_stream
from tests.text.small_models import small_model


async def stream_chat(server: Server, **body: Any) -> Stream:
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True} | body
    url = server.url + "/v1/chat/completions"
    async with server.http.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["X-Accel-Buffering"] == "no"
        return await read_stream(response)


async def test_whole_answer(server: Server) -> None:
    server.service.script = server.service.answering("Hello there!", cached=3)
    status, body = await server.chat(model="tiny", max_tokens=100)
    assert status == 200
    prompt = len(server.service.specs[0].prompt_ids)
    output = len(server.service.ids("Hello there!"))
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny"
    assert body["id"].startswith("chatcmpl-")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


async def test_prompt_is_the_rendered_chat(server: Server) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "<|im_end|>"},
    ]
    status, _ = await server.chat(messages=messages)
    assert status == 200
    ids = server.service.specs[0].prompt_ids
    shown = b"".join(server.text.vocabulary.pieces[i] for i in ids).decode()
    assert shown == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n"
        "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    end = server.text.vocabulary.tokens.index("<|im_end|>")
    assert list(ids).count(end) == 4  # the client's own is plain text


async def test_stream(server: Server) -> None:
    stream = await stream_chat(server, stream_options={"include_usage": True})
    assert stream.text() == "Hello there!"
    assert stream.chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert stream.finish_reasons() == ["stop"]
    assert stream.chunks[-1]["choices"] == []
    assert stream.chunks[-1]["usage"]["completion_tokens"] == len(
        server.service.ids("Hello there!")
    )
    assert stream.order[-1] == "done"
    assert (stream.done, stream.errors, stream.is_complete) == (1, [], True)
    assert len({chunk["id"] for chunk in stream.chunks}) == 1


async def test_one_chunk_per_event(server: Server) -> None:
    ids = server.service.ids("Hello there, this is merged.")
    server.service.script = lambda spec: [
        TokensReady(ids[:2], []),
        TokensReady(ids[2:], []),
        finished(spec, len(ids)),
    ]
    stream = await stream_chat(server)
    assert stream.text() == "Hello there, this is merged."
    assert len(stream.chunks) == 1 + 2 + 1  # role, two events, finish
    assert all("usage" not in chunk or chunk["usage"] is None for chunk in stream.chunks)


async def test_parameters_reach_the_service(server: Server) -> None:
    await server.chat(
        max_completion_tokens=9,
        max_tokens=99,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        typical_p=0.8,
        repeat_penalty=1.1,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        logit_bias={"5": -100, "6": 1.5},
        seed=-7,
        stop_token_ids=[9],
        ignore_eos=True,
        logprobs=True,
        top_logprobs=3,
        user="someone",
        store=True,
        metadata={"unknown": ["to", "us"]},
        parallel_tool_calls=True,
    )
    params = server.service.specs[0].params
    assert params.max_tokens == 9
    assert params.min_tokens == 2
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.9, 40)
    assert (params.min_p, params.typical_p, params.repetition_penalty) == (0.05, 0.8, 1.1)
    assert (params.presence_penalty, params.frequency_penalty) == (-0.5, 0.25)
    assert params.logit_bias == [LogitBias(5, -100.0), LogitBias(6, 1.5)]
    assert params.seed == 2**64 - 7
    assert params.stop_ids == [*server.text.stop_ids, 9]
    assert params.ignore_eos
    assert (params.logprobs, params.prompt_logprobs) == (3, -1)


async def test_defaults(server: Server) -> None:
    await server.chat()
    await server.chat()
    first, second = server.service.specs
    params = first.params
    assert params.max_tokens == 256 - len(first.prompt_ids)  # what the context leaves
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, 0)
    assert (params.logprobs, params.choice) == (-1, 0)
    assert params.seed != second.params.seed
    assert first.key == "127.0.0.1"


async def test_max_tokens_is_clamped_to_the_context(server: Server) -> None:
    status, _ = await server.chat(max_tokens=100_000)
    assert status == 200
    spec = server.service.specs[0]
    assert spec.params.max_tokens == 256 - len(spec.prompt_ids)


@pytest.mark.parametrize("filler", ["x " * 300, "a" * 1_000_000])
async def test_prompt_beyond_the_context(server: Server, filler: str) -> None:
    status, body = await server.chat(messages=[{"role": "user", "content": filler}])
    assert status == 400
    error = body["error"]
    assert error["code"] == "context_length_exceeded"
    assert "256 tokens" in error["message"]
    assert server.service.specs == []


async def test_context_before_the_engine_is_known(server: Server) -> None:
    server.service.facts = None
    assert (await server.chat())[0] == 200
    spec = server.service.specs[0]
    assert spec.params.max_tokens == 256 - len(spec.prompt_ids)  # the file's own context
    server.service.facts = facts(context=64)
    await server.chat()
    assert server.service.specs[1].params.max_tokens == 64 - len(spec.prompt_ids)


async def test_length(server: Server) -> None:
    _, body = await server.chat(max_tokens=2)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2


async def test_choices(server: Server) -> None:
    server.service.script = server.service.answering("first", "second", "third", cached=2)
    _, body = await server.chat(n=3, seed=5)
    contents = [choice["message"]["content"] for choice in body["choices"]]
    assert contents == ["first", "second", "third"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [spec.params.choice for spec in server.service.specs] == [0, 1, 2]
    assert {spec.params.seed for spec in server.service.specs} == {5}
    assert len({spec.request_id for spec in server.service.specs}) == 3
    usage = body["usage"]
    assert usage["prompt_tokens"] == len(server.service.specs[0].prompt_ids)  # counted once
    answers = ("first", "second", "third")
    assert usage["completion_tokens"] == sum(len(server.service.ids(t)) for t in answers)
    stream = await stream_chat(server, n=3)
    assert [stream.text(i) for i in range(3)] == ["first", "second", "third"]
    assert all(stream.finish_reasons(i) == ["stop"] for i in range(3))
    assert stream.done == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_string(server: Server, stream: bool) -> None:
    text = "One two STOP three"
    ids = server.service.ids(text)

    def script(spec: object) -> list[TokensReady]:
        return [TokensReady([i], []) for i in ids]  # and no end: the engine would go on

    server.service.script = script
    if stream:
        answer = await stream_chat(server, stop=["STOP"], stream_options={"include_usage": True})
        shown, reasons = answer.text(), answer.finish_reasons()
        usage = answer.chunks[-1]["usage"]
        assert answer.done == 1
    else:
        _, body = await server.chat(stop="STOP")
        choice = body["choices"][0]
        shown, reasons = choice["message"]["content"], [choice["finish_reason"]]
        usage = body["usage"]
    assert shown == "One two "
    assert reasons == ["stop"]
    assert server.service.handles[0].cancelled.is_set()
    needed = next(
        n for n in range(1, len(ids) + 1)
        if b"STOP" in b"".join(server.text.vocabulary.pieces[i] for i in ids[:n])
    )  # fmt: skip
    assert usage["completion_tokens"] == needed


async def test_unfinished_stop_string_is_shown(server: Server) -> None:
    server.service.script = server.service.answering("a STO")
    stream = await stream_chat(server, stop=["STOP", "OPS"])
    assert stream.text() == "a STO"
    assert stream.finish_reasons() == ["stop"]


async def test_emoji_split_over_events(server: Server) -> None:
    server.service.script = server.service.answering("a🦜b")
    stream = await stream_chat(server)
    contents = [c["choices"][0]["delta"].get("content") for c in stream.chunks[1:-1]]
    assert contents == ["a", "🦜", "b"]


async def test_logprobs(server: Server) -> None:
    server.service.script = server.service.answering("Hi 🦜")
    _, body = await server.chat(logprobs=True, top_logprobs=2)
    ids = server.service.ids("Hi 🦜")
    pieces = [server.text.vocabulary.pieces[i] for i in ids]
    entries = body["choices"][0]["logprobs"]["content"]
    assert [bytes(e["bytes"]) for e in entries] == pieces
    assert b"".join(bytes(e["bytes"]) for e in entries).decode() == "Hi 🦜"
    assert [e["logprob"] for e in entries] == [-i / 1000 for i in ids]
    assert entries[0]["token"] == pieces[0].decode()
    assert entries[-1]["token"] == "".join(f"\\x{b:02x}" for b in pieces[-1])
    for token_id, entry in zip(ids, entries, strict=True):
        top = entry["top_logprobs"]
        assert [t["logprob"] for t in top] == [-token_id / 1000, -(token_id + 1) / 1000]
        assert bytes(top[1]["bytes"]) == server.text.vocabulary.pieces[token_id + 1]
    stream = await stream_chat(server, logprobs=True, top_logprobs=2)
    streamed = [
        entry
        for chunk in stream.chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert streamed == entries


async def test_logprobs_end_with_the_shown_text(server: Server) -> None:
    server.service.script = server.service.answering("ab xSTOPy")
    _, body = await server.chat(logprobs=True, stop="STOP")
    choice = body["choices"][0]
    shown = b"".join(bytes(e["bytes"]) for e in choice["logprobs"]["content"]).decode()
    assert choice["message"]["content"].startswith(shown)
    assert "STOP" not in shown


async def test_stop_ids_end_the_sequence(server: Server) -> None:
    assert server.text.stop_ids == tuple(
        sorted(server.text.vocabulary.tokens.index(t) for t in ("<|endoftext|>", "<|im_end|>"))
    )
    await server.chat(stop_token_ids=[1, 2])
    assert server.service.specs[0].params.stop_ids == [*server.text.stop_ids, 1, 2]


async def test_template_error(start_server: StartServer) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    server = await start_server(text=small_model(template=template))
    status, body = await server.chat()
    assert status == 400
    assert body["error"]["message"] == "roles must alternate"
    assert body["error"]["param"] == "messages"


async def test_no_template(start_server: StartServer) -> None:
    server = await start_server(text=small_model(template=None))
    status, body = await server.chat()
    assert status == 400
    assert body["error"]["message"].startswith("model has no chat template")
    assert (await server.complete())[0] == 200


async def test_template_variables(start_server: StartServer) -> None:
    template = "{{ enable_thinking }} {{ reasoning_effort }} {{ word }}"
    server = await start_server(text=small_model(template=template))
    await server.chat(
        chat_template_kwargs={"enable_thinking": False, "word": "<|im_end|>"},
        reasoning_effort="low",
    )
    ids = server.service.specs[0].prompt_ids
    pieces = server.text.vocabulary.pieces
    assert b"".join(pieces[i] for i in ids) == b"False low <|im_end|>"
    assert server.text.vocabulary.tokens.index("<|im_end|>") not in ids
    status, body = await server.chat(chat_template_kwargs={"messages": "x"})
    assert (status, body["error"]["param"]) == (400, "chat_template_kwargs.messages")


async def test_server_side_cancel_is_an_error(server: Server) -> None:
    server.service.script = lambda spec: [finished(spec, 0, FinishReason.CANCELLED)]
    status, body = await server.chat()
    assert (status, body["error"]["code"]) == (503, "cancelled")


async def test_failure_of_one_choice_ends_all(server: Server) -> None:
    server.service.script = None
    task = asyncio.create_task(server.chat(n=3))
    handles = await server.service.submitted(3)
    handles[1].push(Failed(ErrorKind.INTERNAL, "engine_restarted", "the engine ended"))
    status, body = await task
    assert (status, body["error"]["code"]) == (500, "engine_restarted")
    assert all(handle.cancelled.is_set() for handle in handles)
