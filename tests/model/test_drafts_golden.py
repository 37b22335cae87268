"""The trained draft layer of SmolLM2 against its f64 reference: the model's hidden states, and
chains of three drafts. Float activations and caches, so that only rounding differs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import strata_engine_testing as engine

DATA = Path(__file__).resolve().parents[1] / "data" / "mtp"
TOLERANCE = 1e-3
ARRAY = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


@pytest.fixture(scope="module")
def golden() -> dict[str, ARRAY]:
    with np.load(DATA / "smollm2-135m-mtp-golden.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> engine.LoadedModel:
    plan = engine.ModePlan(
        batch=1,
        prefill=96,
        kv="f32",
        activations="f32",
        threads=2,
        max_context=256,
        kv_tokens=256,
        mtp=str(DATA / "smollm2-135m-mtp-q8_0.gguf"),
        spec=3,
    )
    return engine.LoadedModel(str(smollm2_path), plan)


class Sequence:
    """Rows of one sequence on the first pages."""

    def __init__(self, model: engine.LoadedModel) -> None:
        self.model = model
        self.table = np.arange(8, dtype=np.uint32)[None]

    def rows(self, tokens: ARRAY, first: int) -> tuple[ARRAY, ...]:
        positions = np.arange(first, first + len(tokens), dtype=np.uint32)
        return tokens.astype(np.int32), positions, np.zeros_like(positions), self.table

    def draft(
        self, tokens: ARRAY, first: int, hidden: ARRAY, gather: list[int]
    ) -> tuple[ARRAY, ARRAY]:
        wanted = np.array(gather, dtype=np.uint32)
        logits, recycled = self.model.draft(*self.rows(tokens, first), wanted, hidden)
        return logits, recycled


def test_hidden_states_of_every_row(model: engine.LoadedModel, golden: dict[str, ARRAY]) -> None:
    tokens = golden["tokens"]
    sequence = Sequence(model)
    model.step(*sequence.rows(tokens, 0), np.array([len(tokens) - 1], dtype=np.uint32))
    hidden = model.hidden(len(tokens))
    assert np.abs(hidden - golden["hidden"]).max() < TOLERANCE * np.abs(golden["hidden"]).max()


def test_chains_of_drafts(model: engine.LoadedModel, golden: dict[str, ARRAY]) -> None:
    tokens = golden["tokens"]
    before = np.concatenate([np.zeros_like(golden["hidden"][:1]), golden["hidden"][:-1]])
    sequence = Sequence(model)
    first = int(golden["rows"][0])
    sequence.draft(tokens[:first], 0, before[:first], [])
    for chain, row in enumerate(golden["rows"]):
        token, hidden = tokens[row : row + 1], before[row : row + 1]
        for place in range(3):
            logits, recycled = sequence.draft(token, int(row) + place, hidden, [0])
            ids = golden["top8_ids"][chain, place]
            difference = np.abs(logits[0, ids] - golden["top8_logits"][chain, place]).max()
            assert difference < TOLERANCE, (row, place, difference)
            wide = logits[0].astype(np.float64)
            logsumexp = wide.max() + np.log(np.exp(wide - wide.max()).sum())
            assert abs(logsumexp - golden["logsumexp"][chain, place]) < TOLERANCE
            assert logits[0].argmax() == golden["draft_tokens"][chain, place]
            np.testing.assert_allclose(
                recycled[0], golden["recycled"][chain, place], atol=TOLERANCE * 10
            )
            token, hidden = golden["draft_tokens"][chain, place : place + 1], recycled
