"""A row's logits have the same bits whatever shares its step: other sequences, other positions,
other prefill chunks, another number of threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import strata_engine_testing as engine

from tests.model.loading import PAGE, load, logits_of
from tools.synth_model import Shape, write_model

SHAPES = {
    "qwen3": Shape(architecture="qwen3", width=256, heads=8, kv_heads=2, head_dim=32, ff=512),
    **{
        architecture: Shape(
            architecture=architecture,
            width=256,
            kv_heads=1,
            head_dim=32,
            rope_dims=16,
            attention_interval=2,
            expert_ff=256,
            shared_ff=256,
            top_k=64,
        )
        for architecture in ("qwen3next", "qwen35moe", "qwen4exp")
    },
}
LENGTH = 300
BATCH = 8
MODES = [(kv, activations) for kv in ("f16", "f32") for activations in ("int8", "f32")]


@pytest.fixture(scope="module", params=SHAPES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    kinds = {"attn_v": "q8_0"}
    return write_model(folder / "m.gguf", SHAPES[request.param], kind="q4_1", kinds=kinds)


def tokens_of(sequence: int, length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(sequence).integers(0, 320, size=length).astype(np.int32)


class Sequences:
    """Several sequences with shuffled pages, fed in steps of any composition."""

    def __init__(self, model: engine.LoadedModel, count: int) -> None:
        self.model = model
        pages = LENGTH // PAGE + 1
        order = np.random.default_rng(99).permutation(count * pages)
        self.tables = order.astype(np.uint32).reshape(count, pages)
        self.tokens = [tokens_of(i) for i in range(count)]
        self.done = [0] * count
        self.logits = [np.zeros((LENGTH, model.vocab), np.float32) for _ in range(count)]

    def step(self, counts: dict[int, int]) -> None:
        """Feeds the next `counts[i]` tokens of each sequence i, in one step."""
        tokens, positions, sequences = [], [], []
        for sequence, count in counts.items():
            begin = self.done[sequence]
            tokens.append(self.tokens[sequence][begin : begin + count])
            positions.append(np.arange(begin, begin + count))
            sequences.append(np.full(count, sequence))
        rows = np.arange(sum(counts.values()), dtype=np.uint32)
        out = self.model.step(
            np.concatenate(tokens),
            np.concatenate(positions).astype(np.uint32),
            np.concatenate(sequences).astype(np.uint32),
            self.tables,
            rows,
        )
        at = 0
        for sequence, count in counts.items():
            begin = self.done[sequence]
            self.logits[sequence][begin : begin + count] = out[at : at + count]
            self.done[sequence] += count
            at += count


@pytest.mark.parametrize(("kv", "activations"), MODES)
@pytest.mark.parametrize("isa", ["auto", "portable"])
def test_chunks(path: Path, kv: str, activations: str, isa: str) -> None:
    model = load(path, kv=kv, activations=activations, isa=isa)
    tokens = tokens_of(0)
    alone = logits_of(model, tokens, chunk=1)
    for chunk in (7, 32, 256):
        np.testing.assert_array_equal(logits_of(model, tokens, chunk=chunk), alone, f"{chunk}")


@pytest.mark.parametrize(("kv", "activations"), MODES)
@pytest.mark.parametrize("threads", [1, 2])
def test_batch_of_eight(path: Path, kv: str, activations: str, threads: int) -> None:
    solo = load(path, kv=kv, activations=activations, batch=1, prefill=64)
    model = load(path, kv=kv, activations=activations, threads=threads)
    batch = Sequences(model, BATCH)
    # Each begins elsewhere, one prefills in odd chunks beside the others' single rows.
    for i in range(BATCH):
        batch.step({i: 1 + 13 * i})
    for _ in range(20):
        batch.step({0: 9, **dict.fromkeys(range(1, BATCH), 1)})
    for _ in range(20):
        batch.step(dict.fromkeys(range(BATCH), 1))
    for i in range(BATCH):
        alone = logits_of(solo, batch.tokens[i][: batch.done[i]], chunk=64)
        np.testing.assert_array_equal(batch.logits[i][: batch.done[i]], alone, f"sequence {i}")


def test_only_gathered_rows_are_computed(path: Path) -> None:
    """The rows that are gathered do not change each other's logits."""
    model = load(path)
    tokens, table = tokens_of(3, 20), np.arange(1, dtype=np.uint32)[None, :]
    positions, sequences = np.arange(20, dtype=np.uint32), np.zeros(20, np.uint32)
    every = model.step(tokens, positions, sequences, table, np.arange(20, dtype=np.uint32))
    some = model.step(tokens, positions, sequences, table, np.array([4, 19], dtype=np.uint32))
    np.testing.assert_array_equal(some, every[[4, 19]])
