"""Models with recurrent layers: other sizes against the NumPy reference, bits that do not depend on
what shares the step or on rows taken back, states that do not leak, metadata that is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import strata_engine_testing as engine

from tests.model.loading import load, logits_of
from tools.golden.reference_recurrent import RecurrentReference
from tools.synth_model import Shape, write_model
from tools.synth_shapes import RECURRENT

SHAPE = Shape(architecture="qwen35", layers=4, width=64, head_dim=32, rope_dims=16)
SHAPES = {
    name: dataclasses.replace(SHAPE, architecture=name, experts=6, shared_ff=48)
    for name in RECURRENT
}
LENGTH = 70


def tokens_of(seed: int, length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 320, size=length).astype(np.int32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "m.gguf", SHAPE)


class Feeder:
    """Rows of several sequences, each on pages of its own."""

    def __init__(self, model: engine.LoadedModel, sequences: int) -> None:
        self.model = model
        self.tables = np.arange(sequences * 4, dtype=np.uint32).reshape(sequences, 4)

    def step(self, *parts: tuple[int, int, np.ndarray]) -> list[np.ndarray]:
        """Each part is (sequence, position of its first row, tokens); logits of all its rows."""
        tokens = np.concatenate([part[2] for part in parts]).astype(np.int32)
        places = [np.arange(first, first + len(ids)) for _, first, ids in parts]
        out = self.model.step(
            tokens,
            np.concatenate(places).astype(np.uint32),
            np.concatenate([np.full(len(ids), s) for s, _, ids in parts]).astype(np.uint32),
            self.tables,
            np.arange(len(tokens), dtype=np.uint32),
        )
        return np.split(out, np.cumsum([len(ids) for _, _, ids in parts])[:-1])


@pytest.mark.parametrize("architecture", RECURRENT)
@pytest.mark.parametrize("isa", ["auto", "avx2", "portable"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"key_heads": 2, "value_heads": 2},
        {"key_heads": 2, "value_heads": 4},
        {"key_heads": 1, "value_heads": 3, "state_size": 32},
        {"key_heads": 2, "value_heads": 8, "taps": 3},
        {"attention_interval": 2, "taps": 1, "tied": False},
        {"attention_interval": 3, "taps": 8, "layers": 5},  # the last layer is recurrent
        {"state_size": 128, "key_heads": 1, "value_heads": 2, "attention_interval": 2},
    ],
    ids=str,
)
def test_sizes_match_the_reference(
    architecture: str, sizes: dict[str, int], isa: str, tmp_path: Path
) -> None:
    shape = dataclasses.replace(SHAPES[architecture], **sizes)
    path = write_model(tmp_path / "m.gguf", shape, seed=sum(map(int, sizes.values())))
    wanted = RecurrentReference(path).logits(tokens_of(1))
    got = logits_of(load(path, isa=isa), tokens_of(1))
    assert np.abs(got - wanted).max() <= 1e-3 * max(1.0, float(np.abs(wanted).max()))


@pytest.mark.parametrize("architecture", RECURRENT)
def test_rows_by_key_head(architecture: str, tmp_path: Path) -> None:
    """Only architectures whose value heads are grouped have files with one ssm_in."""
    shape = dataclasses.replace(SHAPES[architecture], fused_ssm_in=True, key_heads=3, value_heads=6)
    path = write_model(tmp_path / "m.gguf", shape, seed=10)
    if architecture != "qwen3next":
        with pytest.raises(engine.EngineError, match=r"ssm_in.weight has its rows by key head"):
            engine.model_facts(str(path))
        return
    wanted = RecurrentReference(path).logits(tokens_of(1))
    got = logits_of(load(path), tokens_of(1))
    assert np.abs(got - wanted).max() <= 1e-3 * max(1.0, float(np.abs(wanted).max()))


@pytest.mark.parametrize("architecture", RECURRENT)
@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_1"])
@pytest.mark.parametrize("activations", ["f32", "int8"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_has_the_bits_of_each_alone(
    architecture: str, kind: str, activations: str, threads: int, tmp_path: Path
) -> None:
    sizes = {"key_heads": 2, "value_heads": 6, "state_size": 32, "shared_ff": 64}
    shape = dataclasses.replace(SHAPES[architecture], **sizes)
    path = write_model(tmp_path / "m.gguf", shape, kind=kind)
    prompts = [tokens_of(s) for s in range(3)]
    solo = load(path, batch=1, activations=activations)
    alone = [logits_of(solo, prompt, chunk=1) for prompt in prompts]
    feeder = Feeder(load(path, batch=3, activations=activations, threads=threads), 3)
    done = [0, 0, 0]
    rng = np.random.default_rng(5)
    while min(done) < LENGTH:
        parts = []
        for s in rng.permutation(3):
            count = min(int(rng.integers(0, 9)), LENGTH - done[s])
            if count > 0:
                parts.append((int(s), done[s], prompts[s][done[s] : done[s] + count]))
        if not parts:
            continue
        for (s, first, ids), rows in zip(parts, feeder.step(*parts), strict=True):
            np.testing.assert_array_equal(rows, alone[s][first : first + len(ids)])
            done[s] += len(ids)


def test_a_slot_keeps_nothing_of_its_last_sequence(path: Path) -> None:
    model = load(path)
    first = logits_of(model, tokens_of(1))
    logits_of(model, tokens_of(2))
    np.testing.assert_array_equal(logits_of(model, tokens_of(1), chunk=7), first)


def test_rows_must_go_on_where_the_state_stands(path: Path) -> None:
    feeder = Feeder(load(path), 1)
    feeder.step((0, 0, tokens_of(1)[:9]))
    for position in (8, 10):
        with pytest.raises(engine.EngineError, match="does not go on"):
            feeder.step((0, position, tokens_of(1)[:1]))
    feeder.step((0, 9, tokens_of(1)[:1]))
    feeder.step((0, 0, tokens_of(1)[:1]))  # a new sequence


def drafted(path: Path, spec: int, batch: int) -> engine.LoadedModel:
    plan = engine.ModePlan(
        batch=batch,
        prefill=64,
        kv="f32",
        activations="f32",
        threads=1,
        max_context=128,
        kv_tokens=1024,
    )
    plan.mtp, plan.spec, plan.batch_mtp = "model", spec, batch > 1
    return engine.LoadedModel(str(path), plan)


@pytest.mark.parametrize("architecture", RECURRENT)
@pytest.mark.parametrize("spec", [1, 3, 7])
def test_rows_taken_back_leave_no_trace(architecture: str, spec: int, tmp_path: Path) -> None:
    """Rows behind refused drafts have the bits of a sequence that never had drafts."""
    shape = dataclasses.replace(SHAPES[architecture], draft_layers=1)
    feeder = Feeder(drafted(write_model(tmp_path / "d.gguf", shape), spec, 2), 2)
    tokens = [tokens_of(11), tokens_of(12)]
    alone = [
        np.concatenate([feeder.step((0, i, t[i : i + 1]))[0] for i in range(LENGTH)])
        for t in tokens
    ]
    rng = np.random.default_rng(spec)
    done = [0, 0]
    for s in range(2):
        feeder.step((s, 0, tokens[s][:20]))
        done[s] = 20
    refused = 0
    while max(done) + spec + 1 < LENGTH:
        parts, accepted = [], []
        for s in range(2):
            good = int(rng.integers(0, spec + 1))
            drafts = tokens[s][done[s] : done[s] + spec + 1].copy()
            drafts[1 + good :] = (drafts[1 + good :] + 1) % 320  # what is refused
            parts.append((s, done[s], drafts))
            accepted.append(1 + good)
        for s, rows in enumerate(feeder.step(*parts)):
            kept = slice(done[s], done[s] + accepted[s])
            np.testing.assert_array_equal(rows[: accepted[s]], alone[s][kept])
            done[s] += accepted[s]
            refused += spec + 1 - accepted[s]
    assert refused > 0


@pytest.mark.parametrize("architecture", RECURRENT)
def test_every_way_to_feed_rows_gives_the_same_bits(architecture: str, tmp_path: Path) -> None:
    """All rows in one step, in chunks, one by one, behind rows that were taken back, and with the
    plan of drafts or without: the logits of the reference, and the same bits."""
    shape = dataclasses.replace(SHAPES[architecture], draft_layers=1)
    path = write_model(tmp_path / "m.gguf", shape)
    tokens = tokens_of(21, 60)
    plain, drafts = load(path), drafted(path, 5, 1)
    whole = logits_of(plain, tokens, chunk=60)
    assert np.abs(whole - RecurrentReference(path).logits(tokens)).max() <= 1e-3
    for model in (plain, drafts):
        for chunk in (1, 13, 32):
            np.testing.assert_array_equal(logits_of(model, tokens, chunk=chunk), whole)
    feeder, done = Feeder(drafts, 1), 0
    for kept, wrong in ((20, 0), (1, 5), (3, 2), (6, 0), (1, 5), (1, 5), (2, 4), (17, 5), (9, 3)):
        rows = np.concatenate([tokens[done : done + kept], tokens_of(wrong, wrong)])
        (logits,) = feeder.step((0, done, rows))
        np.testing.assert_array_equal(logits[:kept], whole[done : done + kept])
        done += kept
    assert done == len(tokens)


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"ssm.group_count": 0}, "ssm.group_count is 0; allowed are 1 to"),
        ({"ssm.time_step_rank": 0}, "ssm.time_step_rank is 0; allowed are 1 to"),
        ({"ssm.time_step_rank": 3}, "no multiple of the 2 key heads"),
        ({"ssm.inner_size": 65}, "ssm.inner_size is 65; ssm.time_step_rank * ssm.state_size is 64"),
        ({"ssm.state_size": 0}, "ssm.state_size is 0"),
        ({"ssm.state_size": None}, "ssm.state_size is missing"),
        ({"ssm.conv_kernel": 0}, "ssm.conv_kernel is 0"),
        ({"ssm.conv_kernel": None}, "ssm.conv_kernel is missing"),
        ({"full_attention_interval": 0}, "full_attention_interval is 0"),
        ({"full_attention_interval": 5}, "full_attention_interval leaves no layer of attention"),
        ({"attention.recurrent_layers": [1, 1, 1, 1]}, "recurrent_layers leaves no layer of"),
        ({"attention.recurrent_layers": [1, 1, 0]}, "has 3 entries; block_count is 4"),
        ({"rope.dimension_sections": [1, 1, 0, 6]}, "leaves frequency 2"),
        ({"rope.dimension_sections": [8]}, "has 1 entries"),
        ({"ssm.conv_kernel": [4, 4, 3, 4]}, "differs between layers"),
    ],
    ids=str,
)
def test_metadata_is_refused(metadata: dict[str, object], text: str, tmp_path: Path) -> None:
    keys = {f"qwen35.{name}": value for name, value in metadata.items()}
    path = write_model(tmp_path / "m.gguf", SHAPE, metadata=keys)
    with pytest.raises(engine.EngineError) as caught:
        engine.model_facts(str(path))
    assert caught.value.code == "model.metadata"
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"state_size": 24}, "head_dim is 24, takes multiples of 16"),
        ({"taps": 9}, "taps is 9, takes 1 to 8"),
    ],
)
def test_sizes_without_a_kernel_are_told(sizes: dict[str, int], text: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", dataclasses.replace(SHAPE, **sizes))
    with pytest.raises(engine.EngineError) as caught:
        load(path)
    assert caught.value.code == "kernel.missing"
    assert text in str(caught.value)


def test_layers_can_be_named_instead_of_counted(tmp_path: Path) -> None:
    named = {
        "qwen35.full_attention_interval": None,
        "qwen35.attention.recurrent_layers": [1, 1, 1, 0],
    }
    path = write_model(tmp_path / "n.gguf", SHAPE, metadata=named)
    counted = write_model(tmp_path / "c.gguf", SHAPE)
    np.testing.assert_array_equal(
        logits_of(load(path), tokens_of(1)), logits_of(load(counted), tokens_of(1))
    )


def test_keys_and_values_are_counted_for_attention_layers_only(path: Path) -> None:
    memory = load(path, kv_tokens=1024, batch=4).memory
    assert memory["kv"] == 1024 * 2 * SHAPE.kv_heads * SHAPE.head_dim * 4
    values = SHAPE.value_heads * SHAPE.state_size
    channels = 2 * SHAPE.key_heads * SHAPE.state_size + values
    floats = values * SHAPE.state_size + (SHAPE.taps - 1) * channels
    assert memory["state"] >= 4 * 3 * floats * 4
    assert memory["state.checkpoints"] > 0
