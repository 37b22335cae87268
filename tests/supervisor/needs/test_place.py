"""Placing needs in modes: served by the first that has them, or refused with what is missing."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strata.serving.needs import Misfit, Mode, Need, misfit, mode_name, needs_of, place
from strata_protocol.features import BASE_FIELDS, FIELDS, Feature, asked_fields, declare, known
from strata_protocol.messages import LogitBias, ModePlan, SamplingParams

DRAFTS = Mode("batch 4, up to 3 drafts", frozenset({Feature.SAMPLING, Feature.TOP_K}))
PLAIN = Mode("batch 4, no drafts", DRAFTS.features | {Feature.PENALTIES, Feature.LOGPROBS})
GREEDY = SamplingParams(temperature=0.0)

needs_lists = st.lists(st.sampled_from(Feature), unique=True).map(
    lambda features: [Need(f, f"asks_{f}", f"param_{f}") for f in features]
)
modes_lists = st.lists(
    st.builds(Mode, st.sampled_from(["a", "b", "c"]), st.frozensets(st.sampled_from(Feature))),
    min_size=1,
    max_size=4,
)


def need(feature: Feature) -> Need:
    return Need(feature, feature.value, feature.value)


@given(needs_lists, modes_lists)
def test_place_serves_routes_or_refuses(needs: list[Need], modes: list[Mode]) -> None:
    wanted = {n.feature for n in needs}
    able = [mode for mode in modes if wanted <= mode.features]
    match place(needs, modes):
        case Mode() as mode:
            assert mode is able[0]
        case Misfit(text, param):
            assert not able
            fewest = min(len(wanted - mode.features) for mode in modes)
            lacks = [
                [n for n in needs if n.feature not in mode.features]
                for mode in modes
                if len(wanted - mode.features) == fewest
            ]
            assert any(param == n.param for n in lacks[0])
            if len(modes) == 1:
                assert all(f"{n.asked_by} needs {n.feature}" in text for n in lacks[0])


def test_routed_past_a_mode_that_lacks_it() -> None:
    assert place([need(Feature.TOP_K)], [DRAFTS, PLAIN]) is DRAFTS
    assert place([need(Feature.TOP_K), need(Feature.PENALTIES)], [DRAFTS, PLAIN]) is PLAIN
    assert place([], [DRAFTS, PLAIN]) is DRAFTS


def test_sentences() -> None:
    schema = Need(Feature.GRAMMAR, "response_format json_schema", "response_format")
    assert place([schema], [PLAIN]) == Misfit(
        "response_format json_schema needs grammar, which the running mode (batch 4, no drafts)"
        " does not have",
        "response_format",
    )
    assert place([need(Feature.TOP_K), schema], [DRAFTS, PLAIN]) == Misfit(
        "response_format json_schema needs grammar, which none of the running modes"
        " (batch 4, up to 3 drafts; batch 4, no drafts) has",
        "response_format",
    )
    other = Mode("batch 1", frozenset({Feature.MIN_P}))
    found = place([need(Feature.MIN_P), need(Feature.TOP_K)], [DRAFTS, other])
    assert found == Misfit(
        "no running mode has all that the request needs: the mode (batch 4, up to 3 drafts) lacks"
        " min_p; the mode (batch 1) lacks top_k",
        "min_p",
    )
    assert misfit([need(Feature.TOP_K)], ()) is None
    assert misfit([need(Feature.TOP_K), schema], ()) == Misfit(
        "response_format json_schema needs grammar, which no mode of this server has",
        "response_format",
    )
    with pytest.raises(ValueError, match="the modes that run"):
        place([], [])


def test_names_of_modes() -> None:
    plan = ModePlan(
        batch=4, max_context=8, kv="f16", prefill=8, activations="f32", threads=1, kv_tokens=32
    )
    named = [
        mode_name(msgspec.structs.replace(plan, batch=batch, spec=spec, batch_mtp=batched))
        for batch, spec, batched in [(4, 0, False), (4, 3, True), (4, 1, False), (1, 3, False)]
    ]
    assert named == [
        "batch 4, no drafts",
        "batch 4, up to 3 drafts",
        "batch 4, up to 1 draft while alone",
        "batch 1, up to 3 drafts",
    ]


# Each field at a value that asks for its feature.
ASKING: dict[str, object] = {
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.5,
    "min_p": 0.1,
    "typical_p": 0.5,
    "repetition_penalty": 1.1,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.5,
    "logit_bias": [LogitBias(1, 1.0)],
    "min_tokens": 1,
    "ignore_eos": True,
    "choice": 1,
    "logprobs": 0,
    "prompt_logprobs": 0,
}


def test_every_field_asks_for_a_feature_or_belongs_to_the_base() -> None:
    mapped = [field for fields in FIELDS.values() for field in fields]
    assert sorted([*mapped, *BASE_FIELDS]) == sorted(SamplingParams.__struct_fields__)
    assert sorted(mapped) == sorted(ASKING)


@pytest.mark.parametrize("field", ASKING)
def test_a_field_asks_for_its_feature(field: str) -> None:
    params = msgspec.structs.replace(GREEDY, **{field: ASKING[field]})
    (feature,) = [f for f, fields in FIELDS.items() if field in fields]
    assert asked_fields(params) == {feature: field}
    assert declare(params).needs == [feature.value]
    (found,) = needs_of(params)
    body_name = {"choice": "n", "prompt_logprobs": "echo"}.get(field, field)
    assert (found.feature, found.param) == (feature, body_name)


def test_the_base_asks_for_nothing() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=7, stop_ids=[1], seed=3, needs=["grammar"])
    assert asked_fields(params) == {}
    assert declare(params).needs == []


def test_names_of_a_newer_engine_are_of_no_use() -> None:
    assert known(["top_k", "grammar", "telepathy"]) == {Feature.TOP_K}
