"""Which files a model is made of, and what is said of files that are no model."""

from __future__ import annotations

from pathlib import Path

import pytest
from strata.cli import check_header
from strata.engines.model_files import base_name, bytes_of, model_files
from strata.engines.place import size_and_time
from strata.errors import ModelDataError, ModelMissingError
from strata.observe.words import progress

from tools.synth_files import split_model
from tools.synth_model import Shape, write_drafter, write_model


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return split_model(write_model(tmp_path / "whole.gguf", Shape()), tmp_path / "m", 3)


def test_files_of_a_split_model(parts: list[Path], tmp_path: Path) -> None:
    assert model_files(parts[0]) == tuple(parts)
    assert model_files(parts[0], "/x/ple.gguf") == (*parts, Path("/x/ple.gguf"))
    assert model_files(tmp_path / "whole.gguf") == (tmp_path / "whole.gguf",)
    assert base_name(parts[0]) == "m"
    assert base_name(tmp_path / "whole.gguf") == "whole"
    assert bytes_of(parts) == sum(part.stat().st_size for part in parts)
    huge = Path("m-00001-of-99999.gguf")
    assert len(model_files(huge)) == 1024, "no more than the engine opens"


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_change_of_any_part_is_another_place(index: int, parts: list[Path]) -> None:
    before = size_and_time(parts)
    parts[index].write_bytes(parts[index].read_bytes() + bytes(1))
    assert size_and_time(parts) != before


def test_whole_and_split_are_served(parts: list[Path], tmp_path: Path) -> None:
    check_header(parts[0])
    check_header(tmp_path / "whole.gguf")


def test_later_part(parts: list[Path]) -> None:
    with pytest.raises(ModelDataError) as caught:
        check_header(parts[1])
    assert f"is part 2 of 3 of a split model; name its first part, {parts[0]}" in str(caught.value)


def test_missing_part(parts: list[Path]) -> None:
    parts[2].unlink()
    with pytest.raises(ModelMissingError, match=r"m-00003-of-00003.gguf, a part of the split"):
        check_header(parts[0])


def test_renamed_part(parts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ModelDataError, match=r"must end in -00001-of-00003.gguf"):
        check_header(parts[0].rename(tmp_path / "renamed.gguf"))


def test_drafter(tmp_path: Path) -> None:
    with pytest.raises(ModelDataError, match="use it with --mtp beside its model"):
        check_header(write_drafter(tmp_path / "d.gguf", Shape()))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((3, 2**31, "bytes"), "0 %, 3 B of 2.0 GiB"),
        ((2**30, 3 * 2**30, "bytes"), "33 %, 1.0 GiB of 3.0 GiB"),
        ((5, 0, "bytes"), "5 B"),
        ((2, 6, "probes"), "33 %"),
        ((2, 0, "probes"), "2 probes"),
    ],
)
def test_progress_in_words(given: tuple[int, int, str], said: str) -> None:
    assert progress(*given) == said
