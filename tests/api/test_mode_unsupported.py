"""What the running mode lacks is refused by name, before any work, in each endpoint's shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from strata.serving.needs import Mode
from strata.serving.request import Failed, RejectedError
from strata_protocol.features import FIELDS, Feature
from strata_protocol.messages import ErrorKind

from tests.api.conftest import Server
from tests.api.fake_service import facts
from tests.api.test_errors import check_shape

RUNS = "which the running mode (batch 8, no drafts) does not have"


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, *parts]}]}


@pytest.mark.parametrize(
    ("fields", "param", "asked", "feature"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format", "response_format json_schema", "grammar",
        ),
        (
            {"response_format": {"type": "json_object"}},
            "response_format", "response_format json_object", "grammar",
        ),
        ({"guided_json": {}}, "guided_json", "guided_json", "grammar"),
        ({"guided_regex": "a+"}, "guided_regex", "guided_regex", "grammar"),
        ({"guided_choice": ["a"]}, "guided_choice", "guided_choice", "grammar"),
        ({"structured_outputs": {}}, "structured_outputs", "structured_outputs", "grammar"),
        ({"grammar": "root ::= x"}, "grammar", "grammar", "grammar"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids", "allowed_token_ids", "allowed_tokens"),
        ({"bad_words": ["a"]}, "bad_words", "bad_words", "bad_words"),
        ({"mirostat": 2}, "mirostat", "mirostat", "mirostat"),
        ({"dry_multiplier": 0.8}, "dry_multiplier", "dry_multiplier", "dry"),
        ({"xtc_probability": 0.5}, "xtc_probability", "xtc_probability", "xtc"),
        ({"top_n_sigma": 1}, "top_n_sigma", "top_n_sigma", "top_n_sigma"),
        ({"dynatemp_range": 0.5}, "dynatemp_range", "dynatemp_range", "dynamic_temperature"),
        ({"use_beam_search": True}, "use_beam_search", "use_beam_search", "beam_search"),
        ({"lora": [{"id": 0, "scale": 1}]}, "lora", "lora", "lora"),
        ({"audio": {"voice": "x"}}, "audio", "audio", "audio"),
        ({"modalities": ["text", "audio"]}, "modalities", "modalities audio", "audio"),
        (
            user({"type": "image_url", "image_url": {"url": "data:,"}}),
            "messages[0].content[1]", "messages[0].content[1] image_url", "images",
        ),
        (
            user({"type": "input_audio", "input_audio": {}}),
            "messages[0].content[1]", "messages[0].content[1] input_audio", "audio",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]},
            "messages[0].audio", "messages[0].audio", "audio",
        ),
    ],
)  # fmt: skip
async def test_a_body_that_needs_more(
    server: Server, fields: dict[str, Any], param: str, asked: str, feature: str
) -> None:
    status, body = await server.chat(**fields)
    error = check_shape(body)
    assert (status, error["code"], error["param"]) == (400, "mode_unsupported", param)
    assert error["message"] == f"{asked} needs {feature}, {RUNS}"
    assert server.service.specs == []
    server.service.facts = None
    status, body = await server.chat(**fields)
    assert (status, body["error"]["code"]) == (400, "mode_unsupported")
    assert body["error"]["message"] == f"{asked} needs {feature}, which no mode of this server has"
    assert server.service.specs == []


async def test_every_need_is_named(server: Server) -> None:
    status, body = await server.complete(grammar="x", guided_json={}, mirostat=1, lora=[1])
    assert status == 400
    assert body["error"]["message"] == (
        f"guided_json needs grammar, mirostat needs mirostat and lora needs lora, {RUNS}"
    )


async def test_embeddings(server: Server) -> None:
    status, body = await server.post("/v1/embeddings", {"input": "Hi", "model": "tiny"})
    assert (status, body["error"]["code"]) == (400, "mode_unsupported")
    assert body["error"]["message"] == f"/v1/embeddings needs embeddings, {RUNS}"
    assert (await server.post("/v1/embeddings", {"model": "tiny"}))[0] == 400
    assert (await server.post("/v1/embeddings", {"input": "", "model": "other"}))[0] == 404


async def test_no_feature_of_the_engine_lets_through_what_cannot_be_passed_on(
    server: Server,
) -> None:
    everything = frozenset(Feature)
    server.service.facts = replace(
        facts(), serving=[Mode("batch 8, no drafts", everything & FIELDS.keys())]
    )
    assert (await server.chat(grammar="x"))[1]["error"]["code"] == "mode_unsupported"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_refusal_of_serving_keeps_its_field(server: Server, is_streamed: bool) -> None:
    text = "top_k needs top_k, which the running mode (batch 8, no drafts) does not have"
    server.service.rejection = RejectedError(
        ErrorKind.UNSUPPORTED, "mode_unsupported", text, param="top_k"
    )
    status, body = await server.chat(top_k=5, stream=is_streamed)
    error = check_shape(body)
    assert status == 400
    assert (error["code"], error["param"], error["message"]) == ("mode_unsupported", "top_k", text)


async def test_a_refusal_of_the_engine_keeps_its_code(server: Server) -> None:
    failed = Failed(ErrorKind.UNSUPPORTED, "mode_unsupported", "top_k needs top_k", "top_k")
    server.service.script = lambda _: [failed]
    status, body = await server.complete(top_k=5)
    assert (status, body["error"]["code"], body["error"]["param"]) == (
        400, "mode_unsupported", "top_k",
    )  # fmt: skip
