"""Block formats decode bit for bit as the public `gguf` package decodes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.block_weights import (
    BLOCK_FORMATS,
    SCALES,
    decode_f32,
    put_halves,
    random_blocks,
    sizes_of,
)
from tools import generate_grids

engine = pytest.importorskip("strata_engine_testing", reason="the engine's module is not built")

FORMATS = sorted(BLOCK_FORMATS)
HALF_SCALED = sorted([*SCALES, "iq1_m"])
# Zero, least denormal, largest denormal, least normal, one, largest, infinity, NaN, and negatives.
EXTREMES = [
    *(0x0000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0x7C00, 0x7E01),
    *(0x8000, 0x8001, 0xFBFF, 0xFC00, 0xFE01),
]


def assert_same_bits(name: str, blocks: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        want = decode_f32(name, blocks).ravel()
    got = engine.dequantize(name, blocks.tobytes())
    is_nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), is_nan)
    np.testing.assert_array_equal(got[~is_nan].view(np.uint32), want[~is_nan].view(np.uint32))


@pytest.mark.parametrize("name", FORMATS)
def test_random_bytes(name: str) -> None:
    rng = np.random.default_rng(7)
    assert_same_bits(name, rng.integers(0, 256, (1200, sizes_of(name)[1]), dtype=np.uint8))
    assert_same_bits(name, random_blocks(rng, name, 400))


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_of_few_values(name: str) -> None:
    """Many codes, scales and signs that are all zeros or all ones."""
    rng = np.random.default_rng(8)
    values = np.array([0, 0, 0xFF, 0xFF, 0x80, 0x7F], np.uint8)
    assert_same_bits(name, rng.choice(values, (400, sizes_of(name)[1])))


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(HALF_SCALED), st.sampled_from(EXTREMES), st.sampled_from(EXTREMES), st.data()
)
def test_extreme_scales(name: str, d: int, m: int, data: st.DataObject) -> None:
    size = sizes_of(name)[1]
    block = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8).copy()
    block = block.reshape(1, size)
    put_halves(name, block, (np.array([d]), np.array([m])))
    assert_same_bits(name, block)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_every_scale_of_a_byte(name: str) -> None:
    rng = np.random.default_rng(9)
    blocks = rng.integers(0, 256, (256, sizes_of(name)[1]), dtype=np.uint8)
    blocks[:, : {"mxfp4": 1, "nvfp4": 4}[name]] = np.arange(256, dtype=np.uint8)[:, None]
    assert_same_bits(name, blocks)


def test_codebooks_are_those_of_the_package() -> None:
    assert generate_grids.main(["--check"]) == 0


def test_a_changed_codebook_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "grids.h"
    changed.write_text(generate_grids.text().replace("0x0000", "0x0001", 1))
    monkeypatch.setattr(generate_grids, "PATH", changed)
    assert generate_grids.main(["--check"]) == 1
    assert generate_grids.main([]) == 0
    assert generate_grids.main(["--check"]) == 0


def test_every_format_of_the_package_has_a_decoder() -> None:
    known = {member.name.lower() for member in quants._type_traits} - {"bf16"}
    assert known <= set(FORMATS)


def test_every_half_precision_value() -> None:
    bits = np.arange(65_536, dtype=np.uint16)
    for name, want in (
        ("f16", bits.view(np.float16).astype(np.float32)),
        ("bf16", (bits.astype(np.uint32) << 16).view(np.float32)),
    ):
        got = engine.dequantize(name, bits.tobytes())
        is_nan = np.isnan(want)
        np.testing.assert_array_equal(np.isnan(got), is_nan)
        np.testing.assert_array_equal(got[~is_nan].view(np.uint32), want[~is_nan].view(np.uint32))


def test_partial_blocks_are_refused() -> None:
    with pytest.raises(engine.EngineError, match="whole number of blocks of q4_0"):
        engine.dequantize("q4_0", bytes(17))


def test_types_without_a_decoder_are_refused() -> None:
    with pytest.raises(engine.EngineError, match="no decoder for type q8_1"):
        engine.dequantize("q8_1", bytes(40))


def test_type_names_match_the_gguf_package() -> None:
    for member in GGMLQuantizationType:
        assert engine.ggml_type_name(member.value) == member.name.lower()
    assert engine.ggml_type_name(77) == "type 77"
