"""Forms in which files of draft layers come: alone and without vocabulary, in parts, with two
projections in the place of one, with other names for the mixer of streams. The drafts are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import strata_engine_testing as engine

from tests.model.test_draft_layers import Sequence, behind, layer_alone
from tools.synth_files import split_model
from tools.synth_model import Shape, write_model

Tensors = dict[str, np.ndarray]
TOKENS = np.random.default_rng(6).integers(0, 300, size=12).astype(np.int32)
PROJECTIONS = ("nextn.fc_embd", "nextn.fc_hidden")


@pytest.fixture(params=["llama", "qwen4exp"])
def whole(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> Path:
    if request.param == "qwen4exp":
        return repository / "tests/data/oracle/tiny-qwen4exp-mtp.gguf"
    return write_model(tmp_path / "whole.gguf", Shape(draft_layers=1))


def drafter(whole: Path, out: Path, change: Callable[[str, Tensors], None]) -> Path:
    """The draft layer alone, its f32 tensors changed; `change` gets what their names begin with."""
    alone = layer_alone(whole, out)
    reader = gguf.GGUFReader(str(alone))
    tensors = {}
    for t in reader.tensors:
        shape = [int(n) for n in reversed(t.shape.tolist())]
        values = gguf.quants.dequantize(t.data, t.tensor_type)
        tensors[t.name] = np.array(values, np.float32).reshape(shape)
    (prefix,) = {".".join(name.split(".")[:2]) + "." for name in tensors}
    change(prefix, tensors)
    fields = [(k, f.types, f.contents()) for k, f in reader.fields.items() if "." in k]
    architecture = str(reader.fields["general.architecture"].contents())
    del reader
    writer = gguf.GGUFWriter(str(out), architecture)
    for name, types, value in fields:
        if name.startswith(f"{architecture}."):
            writer.add_key_value(name, value, types[0], types[1] if len(types) > 1 else None)
    for name, data in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def drafts(whole: Path, mtp: str) -> np.ndarray:
    sequence = Sequence(whole, mtp)
    _, hidden = sequence.step(TOKENS, 0)
    return sequence.draft_rows(TOKENS, behind(hidden))


def test_one_file_and_several(whole: Path, tmp_path: Path) -> None:
    wanted = drafts(whole, "model")
    alone = layer_alone(whole, tmp_path / "draft.gguf")
    first = split_model(alone, tmp_path / "parts", 3)[0]
    for mtp in (alone, first):
        np.testing.assert_array_equal(drafts(whole, str(mtp)), wanted)


def test_two_projections(whole: Path, tmp_path: Path) -> None:
    def halves(prefix: str, tensors: Tensors) -> None:
        both = tensors.pop(f"{prefix}nextn.eh_proj.weight")
        for name, half in zip(PROJECTIONS, np.split(both, 2, axis=1), strict=True):
            tensors[f"{prefix}{name}.weight"] = half

    found = drafts(whole, str(drafter(whole, tmp_path / "d.gguf", halves)))
    wanted = drafts(whole, "model")
    assert np.abs(found - wanted).max() <= 1e-3 * max(1.0, float(np.abs(wanted).max()))


def test_half_of_two_projections_is_missing(whole: Path, tmp_path: Path) -> None:
    def half(prefix: str, tensors: Tensors) -> None:
        both = tensors.pop(f"{prefix}nextn.eh_proj.weight")
        tensors[f"{prefix}nextn.fc_embd.weight"] = both[:, : both.shape[1] // 2]

    with pytest.raises(engine.EngineError, match=r"nextn.fc_hidden.weight is missing") as caught:
        drafts(whole, str(drafter(whole, tmp_path / "d.gguf", half)))
    assert caught.value.code == "drafter.tensor_missing"


@pytest.mark.parametrize("names", ["blk", "global"])
def test_names_of_the_mixer(names: str, repository: Path, tmp_path: Path) -> None:
    whole = repository / "tests/data/oracle/tiny-qwen4exp-mtp.gguf"

    def rename(prefix: str, tensors: Tensors) -> None:
        to = f"{prefix}nextn.hc_" if names == "blk" else "output_hc_"
        for part in ("norm", "down", "up"):
            tensors[f"{to}{part}.weight"] = tensors.pop(f"{prefix}nextn.hc_head_{part}.weight")

    found = drafts(whole, str(drafter(whole, tmp_path / "d.gguf", rename)))
    np.testing.assert_allclose(found, drafts(whole, "model"), rtol=1e-4, atol=1e-4)
