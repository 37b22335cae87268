"""The real engine with a model of recurrent layers: it proves its modes, and a conversation that
begins with a kept state gets what it gets without a prefix cache."""

from __future__ import annotations

import dataclasses
import random
import time
from pathlib import Path

import pytest
from strata_protocol import messages as m

from tests.model.sparse_model import write_sparse_model
from tests.system.engine_driver import Engine, submit
from tools.synth_model import Shape, write_model
from tools.synth_shapes import RECURRENT, STREAMS

SHAPE = Shape(architecture="qwen35", layers=4, head_dim=32, rope_dims=16, context=2048)
EXPERTS = {"experts": 6, "shared_ff": 64}
TURN = 40  # tokens of an answer


@pytest.fixture(scope="module", params=(*RECURRENT, STREAMS))
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    shape = dataclasses.replace(SHAPE, architecture=architecture, **EXPERTS, top_k=64)
    return write_model(folder / "m.gguf", shape, kind="q8_0")


def words(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(SHAPE.vocab), k=length)


def answer(engine: Engine, rid: int, ids: list[int]) -> tuple[list[int], int]:
    engine.send(submit(rid, ids, max_tokens=TURN, ignore_eos=True))
    done = engine.done(rid)
    return list(engine.outputs[rid].ids), done.cached_tokens


def conversation(engine: Engine) -> list[tuple[list[int], int]]:
    system, turns = words(150, 1), []
    # Two that share a beginning, then a third: the second leaves a state where the first differs.
    for seed in (2, 3, 4):
        turns.append(answer(engine, len(turns), system + words(30, seed)))
    # The next turn of the last one, behind its answer.
    history = system + words(30, 4) + turns[-1][0]
    turns.append(answer(engine, len(turns), history + words(20, 5)))
    turns.append(answer(engine, len(turns), history + words(20, 5)))
    return turns


def test_prefixes_with_kept_states_give_the_same_text(engine_path: Path, model: Path) -> None:
    results = {}
    for is_cached in (True, False):
        with Engine(engine_path) as engine:
            ready = engine.boot(model, batch=4, prefill=64, kv_tokens=8192, prefix_cache=is_cached)
            assert ready.plan.prefix_cache is is_cached
            assert all(probe.ok and not probe.reasons for probe in engine.probes)
            results[is_cached] = conversation(engine)
    assert [text for text, _ in results[True]] == [text for text, _ in results[False]]
    assert [cached for _, cached in results[False]] == [0] * 5
    first, second, third, next_turn, again = (cached for _, cached in results[True])
    assert (first, second) == (0, 0)  # nothing kept yet where they part
    assert third == 128  # the shared beginning in whole pages
    assert next_turn == 192  # the last page border in the answer: 180 + 40 tokens were known
    assert again == 224


def test_drafts_beside_others_change_nothing(
    engine_path: Path, architecture: str, tmp_path: Path
) -> None:
    shape = dataclasses.replace(
        SHAPE, architecture=architecture, draft_layers=1, tied=False, **EXPERTS
    )
    path = write_model(tmp_path / "d.gguf", shape, predictable=True)
    texts, drafted = {}, {0: 0, 3: 0}
    for spec, mtp in ((3, "model"), (0, "off")):
        with Engine(engine_path, *(["--fixed-drafts"] if spec else [])) as engine:
            ready = engine.boot(path, batch=4, prefill=32, kv_tokens=4096, spec=spec, mtp=mtp)
            assert (ready.plan.spec, ready.plan.batch_mtp) == (spec, spec > 0)
            engine.send(
                *(
                    submit(rid, words(40 + rid, rid), max_tokens=TURN, ignore_eos=True)
                    for rid in range(4)
                )
            )
            for rid in range(4):
                drafted[spec] += engine.done(rid).drafted_tokens
            texts[spec] = [list(engine.outputs[rid].ids) for rid in range(4)]
    assert texts[3] == texts[0]
    assert drafted[3] > drafted[0] == 0


LARGE = Shape(
    draft_layers=1,
    head_dim=256,
    rope_dims=64,
    context=262144,
    tied=False,
    state_size=128,
    key_heads=16,
    value_heads=32,
    layers=48,
    width=2048,
    heads=16,
    kv_heads=2,
    expert_ff=512,
    shared_ff=512,
)
PUBLISHED = (  # sizes of models of 27, 35 and 80 thousand million parameters
    dataclasses.replace(
        LARGE,
        architecture="qwen35",
        layers=64,
        width=5120,
        heads=24,
        kv_heads=4,
        ff=17408,
        vocab=248320,
        value_heads=48,
    ),
    dataclasses.replace(
        LARGE, architecture="qwen35moe", layers=40, vocab=248320, experts=256, experts_used=8
    ),
    dataclasses.replace(
        LARGE, architecture="qwen3next", vocab=151936, experts=512, experts_used=10
    ),
)


@pytest.mark.parametrize("shape", PUBLISHED, ids=lambda shape: shape.architecture)
@pytest.mark.parametrize("spec", [0, 3])
def test_a_large_model_is_planned_in_time(
    engine_path: Path, shape: Shape, spec: int, tmp_path: Path
) -> None:
    """States are counted apart from keys and values, which a quarter of the layers has."""
    path = write_sparse_model(tmp_path / "m.gguf", shape, ("q4_k", "q6_k"), {"_inp": "f32"})
    with Engine(engine_path) as engine:
        engine.expect(m.Hello)
        drafts = {"spec": spec} if spec else {"mtp": "off"}
        engine.send(engine.offer(path, batch=4, **drafts))
        begin = time.monotonic()
        caps = engine.expect(m.Caps)
        assert time.monotonic() - begin < 2
    wanted = caps.configurations[0]
    assert {caps.reasons[i].code for i in wanted.missing} <= {"mem.insufficient"}
    assert wanted.plan.spec == spec
    parts = {part.name: part.bytes for part in wanted.memory}
    recurrent, values = shape.layers * 3 // 4, shape.value_heads * 128
    channels = 2 * 16 * 128 + values
    logged = 2 * spec * (16 * 128 + values + shape.value_heads)  # rows that may be taken back
    state = values * 128 + (3 + spec) * channels + logged  # floats of a layer
    batch = wanted.plan.batch
    assert parts["state"] == pytest.approx(batch * recurrent * state * 4, rel=1e-3)
    kv_layer = wanted.plan.kv_tokens * 2 * shape.kv_heads * 256 * 2
    assert parts["kv"] == shape.layers // 4 * kv_layer
    assert parts.get("drafter.kv", 0) == (kv_layer if spec else 0)
