"""Whatever a client writes about tools is served, or refused with an error of ours. Nothing else
comes out, and what is accepted goes through the template."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strata.api.body import decode_body
from strata.api.chat_prompt import read_messages, template_variables
from strata.api.chat_tools import read_tools
from strata.api.errors import ApiError
from strata.api.schemas import ChatRequest
from strata.text.answer import AnswerParser
from strata.text.errors import TemplateError
from strata.text.tool_schema import SchemaError, check_parameters

from tests.text.test_chat_prompts import MODELS

SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-2, 2) | st.sampled_from(
    ["", "f", "x", "string", "integer", "object", "array", "null", "function", "required", "auto",
     "#/$defs/a", "<think>", "<|im_end|>", '{"a": 1}', "{", "call_1"]
)  # fmt: skip
KEYS = st.sampled_from(
    ["type", "function", "name", "description", "parameters", "strict", "properties", "required",
     "items", "enum", "anyOf", "oneOf", "allOf", "$ref", "$defs", "a", "additionalProperties",
     "minimum", "maxLength", "const", "default", "arguments", "id", "<tool_call>"]
)  # fmt: skip
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
SCHEMAS = st.recursive(
    st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "boolean", "object"])}),
    lambda inner: st.fixed_dictionaries(
        {}, optional={
            "type": st.sampled_from(["object", "array", ["string", "null"]]),
            "properties": st.dictionaries(KEYS, inner, max_size=3),
            "items": inner, "anyOf": st.lists(inner, min_size=1, max_size=3),
            "$defs": st.dictionaries(KEYS, inner, max_size=2), "$ref": st.just("#/$defs/a"),
            "enum": st.lists(SCALARS, min_size=1, max_size=3), "description": st.text(max_size=5),
        }
    ),
    max_leaves=10,
)  # fmt: skip
TOOLS = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries(
        {"name": st.sampled_from(["f", "g", "get.it", "a b"])},
        optional={"parameters": SCHEMAS | JSON, "description": st.text(max_size=9) | JSON,
                  "strict": st.booleans()},
    )}
)  # fmt: skip
CALLS = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": st.sampled_from(["f", "zz", "<think>"])},
                                       optional={"arguments": SCALARS | JSON})},
    optional={"id": st.just("call_1"), "type": st.just("function")},
)  # fmt: skip
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
    optional={"content": st.text(max_size=9) | JSON,
              "tool_calls": st.lists(CALLS, max_size=2) | JSON,
              "tool_call_id": SCALARS, "reasoning_content": SCALARS, "name": SCALARS},
)  # fmt: skip
BODIES = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES, min_size=1, max_size=3)},
    optional={
        "tools": st.lists(TOOLS, max_size=3) | JSON,
        "tool_choice": st.sampled_from(["none", "auto", "required"]) | JSON,
        "parallel_tool_calls": st.booleans(),
        "enable_thinking": st.booleans(),
        "reasoning_effort": st.sampled_from(["none", "high", "x"]),
        "chat_template_kwargs": st.dictionaries(KEYS, SCALARS, max_size=2),
    },
)


@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=300)
@given(body=BODIES)
def test_bodies_are_served_or_refused(name: str, body: Any) -> None:
    model = MODELS[name]
    try:
        request = decode_body(msgspec.json.encode(body), ChatRequest)
        use = read_tools(request, model.answer_format)
        messages = read_messages(request.messages, model.answer_format)
        variables = template_variables(
            request, model.answer_format, is_call_forced=use.forced is not None
        )
    except ApiError as error:
        refusal = error
    else:
        try:
            prompt = model.prepare_chat(
                messages, variables, tools=use.definitions, opening=use.opening
            )
        except TemplateError:  # the template's own words; it may refuse what it likes
            return
        assert prompt.ids
        parser = AnswerParser(use.shape(thinks=True), is_opened=prompt.is_reasoning)
        assert [*parser.feed("x"), *parser.finish(is_whole=True)]
        return
    assert refusal.status == 400
    assert refusal.message


@settings(deadline=None, max_examples=300)
@given(schema=SCHEMAS)
def test_well_formed_schemas_are_accepted(schema: Any) -> None:
    if schema.get("type", "object") == "object":
        check_parameters(schema)


@settings(deadline=None, max_examples=300)
@given(schema=st.dictionaries(KEYS, JSON, max_size=5))
def test_any_schema_is_judged(schema: Any) -> None:
    try:
        check_parameters(schema)
    except SchemaError as error:
        refusal = error
    else:
        return
    assert refusal.path.startswith(".")
    assert str(refusal)
