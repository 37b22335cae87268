"""Prompts of chats with tools, calls and reasoning: what the template sees, and what stays a
client's words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strata.text.answer import AnswerShape
from strata.text.answer_format import ToolForm
from strata.text.chat_template import ChatMessage, PastCall
from strata.text.model import TextModel

from tests.text.small_models import CHATML, metadata, small_model
from tests.text.test_tool_calls import TOOLS
from tests.text.thinking_templates import ALWAYS_THINKS, EFFORT, QWEN3, QWEN35

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def tagged_model(template: str, kind: int = 4) -> TextModel:
    """A model whose vocabulary has the tags as tokens of their own, as Qwen's have; `kind` 3 makes
    them control tokens."""
    base = small_model().vocabulary
    tokens = [*base.tokens, *(tag for tag in TAGS if tag not in base.tokens)]
    types = [*base.kinds, *[kind] * (len(tokens) - len(base.tokens))]
    for tag in TAGS:
        types[tokens.index(tag)] = kind
    return small_model(template=template, tokens=tokens, token_type=types)


MODELS = {name: tagged_model(t) for name, t in (("json", QWEN3), ("xml", QWEN35))}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"s": {}}}},
}
ASK = ChatMessage("user", "Hi")


def shown(model: TextModel, ids: list[int]) -> str:
    return b"".join(model.vocabulary.pieces[i] for i in ids).decode()


def counts(model: TextModel, ids: list[int]) -> dict[str, int]:
    """How often each tag's own token occurs."""
    return {tag: ids.count(model.vocabulary.tokens.index(tag)) for tag in TAGS}


@pytest.mark.parametrize(
    ("template", "enable_thinking", "is_reasoning"),
    [
        (QWEN3, None, False), (QWEN3, True, False), (QWEN3, False, False),
        (QWEN35, None, True), (QWEN35, True, True), (QWEN35, False, False),
        (ALWAYS_THINKS, False, True), (EFFORT, None, False),
    ],
)  # fmt: skip
def test_where_the_answer_begins(
    template: str, enable_thinking: bool | None, is_reasoning: bool
) -> None:
    variables = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    prompt = tagged_model(template).prepare_chat([ASK], variables)
    assert prompt.is_reasoning == is_reasoning


def test_a_client_cannot_open_the_reasoning() -> None:
    model = small_model(template="{{ messages[0].content }}{# </think> <think> #}")
    assert not model.prepare_chat([ChatMessage("user", "<think>")]).is_reasoning


def test_tools_calls_and_results() -> None:
    messages = [
        ChatMessage("system", "Be brief."),
        ASK,
        ChatMessage(
            "assistant", "", reasoning="hm", calls=(PastCall("f", {"s": "ü", "i": 1}, "call_1"),)
        ),
        ChatMessage("tool", "42", call_id="call_1"),
        ChatMessage("tool", "43", call_id="call_2"),
    ]
    head = (
        "<|im_start|>system\nBe brief.\n\nFunctions:\n<tools>\n"
        '{"type": "function", "function": {"name": "f", "parameters": '
        '{"type": "object", "properties": {"s": {}}}}}\n</tools>\n'
        "Call one as <tool_call><|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\n"
        "\n<tool_call>\n"
    )
    tail = (
        "\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n42\n</tool_response>\n"
        "<tool_response>\n43\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    calls = {
        "json": '{"name": "f", "arguments": {"s": "ü", "i": 1}}',
        "xml": "<function=f>\n<parameter=s>\nü\n</parameter>\n<parameter=i>\n1\n</parameter>\n"
        "</function>",
    }
    for name, model in MODELS.items():
        prompt = model.prepare_chat(messages, tools=[WEATHER], opening="")
        end = "<think>\n" if name == "xml" else ""
        assert shown(model, prompt.ids) == head + calls[name] + tail + end
        opened = model.prepare_chat([ASK], {"enable_thinking": False}, opening="<tool_call>\n")
        assert shown(model, opened.ids).endswith("<think>\n\n</think>\n\n<tool_call>\n")
        assert counts(model, opened.ids)["<tool_call>"] == 1


def test_broken_arguments_are_shown_as_they_were() -> None:
    call = PastCall("f", '{"s": "unfin')
    prompt = MODELS["json"].prepare_chat([ASK, ChatMessage("assistant", "", calls=(call,))])
    assert '"arguments": {"s": "unfin}' in shown(MODELS["json"], prompt.ids)


def test_reasoning_of_earlier_turns_is_the_templates_business() -> None:
    model = MODELS["json"]
    old = [ASK, ChatMessage("assistant", "A", reasoning="old"), ASK]
    assert "old" not in shown(model, model.encode_chat(old))
    current = [ASK, ChatMessage("assistant", "A", reasoning="new")]
    assert "<think>\nnew\n</think>\n\nA" in shown(model, model.encode_chat(current))
    # An answer that still holds its tags is told apart the same way.
    raw = [ASK, ChatMessage("assistant", "<think>\nnew\n</think>\n\nA")]
    assert model.encode_chat(raw) == model.encode_chat(current)
    # Where the template splits by itself, it sees the tags.
    for kind in (3, 4):
        effort = tagged_model(EFFORT, kind)
        ids = effort.encode_chat([ASK, ChatMessage("assistant", "<think>\nold\n</think>\n\nA")])
        assert "old" not in shown(effort, ids)
        user = effort.encode_chat([ChatMessage("user", "x <think>")])
        assert counts(effort, user)["<think>"] == 0
    assert effort.encode_chat([ASK], {"reasoning_effort": "high"}) != effort.encode_chat([ASK])


@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None)
@given(
    words=st.lists(
        st.sampled_from([*TAGS, "<|im_end|>", "<|im_start|>", "<", "think", ">", "a", " ", "\n"]),
        max_size=6,
    ).map("".join)
)
def test_tags_of_a_client_are_words(name: str, words: str) -> None:
    """In every place that a client writes, a tag is the characters it wrote."""
    model = MODELS[name]

    def chat(text: str) -> list[ChatMessage]:
        call = PastCall("f", {"s": text, f"k{text}": [text]}, "call_1")
        return [
            ChatMessage("system", text + "."),
            ChatMessage("user", text),
            ChatMessage("assistant", "A", reasoning=f"r{text}", calls=(call,)),
            ChatMessage("tool", text, call_id=text),
        ]

    def tool(text: str) -> Any:
        return {"type": "function", "function": {"name": "f", "description": text}}

    plain = model.prepare_chat(chat("x"), tools=[tool("x")]).ids
    prompt = model.prepare_chat(chat(words), tools=[tool(words)]).ids
    assert counts(model, prompt) == counts(model, plain)
    control = [i for i in prompt if i in model.vocabulary.hidden]
    assert control == [i for i in plain if i in model.vocabulary.hidden]
    assert shown(model, prompt).count(f"user\n{words}<|im_end|>") >= 1


def test_hidden_tags_are_revealed_to_the_parser_only() -> None:
    model = tagged_model(QWEN3, kind=3)
    tokens = model.vocabulary.tokens
    revealed = model.revealed_ids(AnswerShape(thinks=True, tools=TOOLS))
    assert {tokens[i] for i in revealed} == set(TAGS[:4])
    assert {tokens[i] for i in model.revealed_ids(AnswerShape(thinks=True))} == set(TAGS[:2])
    assert model.revealed_ids(AnswerShape()) == set()
    assert MODELS["json"].revealed_ids(AnswerShape(thinks=True, tools=TOOLS)) == set()


def test_a_template_of_its_own_for_tools() -> None:
    more: Any = {"tokenizer.chat_template.tool_use": QWEN3}
    vocabulary = tagged_model(QWEN3).vocabulary
    fields: Any = {"tokens": [*vocabulary.tokens], "token_type": [*vocabulary.kinds]}
    model = TextModel(metadata(template=CHATML, **fields) | more)
    assert model.answer_format.tool_form is ToolForm.JSON
    assert model.answer_format.thinks
    assert "Functions:" in shown(model, model.prepare_chat([ASK], tools=[WEATHER]).ids)
    assert shown(model, model.encode_chat([ASK])) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    broken = metadata(template=CHATML) | {"tokenizer.chat_template.tool_use": "{% if %}"}
    assert TextModel(broken).has_chat
    assert not TextModel(broken).answer_format.has_tools
