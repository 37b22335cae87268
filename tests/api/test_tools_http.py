"""Tools over HTTP: offered, chosen, called while streaming, answered; and refused where no promise
could be kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from strata_protocol.messages import FinishReason

from tests.api.conftest import Server, StartServer
from tests.api.test_reasoning_http import prompt, saying, start, stream
from tests.text.small_models import CHATML, small_model
from tests.text.test_tool_calls import in_json, in_xml
from tests.text.thinking_templates import ALWAYS_THINKS, QWEN3, QWEN35

ASK: Any = [{"role": "user", "content": "Hi"}]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool("get_weather", city={"type": "string"}, days={"type": "integer"})
CLOCK = tool("clock")
TOOLS: Any = [WEATHER, CLOCK]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
CALL = {"city": "Köln", "days": 3}
CALLED: Any = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    ],
}
RESULT: Any = {"role": "tool", "tool_call_id": "a", "content": "noon"}
FORMS = {
    "json": (QWEN3, in_json("get_weather", CALL), in_json("clock", {})),
    "xml": (QWEN35, in_xml("get_weather", {"city": "Köln", "days": "3"}), in_xml("clock", {})),
}


@pytest.fixture
async def server(start_server: StartServer) -> Server:
    return await start(start_server, QWEN3)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:
        yield client


async def both(server: Server, **body: Any) -> dict[str, Any]:
    """Content, calls and reason of an answer: the same whole and put together from a stream."""
    body = {"tools": TOOLS, "enable_thinking": False} | body
    status, whole = await server.chat(**body)
    assert status == 200, whole
    (choice,) = whole["choices"]
    message = choice["message"]
    calls = message.get("tool_calls", [])
    assert all(call["type"] == "function" for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    streamed = await stream(server, **body)
    assert streamed.done == 1
    pieces: list[dict[str, str]] = []
    for chunk in streamed.chunks:
        for delta in (c["delta"] for c in chunk["choices"]):
            for piece in delta.get("tool_calls", ()):
                if "id" in piece:  # the first of a call
                    assert piece["index"] == len(pieces)
                    assert piece["type"] == "function"
                    pieces.append({"name": piece["function"]["name"], "arguments": ""})
                pieces[piece["index"]]["arguments"] += piece["function"]["arguments"]
    assert pieces == [call["function"] for call in calls]
    assert streamed.text() == (message["content"] or "")
    assert streamed.finish_reasons() == [choice["finish_reason"]]
    assert streamed.chunks[-1]["usage"] == whole["usage"]
    functions = [(c["function"]["name"], c["function"]["arguments"]) for c in calls]
    return {"content": message["content"], "calls": functions, "finish": choice["finish_reason"]}


@pytest.mark.parametrize("form", FORMS)
async def test_calls(start_server: StartServer, form: str) -> None:
    template, weather, clock = FORMS[form]
    server = await start(start_server, template)
    saying(server, f"Let me look.\n\n{weather}\n{clock}")
    answer = await both(server)
    assert answer["content"] == "Let me look."
    assert answer["finish"] == "tool_calls"
    (first, second) = answer["calls"]
    assert (first[0], json.loads(first[1])) == ("get_weather", CALL)
    assert second == ("clock", "{}")
    assert '"get_weather"' in prompt(server)
    saying(server, weather)
    answer = await both(server)
    assert (answer["content"], len(answer["calls"])) == (None, 1)
    saying(server, "It is warm.")
    assert await both(server) == {"content": "It is warm.", "calls": [], "finish": "stop"}


@pytest.mark.parametrize("form", FORMS)
async def test_reasoning_before_calls(start_server: StartServer, form: str) -> None:
    template, weather, _ = FORMS[form]
    server = await start(start_server, template)
    opening = "" if form == "xml" else "<think>"
    saying(server, f"{opening}\nhm\n</think>\n\n{weather}")
    _, body = await server.chat(tools=TOOLS)
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", None)
    assert message["tool_calls"][0]["function"]["name"] == "get_weather"


async def test_the_official_client(server: Server, client: AsyncOpenAI) -> None:
    saying(server, f"<think>hm</think>{FORMS['json'][1]}")
    answer = await client.chat.completions.create(model="tiny", messages=ASK, tools=TOOLS)
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments) == CALL
    name, arguments, reasons = "", "", []
    async for chunk in await client.chat.completions.create(
        model="tiny", messages=ASK, tools=TOOLS, stream=True
    ):
        choice = chunk.choices[0]
        for piece in choice.delta.tool_calls or ():
            assert piece.function is not None
            name += piece.function.name or ""
            arguments += piece.function.arguments or ""
        if choice.finish_reason:
            reasons.append(choice.finish_reason)
    assert (name, json.loads(arguments), reasons) == ("get_weather", CALL, ["tool_calls"])
    # The next turn, with what the client holds of this one.
    history: Any = [
        *ASK,
        answer.choices[0].message.to_dict(),
        {"role": "tool", "tool_call_id": call.id, "content": "warm"},
    ]
    saying(server, "It is warm.")
    final = await client.chat.completions.create(model="tiny", messages=history, tools=TOOLS)
    assert final.choices[0].message.content == "It is warm."
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"' in prompt(server)
    assert "<think>\nhm\n</think>" in prompt(server)
    assert "<tool_response>\nwarm\n</tool_response>" in prompt(server)


@pytest.mark.parametrize("form", FORMS)
async def test_a_call_that_is_cut_off(start_server: StartServer, form: str) -> None:
    template, weather, clock = FORMS[form]
    server = await start(start_server, template)
    for end in range(weather.index("Köln"), weather.rindex("}}" if form == "json" else "</fun")):
        saying(server, f"{clock}\n{weather[:end]}", FinishReason.LENGTH)
        _, body = await server.chat(tools=TOOLS, enable_thinking=False)
        choice = body["choices"][0]
        assert choice["finish_reason"] == "length"
        clock_call, weather_call = choice["message"]["tool_calls"]
        assert clock_call["function"]["arguments"] == "{}"
        with pytest.raises(json.JSONDecodeError):
            json.loads(weather_call["function"]["arguments"])
    saying(server, weather[: weather.index("Köln")])  # it ended by itself
    answer = await both(server)
    assert answer["finish"] == "stop"
    assert len(answer["calls"]) == 1
    saying(server, weather[:14], FinishReason.LENGTH)  # before it named a tool
    answer = await both(server)
    assert answer == {"content": weather[:14], "calls": [], "finish": "length"}


async def test_what_only_looks_like_a_call(server: Server) -> None:
    for text in ("Use <tool_call> for that.", in_json("unknown", {}), "<tool_call>\n{}"):
        saying(server, text)
        assert await both(server) == {"content": text, "calls": [], "finish": "stop"}


async def test_choice_none(server: Server) -> None:
    text = FORMS["json"][1]
    saying(server, text)
    answer = await both(server, tool_choice="none")
    assert answer == {"content": text, "calls": [], "finish": "stop"}
    assert "get_weather" not in prompt(server)
    saying(server, text)
    _, body = await server.chat()  # no tools at all
    assert body["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": NAMED},
        {"tool_choice": NAMED, "parallel_tool_calls": True},
        {"tool_choice": "required", "tools": [WEATHER], "parallel_tool_calls": False},
    ],
)
async def test_a_certain_call(start_server: StartServer, form: str, fields: dict[str, Any]) -> None:
    template, weather, clock = FORMS[form]
    server = await start(start_server, template)
    opening = {
        "json": '<think>\n\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments":',
        "xml": "<think>\n\n</think>\n\n<tool_call>\n<function=get_weather>\n",
    }[form]
    begin = opening[opening.index("<tool_call>") :]
    assert weather.startswith(begin)
    saying(server, weather[len(begin) :] + clock)
    for enable_thinking in (None, False):
        answer = await both(server, enable_thinking=enable_thinking, **fields)
        ((name, arguments),) = answer["calls"]
        assert (name, json.loads(arguments)) == ("get_weather", CALL)
        assert (answer["content"], answer["finish"]) == (None, "tool_calls")
        assert prompt(server).endswith(opening)
    assert all(handle.cancelled.is_set() for handle in server.service.handles)
    saying(server, "No.")
    answer = await both(server, **fields)
    assert answer == {"content": "No.", "calls": [], "finish": "stop"}


async def test_more_calls_after_a_required_one(server: Server) -> None:
    weather = FORMS["json"][1]
    begin = '<tool_call>\n{"name": "get_weather", "arguments":'
    saying(server, f"{weather[len(begin) :]}\n{weather}")
    answer = await both(server, tool_choice="required", tools=[WEATHER])
    assert [name for name, _ in answer["calls"]] == ["get_weather", "get_weather"]
    assert (answer["content"], answer["finish"]) == (None, "tool_calls")


async def test_one_call_at_most(server: Server) -> None:
    _, weather, clock = FORMS["json"]
    count = saying(server, f"{clock}\n{weather}")
    answer = await both(server, parallel_tool_calls=False)
    assert answer == {"content": None, "calls": [("clock", "{}")], "finish": "tool_calls"}
    _, body = await server.chat(tools=TOOLS, parallel_tool_calls=False)
    assert body["usage"]["completion_tokens"] < count
    assert len((await both(server, parallel_tool_calls=True))["calls"]) == 2


@pytest.mark.parametrize(
    ("template", "fields", "param", "code", "what"),
    [
        (QWEN3, {"tool_choice": "required"}, "tool_choice", "mode_unsupported",
         "'required' with 2 tools needs a grammar"),
        (QWEN3, {"tool_choice": {"type": "function", "function": {"name": "x"}}},
         "tool_choice", None, "'x', which is not among tools"),
        (QWEN3, {"tool_choice": "any"}, "tool_choice", None, "allowed: 'none', 'auto', 'required'"),
        (QWEN3, {"tool_choice": {"type": "function"}}, "tool_choice", None, "allowed: 'none'"),
        (QWEN3, {"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "unsupported_parameter",
         "'allowed_tools' is not supported"),
        (QWEN3, {"tools": [], "tool_choice": NAMED}, "tool_choice", None,
         "only allowed beside tools"),
        (QWEN3, {"tools": None, "tool_choice": "auto"}, "tool_choice", None,
         "only allowed beside tools"),
        (QWEN3, {"tool_choice": NAMED, "enable_thinking": True}, "enable_thinking", None,
         "cannot think"),
        (QWEN3, {"tool_choice": NAMED, "reasoning_effort": "high"}, "reasoning_effort", None,
         "cannot think"),
        (ALWAYS_THINKS, {"tool_choice": NAMED}, "tool_choice", "mode_unsupported",
         "ends inside the reasoning"),
        (CHATML, {}, "tools", "unsupported_parameter",
         "tools, for which the model's chat template has no place, is not supported"),
        (CHATML, {"tools": None, "messages": [*ASK, CALLED]}, "messages[1].tool_calls",
         "unsupported_parameter", "calls of tools, for which the model's chat template"),
        (CHATML, {"tools": None, "messages": [*ASK, RESULT]}, "messages[1].role",
         "unsupported_parameter", "results of tools, for which the model's chat template"),
        (CHATML + "{{ tools }}", {}, "tools", "unsupported_parameter",
         "known: JSON in <tool_call>"),
        (QWEN3, {"functions": [{"name": "f"}]}, "functions", "unsupported_parameter", "functions"),
        (QWEN3, {"tools": [{**WEATHER, "function": {"name": "f", "strict": True}}]},
         "tools[0].function.strict", "mode_unsupported", "needs a grammar"),
    ],
)  # fmt: skip
async def test_refusals(
    start_server: StartServer, *, template: str, fields: dict[str, Any], param: str,
    code: str | None, what: str,
) -> None:  # fmt: skip
    server = await start(start_server, template)
    status, body = await server.chat(**{"tools": TOOLS} | fields)
    assert status == 400
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert (body["error"]["param"], body["error"]["code"]) == (param, code)
    assert what in body["error"]["message"]
    assert server.service.specs == []


def with_schema(schema: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": schema}}]


def nested_schema(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("tools", "param", "what"),
    [
        ({}, "tools", "not a list"),
        ("x", "tools", "not a list"),
        ([5], "tools[0]", "not an object"),
        ([{}], "tools[0].type", "allowed: 'function'"),
        ([{"type": "custom"}], "tools[0].type", "'custom' (only 'function' is)"),
        ([{"type": "function"}], "tools[0].function", "missing"),
        ([{"type": "function", "function": {}}], "tools[0].function.name", "allowed: 1 to 64"),
        ([tool("a b")], "tools[0].function.name", "'a b'"),
        ([tool("<|im_end|>")], "tools[0].function.name", "allowed"),
        ([tool("x" * 65)], "tools[0].function.name", "allowed"),
        ([CLOCK, CLOCK], "tools[1].function.name", "'clock' twice"),
        ([tool(f"f{i}") for i in range(129)], "tools", "at most 128"),
        ([{"type": "function", "function": {"name": "f", "description": 5}}],
         "tools[0].function.description", "not a text"),
        ([{"type": "function", "function": {"name": "f", "strict": "yes"}}],
         "tools[0].function.strict", "not a boolean"),
        (with_schema([]), "tools[0].function.parameters", "a JSON schema"),
        (with_schema({"type": "string"}), "tools[0].function.parameters.type", "are 'object'"),
        (with_schema({"type": "objekt"}), "tools[0].function.parameters.type", "'objekt'"),
        (with_schema({"properties": []}), "tools[0].function.parameters.properties", "empty list"),
        (with_schema({"properties": {"a": 5}}),
         "tools[0].function.parameters.properties.a", "is 5"),
        (with_schema({"properties": {"a": {"type": "strng"}}}),
         "tools[0].function.parameters.properties.a.type", "allowed: array, boolean"),
        (with_schema({"properties": {"a": {"type": ["string", 5]}}}),
         "tools[0].function.parameters.properties.a.type", "is 5"),
        (with_schema({"properties": {"a": {"type": []}}}),
         "tools[0].function.parameters.properties.a.type", "empty list"),
        (with_schema({"properties": {"a": {"enum": "x"}}}),
         "tools[0].function.parameters.properties.a.enum", "list of values"),
        (with_schema({"properties": {"a": {"items": [{"type": "x"}]}}}),
         "tools[0].function.parameters.properties.a.items[0].type", "'x'"),
        (with_schema({"properties": {"a": {"anyOf": [5]}}}),
         "tools[0].function.parameters.properties.a.anyOf[0]", "is 5"),
        (with_schema({"properties": {"a": {"minLength": -1}}}),
         "tools[0].function.parameters.properties.a.minLength", "whole number"),
        (with_schema({"properties": {"a": {"maximum": "9"}}}),
         "tools[0].function.parameters.properties.a.maximum", "a number"),
        (with_schema({"required": "a"}), "tools[0].function.parameters.required", "list of names"),
        (with_schema({"required": [5]}), "tools[0].function.parameters.required", "list of names"),
        (with_schema({"$ref": 5}), "tools[0].function.parameters.$ref", "a text"),
        (with_schema({"additionalProperties": 5}),
         "tools[0].function.parameters.additionalProperties", "is 5"),
        (with_schema(nested_schema(200)), None, "nested deeper than 64 levels"),
        (with_schema({"default": json.loads("[" * 400 + "]" * 400)}), None, "nested too deeply"),
    ],
)  # fmt: skip
async def test_malformed_tools(server: Server, tools: Any, param: str | None, what: str) -> None:
    for choice in ("auto", "none"):
        status, body = await server.chat(tools=tools, tool_choice=choice)
        assert status == 400
        error = body["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert param is None or error["param"] == param
        assert what in error["message"]
    assert server.service.specs == []


async def test_schemas_that_are_well_formed(server: Server) -> None:
    schemas: list[Any] = [
        None,
        {},
        {"type": "object"},
        {"type": "object", "properties": {"a": True, "b": {}}, "required": ["a"]},
        {"properties": {"a": {"type": ["string", "null"], "enum": ["x", None]}}, "x-own": 5},
        {"$defs": {"n": {"type": "integer", "minimum": 0}},
         "properties": {"a": {"$ref": "#/$defs/n"}}},
        {"properties": {"a": {"anyOf": [{"type": "string"}, {"items": {"type": "number"}}]}}},
        nested_schema(20),
    ]  # fmt: skip
    for schema in schemas:
        status, body = await server.chat(tools=with_schema(schema))
        assert status == 200, body
    bare = {"type": "function", "function": {"name": "f", "strict": False}}
    assert (await server.chat(tools=[bare]))[0] == 200
    assert (
        '{"type": "function", "function": {"name": "f", "description": "", '
        '"parameters": {"type": "object", "properties": {}}}}'
    ) in prompt(server)


@pytest.mark.parametrize("form", FORMS)
async def test_histories_of_all_kinds(start_server: StartServer, form: str) -> None:
    server = await start(start_server, FORMS[form][0])

    def turn(arguments: Any, **more: Any) -> list[Any]:
        call = {"id": "call_1", "type": "function", "function": {"name": "f", **arguments}}
        return [
            *ASK,
            {"role": "assistant", "content": None, "tool_calls": [call, call], **more},
            {"role": "tool", "tool_call_id": "call_1", "content": "r1"},
            {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "r2"}]},
        ]

    for arguments in ('{"a": 1}', "", '{"a": "unfin', "[1]", "5", {"a": {"b": [1]}}, None):
        status, body = await server.chat(messages=turn({"arguments": arguments}), tools=TOOLS)
        assert status == 200, body
        text = prompt(server)
        assert text.count("<tool_call>\n") == 2
        assert "<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n" in text
        if isinstance(arguments, str) and "unfin" in arguments:
            assert arguments in text
    assert (await server.chat(messages=turn({}, content="words")))[0] == 200  # no tools any more
    assert (await server.chat(messages=turn({}, tool_calls=[])))[0] == 200
    deep = '{"a":' * 300 + "1" + "}" * 300
    assert (await server.chat(messages=turn({"arguments": deep})))[0] == 200
    for message, param in (
        ({"role": "user", "content": "x", "tool_calls": turn({})[1]["tool_calls"]}, "tool_calls"),
        ({"role": "assistant", "content": "x", "function_call": {"name": "f"}}, "function_call"),
    ):
        status, body = await server.chat(messages=[*ASK, message])
        assert (status, body["error"]["param"]) == (400, f"messages[1].{param}")


async def test_a_model_without_tools_refuses_a_history_with_calls(
    start_server: StartServer,
) -> None:
    server = await start_server(text=small_model())
    messages = [*ASK, CALLED, *ASK]
    status, body = await server.chat(messages=messages)
    assert (status, body["error"]["param"]) == (400, "messages[1].tool_calls")
    messages[1] = {"role": "assistant", "content": "A", "tool_calls": []}
    assert (await server.chat(messages=messages))[0] == 200


@pytest.mark.parametrize("form", FORMS)
async def test_stop_strings(start_server: StartServer, form: str) -> None:
    template, weather, clock = FORMS[form]
    server = await start(start_server, template)
    saying(server, f"{clock}\n{weather}")
    answer = await both(server, stop="Köln")
    assert answer["finish"] == "stop"  # the second call was begun and never finished
    assert [name for name, _ in answer["calls"]] == ["clock", "get_weather"]
    answer = await both(server, stop="</tool_call>")
    assert answer == {"content": None, "calls": [("clock", "{}")], "finish": "tool_calls"}


async def test_choices_and_logprobs(server: Server) -> None:
    weather = FORMS["json"][1]
    server.service.script = server.service.answering(weather, "words", weather[:-20])
    _, body = await server.chat(tools=TOOLS, n=3, logprobs=True)
    called, said, broken = body["choices"]
    assert called["finish_reason"] == "tool_calls"
    assert (said["message"]["content"], said["finish_reason"]) == ("words", "stop")
    assert "tool_calls" not in said["message"]
    assert broken["finish_reason"] == "stop"
    ids = [c["message"]["tool_calls"][0]["id"] for c in (called, broken)]
    assert len(set(ids)) == 2
    pieces = [bytes(entry["bytes"]) for entry in called["logprobs"]["content"]]
    assert b"".join(pieces).decode() == weather


@pytest.mark.parametrize(
    ("template", "has_reasoning", "form"),
    [(QWEN3, True, "JSON in <tool_call> tags"), (CHATML, False, None)],
)
async def test_models_say_what_chats_have(
    start_server: StartServer, template: str, has_reasoning: bool, form: str | None
) -> None:
    server = await start(start_server, template)
    async with server.http.get(server.url + "/v1/models/tiny") as response:
        found = (await response.json())["strata"]
    assert (found["has_reasoning"], found["tool_form"]) == (has_reasoning, form)
