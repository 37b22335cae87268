"""Models of the classes of transformers: logits that no code of this project computed."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.model.loading import load, logits_of
from tools.golden.hf.cases import CASES, PROMPTS, Case

DATA = Path(__file__).resolve().parents[1] / "data" / "transformers"
BYTES_MAX = 6_000_000  # of all files together
NOISE = 1e-4  # between builds of torch


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    assert isinstance(request.param, Case)
    return request.param


@pytest.mark.parametrize("isa", ["auto", "portable"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_f32_logits_match(case: Case, prompt: str, isa: str) -> None:
    golden = np.load(DATA / f"{case.name}.npz")
    model = load(DATA / f"{case.name}.gguf", isa=isa)
    tokens = golden[f"{prompt}.tokens"]
    wanted = golden[f"{prompt}.logits"]
    assert len(tokens) == PROMPTS[prompt]
    whole = logits_of(model, tokens)
    assert np.abs(whole - wanted).max() <= 1e-3
    np.testing.assert_array_equal(logits_of(model, tokens, chunk=5), whole)


def test_every_file_has_its_case_and_they_stay_small() -> None:
    files = [path for path in DATA.iterdir() if path.suffix != ".md"]
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert {path.name for path in files} == {
        f"{name}{suffix}" for name in names for suffix in (".gguf", ".npz")
    }
    assert sum(path.stat().st_size for path in files) <= BYTES_MAX


def test_the_class_still_gives_the_same(case: Case, tmp_path: Path) -> None:
    """Made again: the same file, and the same logits but for the rounding of another torch."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tools.golden.hf.build import build
    from tools.golden.hf.convert import write

    golden = build(case)
    write(golden.model, tmp_path / "m.gguf")
    readers = [gguf.GGUFReader(str(p)) for p in (tmp_path / "m.gguf", DATA / f"{case.name}.gguf")]
    made, kept = ({t.name: t for t in reader.tensors} for reader in readers)
    assert made.keys() == kept.keys()
    for name, tensor in made.items():
        assert tensor.tensor_type == kept[name].tensor_type
        np.testing.assert_array_equal(tensor.data, kept[name].data, name)
    fields = [
        {name: field.contents() for name, field in r.fields.items() if "." in name} for r in readers
    ]
    assert fields[0] == fields[1]
    arrays = np.load(DATA / f"{case.name}.npz")
    for prompt in PROMPTS:
        np.testing.assert_array_equal(golden.tokens[prompt], arrays[f"{prompt}.tokens"])
        np.testing.assert_allclose(
            golden.logits[prompt], arrays[f"{prompt}.logits"], rtol=0, atol=NOISE
        )
