"""Architecture qwen4exp against logits from independent implementations: residual streams, the
table of n-grams, attention to chosen tokens, the draft layer; bits that do not depend on steps or
on rows taken back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import strata_engine_testing as engine

from tests.model.loading import load, logits_of
from tests.model.qwen4exp_files import with_top_k
from tests.model.test_draft_layers import Sequence, behind, layer_alone
from tests.model.test_recurrent import Feeder

PROMPTS = ("p7", "p40eos", "p99")
EVERYTHING = 4096  # tokens, more than a prompt has: attention reads all of them


@pytest.fixture(scope="module")
def data(repository: Path) -> Path:
    return repository / "tests" / "data" / "oracle"


# Files with their logits. In the first rows choose among 16 tokens, from the twentieth on.
@dataclass(frozen=True)
class Known:
    path: Path
    golden: dict[str, np.ndarray]


@pytest.fixture(scope="module", params=["chosen", "everything"])
def known(
    request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Known:
    path, name = data / "tiny-qwen4exp.gguf", "tiny-qwen4exp"
    if request.param == "everything":
        path = with_top_k(path, tmp_path_factory.mktemp("dense") / "m.gguf", EVERYTHING)
        name += "-dense"
    with np.load(data / f"{name}.npz") as golden:
        return Known(path, dict(golden))


def assert_golden(got: np.ndarray, wanted: np.ndarray, bound: float = 1e-3) -> None:
    worst = float(np.abs(got - wanted).max())
    assert worst <= bound, f"largest difference {worst:.2e}"


@pytest.mark.parametrize("isa", ["auto", "avx2", "portable"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_f32_logits_match(known: Known, prompt: str, isa: str) -> None:
    logits = logits_of(load(known.path, isa=isa), known.golden[f"{prompt}.tokens"])
    assert_golden(logits, known.golden[f"{prompt}.logits"])


def test_choosing_matters(data: Path) -> None:
    chosen, everything = (
        np.load(data / f"tiny-qwen4exp{name}.npz")["p99.logits"] for name in ("", "-dense")
    )
    assert np.abs(chosen[:19] - everything[:19]).max() < 1e-5
    assert np.abs(chosen[19:] - everything[19:]).max() > 0.1


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_chunks_give_the_same_bits(known: Known, chunk: int, threads: int) -> None:
    tokens = known.golden["p99.tokens"]
    whole = logits_of(load(known.path), tokens)
    model = load(known.path, threads=threads)
    np.testing.assert_array_equal(logits_of(model, tokens, chunk), whole)


@pytest.mark.parametrize("isa", ["auto", "portable"])
@pytest.mark.parametrize("name", ["q", "kq", "iq"])
def test_quantised_logits_match(data: Path, name: str, isa: str) -> None:
    path = data / f"tiny-qwen4exp-{name}.gguf"
    golden = np.load(data / f"tiny-qwen4exp-{name}.npz")
    exact, rounded = load(path, isa=isa), load(path, isa=isa, activations="int8")
    for prompt in PROMPTS:
        tokens, wanted = golden[f"{prompt}.tokens"], golden[f"{prompt}.logits"]
        assert_golden(logits_of(exact, tokens), wanted)
        # What is chosen otherwise takes a row far away; most stay near.
        assert 0 < np.abs(logits_of(rounded, tokens) - wanted).mean() < 0.1


def test_rows_alone_have_the_bits_of_a_batch(known: Known) -> None:
    prompts = [known.golden["p99.tokens"][:60], known.golden["p40eos.tokens"]]
    alone = [logits_of(load(known.path, batch=1), prompt, chunk=1) for prompt in prompts]
    feeder = Feeder(load(known.path, batch=2, threads=2), 2)
    done, rng = [0, 0], np.random.default_rng(3)
    while any(done[s] < len(prompts[s]) for s in range(2)):
        parts = []
        for s in range(2):
            count = min(int(rng.integers(0, 6)), len(prompts[s]) - done[s])
            if count > 0:
                parts.append((s, done[s], prompts[s][done[s] : done[s] + count]))
        if not parts:
            continue
        for (s, first, ids), rows in zip(parts, feeder.step(*parts), strict=True):
            np.testing.assert_array_equal(rows, alone[s][first : first + len(ids)])
            done[s] += len(ids)


def drafted_plan(spec: int) -> engine.ModePlan:
    plan = engine.ModePlan(
        batch=1,
        prefill=64,
        kv="f32",
        activations="f32",
        threads=1,
        max_context=128,
        kv_tokens=1024,
    )
    plan.mtp, plan.spec = "model", spec
    return plan


@pytest.fixture(scope="module")
def drafting(data: Path) -> Path:
    return data / "tiny-qwen4exp-mtp.gguf"


@pytest.mark.parametrize("spec", [1, 4])
def test_rows_taken_back_leave_no_trace(data: Path, drafting: Path, spec: int) -> None:
    """Behind each token come drafts that are refused, longer than what states look back."""
    tokens = np.load(data / "tiny-qwen4exp-mtp.npz")["p40eos.tokens"]
    whole = logits_of(load(drafting), tokens)
    feeder = Feeder(engine.LoadedModel(str(drafting), drafted_plan(spec)), 1)
    (first,) = feeder.step((0, 0, tokens[:5]))
    np.testing.assert_array_equal(first, whole[:5])
    rng = np.random.default_rng(spec)
    done = 5
    while done + spec + 1 <= len(tokens):
        good = int(rng.integers(0, spec + 1))
        rows = tokens[done : done + spec + 1].copy()
        rows[1 + good :] = (rows[1 + good :] + 1) % 320
        (logits,) = feeder.step((0, done, rows))
        np.testing.assert_array_equal(logits[: 1 + good], whole[done : done + 1 + good])
        done += 1 + good


@pytest.mark.parametrize("norm", ["stream", "whole"])
@pytest.mark.parametrize("has_own_file", [False, True])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_draft_layer_matches(
    data: Path, drafting: Path, tmp_path: Path, *, prompt: str, norm: str, has_own_file: bool
) -> None:
    golden = np.load(data / "tiny-qwen4exp-mtp.npz")
    form = "" if norm == "stream" else f".{norm}"
    mtp = str(layer_alone(drafting, tmp_path / "draft.gguf")) if has_own_file else "model"
    tokens = golden[f"{prompt}.tokens"]
    sequence = Sequence(drafting, mtp, mtp_hidden_norm=norm)
    logits, hidden = sequence.step(tokens, 0)
    assert_golden(logits, golden[f"{prompt}.logits"])
    rows = sequence.draft_rows(tokens, behind(hidden))
    assert_golden(rows, golden[f"{prompt}.draft_rows{form}"])
    token, state = golden["draft_first"], hidden[-1:]
    for place, wanted in enumerate(golden[f"{prompt}.draft_logits{form}"]):
        logits, state = sequence.draft(token, len(tokens) + place, state)
        assert_golden(logits, wanted)
        token = np.array([wanted.argmax()])
