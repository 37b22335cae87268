"""Thinking over HTTP: switched by the request, told apart in the answer, counted in the usage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from strata.serving.request import RequestSpec, TokensReady
from strata_protocol.messages import FinishReason

from tests.api.conftest import Server, StartServer
from tests.api.fake_service import facts, finished
from tests.api.sse_reader import Stream, read_stream
from tests.text.test_chat_prompts import shown, tagged_model
from tests.text.thinking_templates import ALWAYS_THINKS, EFFORT, QWEN3, QWEN35

ASK: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def server(start_server: StartServer) -> Server:
    return await start(start_server, QWEN3)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:
        yield client


async def start(start_server: StartServer, template: str, kind: int = 4) -> Server:
    server = await start_server(text=tagged_model(template, kind))
    server.service.facts = facts(context=4096)
    return server


def prompt(server: Server) -> str:
    return shown(server.text, list(server.service.specs[-1].prompt_ids))


def saying(server: Server, text: str, reason: FinishReason = FinishReason.STOP) -> int:
    """Lets the model say `text` in one token a byte, so that tags are cut everywhere; returns the
    number of tokens."""
    pieces = server.text.vocabulary.pieces
    ids = [pieces.index(bytes([byte])) for byte in text.encode()]

    def script(spec: RequestSpec) -> list[Any]:
        top = spec.params.logprobs
        scores = [[server.service.score(i, top)] if top >= 0 else [] for i in ids]
        tokens = [TokensReady([i], score) for i, score in zip(ids, scores, strict=True)]
        return [*tokens, finished(spec, len(ids), reason)]

    server.service.script = script
    return len(ids)


async def stream(server: Server, **body: Any) -> Stream:
    url = server.url + "/v1/chat/completions"
    body = {"messages": ASK, "stream": True, "stream_options": {"include_usage": True}} | body
    async with server.http.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        return await read_stream(response)


def reasoning_of(answer: Stream) -> str:
    deltas = [c["delta"] for chunk in answer.chunks for c in chunk["choices"]]
    return "".join(d.get("reasoning_content", "") for d in deltas)


async def both(server: Server, **body: Any) -> dict[str, Any]:
    """The message, reason and usage of an answer, which are the same whole and as a stream."""
    status, whole = await server.chat(**body)
    assert status == 200, whole
    message = whole["choices"][0]["message"]
    streamed = await stream(server, **body)
    assert streamed.text() == (message["content"] or "")
    assert reasoning_of(streamed) == message.get("reasoning_content", "")
    assert streamed.finish_reasons() == [whole["choices"][0]["finish_reason"]]
    assert streamed.chunks[-1]["usage"] == whole["usage"]
    return {**message, "finish": whole["choices"][0]["finish_reason"], "usage": whole["usage"]}


async def test_reasoning_is_told_apart(server: Server) -> None:
    saying(server, "<think>\nhm, hm\n</think>\n\nHello")
    answer = await both(server)
    assert (answer["reasoning_content"], answer["content"]) == ("hm, hm", "Hello")
    assert answer["finish"] == "stop"
    thought = len("<think>\nhm, hm\n</think>")
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": thought}
    for chunk in (await stream(server)).chunks:
        for choice in chunk["choices"]:
            assert len({"content", "reasoning_content"} & set(choice["delta"])) <= 1


async def test_the_tags_as_tokens(server: Server) -> None:
    server.service.script = server.service.answering("<think>\nhm\n</think>\n\nHello")
    answer = await both(server)
    assert (answer["reasoning_content"], answer["content"]) == ("hm", "Hello")
    ids = server.service.ids("<think>\nhm\n</think>")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(ids)


async def test_the_tags_as_hidden_tokens(start_server: StartServer) -> None:
    server = await start(start_server, QWEN3, kind=3)
    ids = server.text.tokenizer.encode("<think>\nhm\n</think>\n\nHi", parse_special=True)
    assert set(ids) & server.text.vocabulary.hidden
    server.service.script = lambda spec: [TokensReady(ids, []), finished(spec, len(ids))]
    answer = await both(server)
    assert (answer["reasoning_content"], answer["content"]) == ("hm", "Hi")


async def test_an_answer_without_reasoning(server: Server) -> None:
    saying(server, "Hello <think>")
    answer = await both(server, chat_template_kwargs={"enable_thinking": False})
    assert "reasoning_content" not in answer
    assert answer["content"] == "Hello <think>"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert prompt(server).endswith("<think>\n\n</think>\n\n")


async def test_the_template_opens_the_reasoning(start_server: StartServer) -> None:
    server = await start(start_server, QWEN35)
    saying(server, "hm\n</think>\n\nHello")
    answer = await both(server)
    assert (answer["reasoning_content"], answer["content"]) == ("hm", "Hello")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == len("hm\n</think>")
    saying(server, "Hello")
    answer = await both(server, enable_thinking=False)
    assert answer["content"] == "Hello"
    assert "reasoning_content" not in answer


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP])
async def test_reasoning_that_is_never_closed(
    start_server: StartServer, reason: FinishReason
) -> None:
    server = await start(start_server, QWEN35)
    count = saying(server, "hm, and </thi", reason)
    answer = await both(server)
    assert (answer["reasoning_content"], answer["content"]) == ("hm, and </thi", None)
    assert answer["finish"] == reason.value
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == count


async def test_the_official_client(server: Server, client: AsyncOpenAI) -> None:
    saying(server, "<think>hm</think>Hello")
    answer = await client.chat.completions.create(
        model="tiny",
        messages=ASK,
        reasoning_effort="low",
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
    )
    message = answer.choices[0].message
    assert message.content == "Hello"
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "hm"
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("<think>hm</think>")
    text, thought = "", ""
    async for chunk in await client.chat.completions.create(
        model="tiny", messages=ASK, stream=True
    ):
        text += chunk.choices[0].delta.content or ""
        thought += (chunk.choices[0].delta.model_extra or {}).get("reasoning_content", "")
    assert (text, thought) == ("Hello", "hm")


@pytest.mark.parametrize(
    ("fields", "is_off"),
    [
        ({}, False),
        ({"enable_thinking": True}, False),
        ({"enable_thinking": False}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"reasoning_effort": "none"}, True),
        ({"reasoning_effort": "high"}, False),
        ({"reasoning_effort": "high", "enable_thinking": False}, True),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, False),
    ],
)
@pytest.mark.parametrize("template", [QWEN3, QWEN35])
async def test_switches(
    start_server: StartServer, template: str, fields: dict[str, Any], is_off: bool
) -> None:
    server = await start(start_server, template)
    assert (await server.chat(**fields))[0] == 200
    assert prompt(server).endswith("</think>\n\n") == is_off


async def test_effort_goes_to_a_template_that_knows_it(start_server: StartServer) -> None:
    server = await start(start_server, EFFORT)
    for fields in ({"reasoning_effort": "none"}, {"reasoning_effort": "xhigh"}):
        assert (await server.chat(**fields))[0] == 200
        assert f"Effort: {fields['reasoning_effort']}<" in prompt(server)
    await server.chat(chat_template_kwargs={"reasoning_effort": "enormous"})
    assert "Effort: enormous<" in prompt(server)


@pytest.mark.parametrize(
    ("fields", "param", "what"),
    [
        ({"enable_thinking": False}, "enable_thinking", "always lets it think"),
        ({"reasoning_effort": "none"}, "reasoning_effort", "always lets it think"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "allowed: none, minimal, low"),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
            "enable_thinking", "contradict",
        ),
        ({"reasoning_format": "xml"}, "reasoning_format", "allowed: auto, deepseek, none"),
        ({"thinking_budget": 100}, "thinking_budget", "not supported"),
        ({"thinking_token_budget": 100}, "thinking_token_budget", "not supported"),
        ({"enable_thinking": "no"}, "enable_thinking", "Expected `bool | null`"),
        ({"chat_template_kwargs": {"tools": "x"}}, "chat_template_kwargs.tools", "by the server"),
    ],
)  # fmt: skip
async def test_refusals(
    start_server: StartServer, fields: dict[str, Any], param: str, what: str
) -> None:
    server = await start(start_server, ALWAYS_THINKS)
    status, body = await server.chat(**fields)
    assert (status, body["error"]["param"]) == (400, param)
    assert what in body["error"]["message"]
    assert server.service.specs == []


async def test_reasoning_as_text_and_left_out(server: Server) -> None:
    text = "<think>\nhm\n</think>\n\nHello"
    saying(server, text)
    raw = await both(server, reasoning_format="none")
    assert raw["content"] == text
    assert "reasoning_content" not in raw
    without = await both(server, include_reasoning=False)
    assert without["content"] == "Hello"
    assert "reasoning_content" not in without
    assert without["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_reasoning_in_the_history(server: Server) -> None:
    for field in ("reasoning_content", "reasoning"):
        turn = {"role": "assistant", "content": "A", field: "because"}
        await server.chat(messages=[*ASK, turn])
        assert "<think>\nbecause\n</think>\n\nA<|im_end|>" in prompt(server)
        await server.chat(messages=[*ASK, turn, *ASK])
        assert "because" not in prompt(server)


async def test_stop_strings(server: Server) -> None:
    saying(server, "<think>a STOP b</think>c")
    answer = await both(server, stop="STOP")
    assert (answer["reasoning_content"], answer["content"]) == ("a ", None)
    assert answer["finish"] == "stop"
    used = len("<think>a STOP")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == used
    saying(server, "<think>a</think>b c STOP d")
    answer = await both(server, stop=["STOP", "</thinking>"])
    assert (answer["reasoning_content"], answer["content"]) == ("a", "b c ")
    used = len("<think>a</think>")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == used


async def test_logprobs_are_of_all_tokens(server: Server) -> None:
    text = "<think>a</think>\n\nb"
    saying(server, text)
    _, whole = await server.chat(logprobs=True, top_logprobs=1)
    entries = whole["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(e["bytes"]) for e in entries).decode() == text
    answer = await stream(server, logprobs=True, top_logprobs=1)
    choices = [c for chunk in answer.chunks for c in chunk["choices"] if c["logprobs"]]
    assert [e for c in choices for e in c["logprobs"]["content"]] == entries
    assert answer.text() == "b"


async def test_choices(server: Server) -> None:
    server.service.script = server.service.answering("<think>a</think>b", "c", "<think>d")
    _, body = await server.chat(n=3)
    messages = [choice["message"] for choice in body["choices"]]
    assert [m.get("reasoning_content") for m in messages] == ["a", None, "d"]
    assert [m["content"] for m in messages] == ["b", "c", None]
    thought = len(server.service.ids("<think>a</think>")) + len(server.service.ids("<think>d"))
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == thought
