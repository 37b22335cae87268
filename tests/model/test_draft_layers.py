"""Draft layers of recurrent architectures, in the model's file and as a file of their own: rows
over a prompt and chains of drafts, against known logits and the NumPy reference. Rows of drafts
change nothing in the states of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import strata_engine_testing as engine

from tools.golden.reference_recurrent import RecurrentReference
from tools.synth_model import Shape, write_model
from tools.synth_shapes import RECURRENT

SHAPE = Shape(
    layers=4, head_dim=32, rope_dims=16, experts=6, shared_ff=48, draft_layers=1, vocab=320
)
TOLERANCE = 1e-3
DRAFTS = 4
PROMPTS = ("p7", "p40eos", "p99")


class Sequence:
    """Rows of one sequence of a model with a drafter."""

    def __init__(self, path: Path, mtp: str, **options: str) -> None:
        plan = engine.ModePlan(
            batch=1,
            prefill=128,
            kv="f32",
            activations="f32",
            threads=1,
            max_context=256,
            kv_tokens=256,
            mtp=mtp,
            spec=DRAFTS,
            **options,
        )
        self.model = engine.LoadedModel(str(path), plan)
        self.table = np.arange(8, dtype=np.uint32)[None]

    def rows(self, tokens: np.ndarray, first: int) -> tuple[np.ndarray, ...]:
        positions = np.arange(first, first + len(tokens), dtype=np.uint32)
        return tokens.astype(np.int32), positions, np.zeros_like(positions), self.table

    def step(self, tokens: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Logits and hidden states of the model at all rows."""
        every = np.arange(len(tokens), dtype=np.uint32)
        logits = self.model.step(*self.rows(tokens, first), every)
        return logits, self.model.hidden(len(tokens))

    def draft(
        self, tokens: np.ndarray, first: int, hidden: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits and hidden state of the draft layer at the last row."""
        last = np.array([len(tokens) - 1], dtype=np.uint32)
        logits, recycled = self.model.draft(*self.rows(tokens, first), last, hidden)
        return logits[0], recycled

    def draft_rows(self, tokens: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        """Logits of the draft layer at all rows from position 0, one a step."""
        rows = range(len(tokens))
        return np.stack([self.draft(tokens[i : i + 1], i, hidden[i : i + 1])[0] for i in rows])


def behind(hidden: np.ndarray) -> np.ndarray:
    """Of each position the hidden state of the one before."""
    return np.concatenate([np.zeros_like(hidden[:1]), hidden[:-1]])


def layer_alone(path: Path, out: Path) -> Path:
    """The draft layer of a model's file as a file of its own: its sizes and its tensors."""
    reader = gguf.GGUFReader(str(path))
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(out), architecture)
    for name, field in reader.fields.items():
        if name.startswith(f"{architecture}."):
            kind, *of = field.types
            writer.add_key_value(name, field.contents(), kind, of[0] if of else None)
    layers = reader.fields[f"{architecture}.block_count"].contents() - 1
    for tensor in reader.tensors:
        if tensor.name.startswith(f"blk.{layers}."):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


Opens = Callable[[Path], Sequence]


@pytest.fixture(params=["model", "file"])
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Opens:
    """A sequence of a model with its draft layer: in its file, or cut out into another."""

    def open_with(path: Path) -> Sequence:
        is_own = request.param == "file"
        mtp = str(layer_alone(path, tmp_path / "draft.gguf")) if is_own else "model"
        return Sequence(path, mtp)

    return open_with


@pytest.mark.parametrize("prompt", PROMPTS)
def test_known_logits(opens: Opens, prompt: str, repository: Path) -> None:
    stem = repository / "tests" / "data" / "oracle" / "tiny-qwen35moe"
    golden = np.load(stem.with_suffix(".npz"))
    tokens = golden[f"{prompt}.tokens"]
    sequence = opens(stem.with_suffix(".gguf"))
    logits, hidden = sequence.step(tokens, 0)
    assert np.abs(logits - golden[f"{prompt}.logits"]).max() <= TOLERANCE
    rows = sequence.draft_rows(tokens, behind(hidden))
    assert np.abs(rows - golden[f"{prompt}.draft_rows"]).max() <= TOLERANCE
    token, state = golden["draft_first"], hidden[-1:]
    for place, wanted in enumerate(golden[f"{prompt}.draft_logits"]):
        logits, state = sequence.draft(token, len(tokens) + place, state)
        assert np.abs(logits - wanted).max() <= TOLERANCE
        token = np.array([wanted.argmax()])


@pytest.mark.parametrize("architecture", RECURRENT)
@pytest.mark.parametrize("value_heads", [2, 6])
def test_chains_match_the_reference(
    opens: Opens, architecture: str, value_heads: int, tmp_path: Path
) -> None:
    """A drafted token is verified, refused and drafted again; what the reference computes over the
    accepted tokens and the drafts behind them is what the engine has."""
    shape = dataclasses.replace(SHAPE, architecture=architecture, value_heads=value_heads)
    path = write_model(tmp_path / "m.gguf", shape, seed=value_heads)
    reference, sequence = RecurrentReference(path), opens(path)
    tokens = np.random.default_rng(value_heads).integers(0, 320, size=40)
    done = 17
    _, hidden = sequence.step(tokens[:done], 0)
    sequence.draft(tokens[:done], 0, behind(hidden))
    for accepted in (1, 3, 1, 4):
        # A chain behind the last accepted token, recycling its own hidden states.
        wanted_hidden = reference.hidden(tokens[:done])
        assert np.abs(hidden[-1] - wanted_hidden[-1]).max() <= TOLERANCE
        fed = np.concatenate([tokens[:done], tokens[done : done + 1]])
        before = np.concatenate([behind(wanted_hidden), wanted_hidden[-1:]])
        token, state = tokens[done : done + 1], hidden[-1:]
        drafts = []
        for place in range(DRAFTS):
            wanted, states = reference.draft(fed, before)
            logits, state = sequence.draft(token, done + place, state)
            assert np.abs(logits - wanted[-1]).max() <= TOLERANCE
            token = np.array([wanted[-1].argmax()])
            drafts.append(int(token[0]))
            fed = np.concatenate([fed, token])
            before = np.concatenate([before, states[-1:]])
        # The model verifies: the tokens that are kept, then drafts that are not.
        kept = tokens[done : done + accepted]
        rows = np.concatenate([kept, drafts])[: DRAFTS + 1]
        logits, all_hidden = sequence.step(rows, done)
        wanted = reference.logits(tokens[: done + accepted])[done:]
        assert np.abs(logits[:accepted] - wanted).max() <= TOLERANCE
        # The draft layer catches up with the model's hidden states.
        before = np.concatenate([hidden[-1:], all_hidden[: accepted - 1]])
        sequence.draft(kept, done, before)
        hidden = all_hidden[:accepted]
        done += accepted


def test_rows_of_the_model_must_go_on_and_those_of_drafts_need_not(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", dataclasses.replace(SHAPE, architecture="qwen3next"))
    sequence = Sequence(path, "model")
    tokens = np.arange(12)
    _, hidden = sequence.step(tokens, 0)
    first = [sequence.draft(tokens[:5], 0, behind(hidden)[:5])[0] for _ in range(2)]
    np.testing.assert_array_equal(*first)
    with pytest.raises(engine.EngineError, match="does not go on"):
        sequence.step(tokens[:1], 5)  # more rows back than are kept
    sequence.step(tokens[:1], 12)
