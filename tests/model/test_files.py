"""One model in several files: the parts of a split model, tensors in a file of their own, the files
that go with a model. What is computed does not depend on how the tensors are laid out on disk.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import strata_engine_testing as engine

from tests.model.loading import load, logits_of
from tools.synth_files import (
    UINT16,
    Source,
    pair,
    shard_path,
    split_model,
    split_pairs,
    take_tensor,
)
from tools.synth_model import Shape, write_drafter, write_model

TOKENS = np.random.default_rng(3).integers(0, 300, size=40).astype(np.int32)
SHAPE = Shape(layers=2, width=64)
TABLE = "per_layer_token_embd.weight"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_model(tmp_path / "whole.gguf", SHAPE, kind="q8_0")


@pytest.fixture
def parts(whole: Path, tmp_path: Path) -> list[Path]:
    return split_model(whole, tmp_path / "m", 3)


def refusal(path: Path, ple: Path | str = "") -> engine.EngineError:
    with pytest.raises(engine.EngineError) as caught:
        engine.model_facts(str(path), str(ple))
    return caught.value


@pytest.mark.parametrize("count", [2, 3, 25])
def test_split_is_whole(count: int, whole: Path, tmp_path: Path) -> None:
    first = split_model(whole, tmp_path / "m", count)[0]
    for activations in ("f32", "int8"):
        wanted = logits_of(load(whole, activations=activations), TOKENS)
        found = logits_of(load(first, activations=activations), TOKENS)
        np.testing.assert_array_equal(found, wanted)


def test_all_parts_count(whole: Path, parts: list[Path]) -> None:
    facts, of_whole = engine.model_facts(str(parts[0])), engine.model_facts(str(whole))
    assert facts["file_bytes"] == sum(part.stat().st_size for part in parts)
    same = ("parameters", "layers", "types", "architecture", "context", "vocab")
    assert {key: facts[key] for key in same} == {key: of_whole[key] for key in same}
    file = engine.GgufFile(str(parts[0]))
    assert file.parts == [str(part) for part in parts]
    assert {tensor["part"] for tensor in file.tensors} == {0, 1, 2}
    assert [t["name"] for t in file.tensors] == Source(whole).names


def test_identity_depends_on_every_part(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    before = engine.GgufFile(str(parts[0])).header_sha256()
    names = Source(parts[2]).names
    Source(parts[2]).write(
        parts[2],
        names,
        [*split_pairs(2, 3, len(Source(whole).names)), pair("note", UINT16, 7)],
        metadata=False,
    )
    assert engine.GgufFile(str(parts[0])).header_sha256() != before


def test_memory_is_that_of_the_whole(whole: Path, parts: list[Path]) -> None:
    memory = [{p[0]: p[1] for p in memory_of(path)} for path in (whole, parts[0])]
    assert memory[0] == memory[1]


def memory_of(path: Path) -> list[tuple[str, int]]:
    found = load(path).memory
    return [(name, value) for name, value in found.items() if isinstance(value, int)]


@pytest.mark.parametrize("index", [1, 2])
def test_a_later_part_names_the_first(index: int, parts: list[Path]) -> None:
    error = refusal(parts[index])
    assert (error.kind, error.code) == ("invalid_request", "gguf.split")
    assert f"is part {index + 1} of 3 of a split model; name its first part, {parts[0]}" in str(
        error
    )


def test_missing_parts_are_listed(parts: list[Path]) -> None:
    parts[1].unlink()
    error = refusal(parts[0])
    assert error.code == "gguf.split_missing"
    assert str(error).endswith(f"of the 3 parts of this split model {parts[1]} is not there")
    parts[2].unlink()
    assert f"{parts[1]}, {parts[2]} are not there" in str(refusal(parts[0]))


def test_a_name_that_does_not_lead_to_the_others(parts: list[Path], tmp_path: Path) -> None:
    renamed = parts[0].rename(tmp_path / "renamed.gguf")
    error = refusal(renamed)
    assert error.code == "gguf.split"
    assert "its name must end in -00001-of-00003.gguf" in str(error)


def test_the_same_part_twice(parts: list[Path]) -> None:
    shutil.copyfile(parts[1], parts[2])
    error = refusal(parts[0])
    assert error.code == "gguf.split_foreign"
    assert str(error) == (
        f"{parts[2]}: is part 2 of 3 by its metadata, in the place of part 3 of 3"
    )


@pytest.mark.parametrize("points_at", [0, 2])
def test_a_link_to_another_part_or_itself(points_at: int, parts: list[Path]) -> None:
    parts[2].unlink()
    parts[2].symlink_to(parts[points_at].name)
    assert refusal(parts[0]).code == ("gguf.split_foreign", "", "gguf.split_missing")[points_at]


def test_a_part_of_another_model(parts: list[Path], tmp_path: Path) -> None:
    other = write_model(tmp_path / "other.gguf", Shape(layers=3, width=64))
    shutil.copyfile(split_model(other, tmp_path / "o", 3)[2], parts[2])
    error = refusal(parts[0])
    assert error.code == "gguf.split_foreign"
    assert str(error).startswith(f"{parts[2]}: is of another split model")


def test_a_whole_model_in_the_place_of_a_part(whole: Path, parts: list[Path]) -> None:
    shutil.copyfile(whole, parts[1])
    error = refusal(parts[0])
    assert error.code == "gguf.split_foreign"
    assert "is part 1 of 1 by its metadata" in str(error)


def test_a_truncated_part_is_named(parts: list[Path]) -> None:
    data = parts[1].read_bytes()
    parts[1].write_bytes(data[: len(data) - 40])
    error = refusal(parts[0])
    assert error.code == "gguf.truncated"
    assert str(error).startswith(f"{parts[1]}: tensor ")


def test_a_tensor_in_two_parts(whole: Path, parts: list[Path]) -> None:
    source = Source(whole)
    names = [*Source(parts[2]).names, source.names[0]]
    pairs = split_pairs(2, 3, len(source.names))
    source.write(parts[2], names, pairs, metadata=False)
    error = refusal(parts[0])
    assert error.code in {"gguf.split_foreign", "gguf.duplicate"}
    whole_count = len(source.names) + 1
    for i, part in enumerate(parts):
        chosen = names if i == 2 else Source(part).names
        source.write(part, chosen, split_pairs(i, 3, whole_count), metadata=i == 0)
    error = refusal(parts[0])
    assert error.code == "gguf.duplicate"
    assert f"{parts[2]}: tensor {source.names[0]} is also in {parts[0]}" == str(error)


def test_counts_that_are_huge(whole: Path, tmp_path: Path) -> None:
    source = Source(whole)
    path = shard_path(tmp_path / "m", 0, 65535)
    source.write(path, source.names, split_pairs(0, 65535, 1), metadata=True)
    error = refusal(path)
    assert error.code == "gguf.limit"
    assert "split.count is 65535; at most 1024" in str(error)


# --- a tensor in a file of its own


def test_table_in_a_file_of_its_own(repository: Path, tmp_path: Path) -> None:
    whole = repository / "tests/data/oracle/tiny-qwen4exp-q.gguf"
    model, table = take_tensor(whole, tmp_path / "m", TABLE)
    wanted = logits_of(load(whole), TOKENS)
    np.testing.assert_array_equal(logits_of(load(model, ple=str(table)), TOKENS), wanted)
    facts = engine.model_facts(str(model), str(table))
    assert facts["file_bytes"] == model.stat().st_size + table.stat().st_size
    assert facts["parameters"] == engine.model_facts(str(whole))["parameters"]
    first = split_model(model, tmp_path / "s", 2)[0]
    np.testing.assert_array_equal(logits_of(load(first, ple=str(table)), TOKENS), wanted)


def test_table_that_is_not_named(repository: Path, tmp_path: Path) -> None:
    whole = repository / "tests/data/oracle/tiny-qwen4exp-q.gguf"
    model, table = take_tensor(whole, tmp_path / "m", TABLE)
    error = refusal(model)
    assert error.code == "model.tensor_missing"
    assert "name the file that holds it with --ple" in str(error)
    error = refusal(table)
    assert error.code == "model.part"
    assert "name it with --ple beside its model" in str(error)
    assert refusal(whole, table).code == "gguf.duplicate"


def test_files_that_are_no_table(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    error = refusal(whole, write_drafter(tmp_path / "d.gguf", SHAPE))
    assert (error.code, error.kind) == ("model.part", "invalid_request")
    assert f"has no tensor {TABLE}" in str(error)
    assert refusal(whole, parts[1]).code == "gguf.companion"
    assert refusal(whole, tmp_path / "absent.gguf").code == "gguf.open"
    other = write_model(tmp_path / "q.gguf", Shape(architecture="qwen3"))
    error = refusal(whole, other)
    assert error.code == "gguf.companion"
    assert 'its architecture is "qwen3"' in str(error)
    assert refusal(parts[1], whole).code == "gguf.split"


# --- a draft layer in a file of its own


def test_a_drafter_alone_is_no_model(tmp_path: Path) -> None:
    error = refusal(write_drafter(tmp_path / "d.gguf", SHAPE))
    assert (error.kind, error.code) == ("invalid_request", "model.part")
    assert "this file holds a draft layer only (layer 2); use it with --mtp" in str(error)


def test_a_drafter_without_vocabulary_borrows_the_models(whole: Path, tmp_path: Path) -> None:
    keys = {"llama.vocab_size": None}
    drafter = write_drafter(tmp_path / "d.gguf", SHAPE, metadata=keys)
    plan = engine.ModePlan(
        batch=1, prefill=8, kv="f32", activations="f32", threads=1, max_context=64, kv_tokens=64,
        mtp=str(drafter), spec=1,
    )  # fmt: skip
    assert engine.plan_mode(str(whole), plan)["draft_ops"]
    assert refusal(write_model(tmp_path / "n.gguf", SHAPE, metadata={
        **keys, "tokenizer.ggml.tokens": None})).code == "model.metadata"  # fmt: skip


def test_a_split_drafter(whole: Path, tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path / "d.gguf", SHAPE)
    first = split_model(drafter, tmp_path / "sd", 2)[0]
    plan = engine.ModePlan(
        batch=1, prefill=8, kv="f32", activations="f32", threads=1, max_context=64, kv_tokens=64,
        mtp=str(first), spec=1,
    )  # fmt: skip
    assert engine.plan_mode(str(whole), plan)["draft_ops"]
