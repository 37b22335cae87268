"""Reasoning and calls outlive engines: what is told apart follows from the generated ids alone, so
an answer that goes on with another engine has the same parts, and a stream the same as a whole."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from strata.text.model import TextModel

from tests.api.sse_reader import Stream, read_stream
from tests.api.test_resume import KILLED, World, dying_at, immortal, serving
from tests.text.small_models import small_model
from tests.text.test_tool_calls import in_json, in_xml
from tests.text.thinking_templates import QWEN35

CASES = 80
WORDS = (
    "<think>", "</think>", "\n", " ", "hm", "Hello", "<tool_call>", "</tool_call>", "<function=f>",
    "<parameter=s>", "</parameter>", "</function>", '{"name": "f", "arguments": {', '"s": "x"', "}",
    "}}", "<", "tool_call>", "STOP", in_json("f", {"s": "a"}), in_xml("f", {"i": "1"}),
)  # fmt: skip
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"i": {"type": "integer"}}}},
}


def wordy_model() -> tuple[TextModel, list[int]]:
    """A model that has these words as tokens, and their ids."""
    base = small_model().vocabulary
    new = [word for word in WORDS if word not in base.tokens]
    tokens = [*base.tokens, *new]
    types = [*base.kinds, *[4] * len(new)]
    model = small_model(template=QWEN35, tokens=tokens, token_type=types, context=4096)
    return model, [tokens.index(word) for word in WORDS]


def any_chat(rng: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"question {rng.randint(0, 10**6)}"}],
        "max_tokens": rng.randint(4, 40),
        "n": rng.choice([1, 1, 2]),
        "seed": rng.randint(0, 1000),
        "enable_thinking": rng.random() < 0.7,
        "parallel_tool_calls": rng.random() < 0.8,
    }
    if rng.random() < 0.8:
        body["tools"] = [TOOL]
        if not body["enable_thinking"] and rng.random() < 0.3:
            body["tool_choice"] = "required"
    if rng.random() < 0.3:
        body["stop"] = "STOP"
    if rng.random() < 0.3:
        body["logprobs"] = True
    return body


async def whole(world: World, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Each choice, without what is random."""
    async with world.http.post(world.url + "/v1/chat/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
    return choices_of(answer)


def choices_of(answer: Any) -> list[dict[str, Any]]:
    choices = []
    for choice in answer["choices"]:
        message = choice["message"]
        choices.append(
            {
                "content": message["content"] or "",
                "reasoning": message.get("reasoning_content", ""),
                "calls": [call["function"] for call in message.get("tool_calls", [])],
                "finish": choice["finish_reason"],
                "logprobs": (choice["logprobs"] or {"content": []})["content"],
                "thought": answer["usage"]["completion_tokens_details"],
            }
        )
    return choices


async def streamed(world: World, body: dict[str, Any]) -> list[dict[str, Any]]:
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    async with world.http.post(world.url + "/v1/chat/completions", json=body) as response:
        return folded(await read_stream(response), body["n"])


def folded(stream: Stream, count: int) -> list[dict[str, Any]]:
    """Each choice of a stream, as `choices_of` tells those of a whole answer."""
    assert (stream.done, stream.errors) == (1, [])
    choices = [
        {"content": "", "reasoning": "", "calls": [], "finish": None, "logprobs": []}
        for _ in range(count)
    ]
    for chunk in stream.chunks:
        for part in chunk["choices"]:
            choice: dict[str, Any] = choices[part["index"]]
            delta = part["delta"]
            choice["content"] += delta.get("content", "")
            choice["reasoning"] += delta.get("reasoning_content", "")
            for piece in delta.get("tool_calls", ()):
                if "id" in piece:
                    choice["calls"].append({"name": piece["function"]["name"], "arguments": ""})
                choice["calls"][piece["index"]]["arguments"] += piece["function"]["arguments"]
            choice["logprobs"] += (part["logprobs"] or {"content": []})["content"]
            choice["finish"] = part["finish_reason"] or choice["finish"]
    thought = stream.chunks[-1]["usage"]["completion_tokens_details"]
    return [choice | {"thought": thought} for choice in choices]


async def test_parts_do_not_depend_on_deaths() -> None:
    text, ids = wordy_model()
    resumes = 0
    seen: dict[str, int] = {"tool_calls": 0, "stop": 0, "length": 0, "reasoning": 0, "broken": 0}
    async with serving(immortal, text) as calm, serving(immortal, text) as stormy:
        calm.engine.tokens = stormy.engine.tokens = ids
        for case in range(CASES):
            rng = random.Random(case)
            bodies = [any_chat(rng) for _ in range(rng.choice([1, 2]))]
            calm.engine.step_count = 0
            wanted = await asyncio.gather(*(whole(calm, body) for body in bodies))
            steps = max(calm.engine.step_count, 1)
            for ask in (streamed, whole):
                stormy.engine.death = dying_at({rng.randint(1, steps): KILLED})
                stormy.engine.loses_last = rng.random() < 0.5
                stormy.engine.step_count = 0
                before = stormy.engine.resumes
                got = await asyncio.gather(*(ask(stormy, body) for body in bodies))
                assert got == wanted, f"case {case}: {bodies}"
                resumes += stormy.engine.resumes - before
            for choice in (choice for choices in wanted for choice in choices):
                seen[choice["finish"]] += 1
                seen["reasoning"] += bool(choice["reasoning"])
                seen["broken"] += bool(choice["calls"]) and choice["finish"] != "tool_calls"
    assert resumes > CASES
    assert all(count > 5 for count in seen.values()), seen
