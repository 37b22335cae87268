"""`/v1/completions`: prompts as text and ids, several at once, echo, logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from strata.api import openai_completions
from strata.serving.request import Event, PromptScored, RequestSpec, TokensReady
from strata_protocol.messages import FinishReason

from tests.api.conftest import Server, StartServer
from tests.api.fake_service import finished
from tests.api.sse_reader import Stream, read_stream
from tests.text.small_models import small_model


async def stream_completion(server: Server, **body: Any) -> Stream:
    body = {"prompt": "Hi", "stream": True} | body
    async with server.http.post(server.url + "/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return await read_stream(response)


async def test_text_prompt(server: Server) -> None:
    status, body = await server.complete(max_tokens=100)
    assert status == 200
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "Hello there!", "logprobs": None, "finish_reason": "stop"}
    ]
    assert server.service.specs[0].prompt_ids == server.service.ids("Hi")
    assert body["usage"]["prompt_tokens"] == len(server.service.ids("Hi"))


async def test_default_of_max_tokens(server: Server) -> None:
    await server.complete()
    assert server.service.specs[0].params.max_tokens == 16


async def test_control_tokens_of_a_raw_prompt(server: Server) -> None:
    end = server.text.vocabulary.tokens.index("<|im_end|>")
    await server.complete(prompt="a<|im_end|>")
    await server.complete(prompt="a<|im_end|>", parse_special=False)
    assert end in server.service.specs[0].prompt_ids
    assert end not in server.service.specs[1].prompt_ids


async def test_begin_token(start_server: StartServer) -> None:
    server = await start_server(text=small_model(add_bos_token=True))
    bos = server.text.vocabulary.bos_id
    await server.complete()
    assert server.service.specs[0].prompt_ids == [bos, *server.service.ids("Hi")]
    await server.complete(prompt=[5, 6])
    assert server.service.specs[1].prompt_ids == [5, 6]  # ids are taken as they are


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
        (["Hi"], [["Hi"]]),
        (["a", "b"], [["a"], ["b"]]),
        (["a", [5]], [["a"], [5]]),
    ],
)
async def test_forms_of_prompts(server: Server, prompt: Any, ids: list[list[Any]]) -> None:
    status, body = await server.complete(prompt=prompt)
    assert status == 200
    expected = [server.service.ids(i[0]) if isinstance(i[0], str) else i for i in ids]
    assert [spec.prompt_ids for spec in server.service.specs] == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(len(ids)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, expected))


@pytest.mark.parametrize(
    ("prompt", "param", "what"),
    [
        ([], "prompt", "empty list"),
        ("", "prompt", "empty"),
        (["a", ""], "prompt[1]", "empty"),
        ([[]], "prompt[0]", "empty"),
        ([1, "a"], "prompt", "mixes"),
        ([1, [2]], "prompt", "mixes"),
        ([-1], "prompt", "token id -1; allowed: 0 to"),
        ([10**6], "prompt", "token id 1000000"),
        ([[1], [10**9]], "prompt[1]", "token id 1000000000"),
        ("x " * 300, "prompt", "maximum context length is 256 tokens"),
        ([1] * 256, "prompt", "the prompt has 256 tokens"),
        (["a"] * 65, "prompt", "at most 64"),
        (None, "prompt", "Expected"),
        ({"a": 1}, "prompt", "Expected"),
        ([True], "prompt[0]", "Expected"),
    ],
)
async def test_bad_prompts(server: Server, prompt: Any, param: str, what: str) -> None:
    status, body = await server.complete(prompt=prompt)
    assert status == 400
    assert body["error"]["param"] == param
    assert what in body["error"]["message"]
    assert server.service.specs == []


async def test_prompts_times_choices(server: Server) -> None:
    server.service.script = server.service.answering("first", "second")
    _, body = await server.complete(prompt=["a", "b"], n=2)
    texts = [choice["text"] for choice in body["choices"]]
    assert texts == ["first", "second", "first", "second"]
    assert [spec.params.choice for spec in server.service.specs] == [0, 1, 0, 1]
    prompt = len(server.service.ids("a")) + len(server.service.ids("b"))
    assert body["usage"]["prompt_tokens"] == prompt
    stream = await stream_completion(server, prompt=["a", "b"], n=2)
    assert [stream.text(i) for i in range(4)] == texts
    assert stream.done == 1


async def test_echo(server: Server) -> None:
    _, body = await server.complete(prompt="Hi <|im_end|>", echo=True)
    assert body["choices"][0]["text"] == "Hi <|im_end|>Hello there!"
    stream = await stream_completion(server, prompt="Hi", echo=True)
    assert stream.text() == "HiHello there!"
    ids = server.service.ids("Hi")
    _, body = await server.complete(prompt=ids, echo=True)
    assert body["choices"][0]["text"] == "HiHello there!"


def scored(server: Server) -> Any:
    """Scores the prompt in two parts, then answers with two tokens."""

    def script(spec: RequestSpec) -> Sequence[Event]:
        ids, top = spec.prompt_ids, spec.params.prompt_logprobs
        events: list[Event] = []
        if top >= 0:
            middle = max(1, len(ids) // 2)
            scores = [server.service.score(i, top) for i in ids]
            events += [PromptScored(1, scores[1:middle]), PromptScored(middle, scores[middle:])]
        out = server.service.ids("xyz")[: spec.params.max_tokens]
        events += [TokensReady([i], [server.service.score(i, spec.params.logprobs)]) for i in out]
        return [*events, finished(spec, len(out), FinishReason.LENGTH)]

    return script


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_with_logprobs(server: Server, stream: bool) -> None:
    server.service.script = scored(server)
    prompt = "Hello é 🦜 there"
    asked = {"prompt": prompt, "echo": True, "logprobs": 2}
    if stream:
        answer = await stream_completion(server, **asked)
        text = answer.text()
        parts = [c["choices"][0]["logprobs"] for c in answer.chunks if c["choices"][0]["logprobs"]]
        logprobs = {key: [x for part in parts for x in part[key]] for key in parts[0]}
    else:
        _, body = await server.complete(**asked)
        text, logprobs = body["choices"][0]["text"], body["choices"][0]["logprobs"]
    assert text == prompt + "xyz"
    ids = [*server.service.ids(prompt), *server.service.ids("xyz")]
    assert len(logprobs["tokens"]) == len(ids)
    assert logprobs["token_logprobs"] == [None, *(-i / 1000 for i in ids[1:])]
    assert logprobs["top_logprobs"][0] is None
    pieces = server.text.vocabulary.pieces
    for i, (token, offset) in enumerate(
        zip(logprobs["tokens"], logprobs["text_offset"], strict=True)
    ):
        assert offset == len(b"".join(pieces[t] for t in ids[:i]).decode(errors="ignore"))
        if not token.startswith("bytes:"):
            assert text[offset:].startswith(token)
            if i:
                assert logprobs["top_logprobs"][i][token] == -ids[i] / 1000
    assert any(token.startswith("bytes:\\x") for token in logprobs["tokens"])


async def test_scoring_only(server: Server) -> None:
    server.service.script = scored(server)
    _, body = await server.complete(prompt="Hello", echo=True, logprobs=0, max_tokens=0)
    choice = body["choices"][0]
    assert choice["text"] == "Hello"
    assert choice["logprobs"]["top_logprobs"] is None
    assert len(choice["logprobs"]["token_logprobs"]) == len(server.service.ids("Hello"))
    assert body["usage"]["completion_tokens"] == 0
    status, body = await server.complete(max_tokens=0)
    assert (status, body["error"]["param"]) == (400, "max_tokens")


async def test_scoring_a_prompt_that_fills_the_context(server: Server) -> None:
    server.service.script = scored(server)
    status, _ = await server.complete(prompt=[5] * 256, echo=True, max_tokens=0)
    assert status == 200


async def test_the_chosen_token_is_among_the_top(server: Server) -> None:
    server.service.script = scored(server)
    _, body = await server.complete(logprobs=1)
    logprobs = body["choices"][0]["logprobs"]
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert token in top


async def test_stop_and_usage_in_a_stream(server: Server) -> None:
    server.service.script = server.service.answering("ab;cd")
    stream = await stream_completion(
        server, stop=";", stream_options={"include_usage": True}, max_tokens=50
    )
    assert stream.text() == "ab"
    assert stream.finish_reasons() == ["stop"]
    assert stream.chunks[-1]["usage"]["total_tokens"] > 0
    assert stream.done == 1


@pytest.mark.parametrize(("field", "value"), [("suffix", "x"), ("best_of", 3)])
async def test_unsupported_fields(server: Server, field: str, value: Any) -> None:
    status, body = await server.complete(**{field: value})
    assert (status, body["error"]["param"]) == (400, field)
    assert body["error"]["code"] == "unsupported_parameter"


async def test_best_of_equal_to_n(server: Server) -> None:
    assert (await server.complete(best_of=2, n=2, suffix=""))[0] == 200


@pytest.mark.parametrize(
    ("prompt", "n", "what"),
    [
        (["a"] * 65, 1, "65 prompts with n = 1 are 65 choices; at most 64"),
        (["a"] * 33, 2, "33 prompts with n = 2 are 66 choices; at most 64"),
        (["a"] * 100_000, None, "at most 64"),
        (["a", "b"], 9, "n is 9; allowed: 1 to 8"),
        ([1] * 256 + ["a"], 1, "the prompt has 257 tokens"),
        ([[-1] * 257], 1, "the prompt has 257 tokens"),
    ],
)
async def test_counts_are_judged_before_any_work(
    server: Server, monkeypatch: pytest.MonkeyPatch, prompt: Any, n: int | None, what: str
) -> None:
    def never(*_: object, **__: object) -> Any:
        pytest.fail("work was done for a request that is refused by its counts")

    monkeypatch.setattr(type(server.text), "encode_prompt", never)
    monkeypatch.setattr(openai_completions, "build_params", never)
    status, body = await server.complete(prompt=prompt, n=n)
    assert status == 400
    assert what in body["error"]["message"]
    monkeypatch.undo()
    assert (await server.complete(prompt=["a"] * 32, n=2))[0] == 200


async def test_prompts_without_a_seed_have_their_own(server: Server) -> None:
    await server.complete(prompt=["a", "a"], n=2, max_tokens=3)
    first, same, second, _ = (spec.params.seed for spec in server.service.specs)
    assert first == same != second
    server.service.handles.clear()
    await server.complete(prompt=["a", "a b c d"], seed=-1, max_tokens=1000)
    assert [spec.params.seed for spec in server.service.specs] == [2**64 - 1] * 2
    assert [spec.params.max_tokens + len(spec.prompt_ids) for spec in server.service.specs] == [
        256
    ] * 2


async def test_a_prompt_may_fill_the_context_to_be_scored(server: Server) -> None:
    status, _ = await server.complete(prompt=[5] * 256, echo=True, max_tokens=0)
    assert status == 200
    assert server.service.specs[0].prompt_ids == [5] * 256
