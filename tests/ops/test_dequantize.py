"""Block formats decode bit for bit as the public `gguf` package decodes them."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.reference import SCALES, type_of

engine = pytest.importorskip("strata_engine_testing", reason="the engine's module is not built")

FORMATS = sorted(SCALES)
# Zero, least denormal, largest denormal, least normal, one, largest, infinity, and negatives.
EXTREMES = [0x0000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0x7C00, 0x8000, 0x8001, 0xFBFF, 0xFC00]


def assert_same_bits(name: str, blocks: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        want = dequantize(blocks, type_of(name)).ravel()
    got = engine.dequantize(name, blocks.tobytes())
    is_nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), is_nan)
    np.testing.assert_array_equal(got[~is_nan].view(np.uint32), want[~is_nan].view(np.uint32))


@pytest.mark.parametrize("name", FORMATS)
def test_random_bytes(name: str) -> None:
    size = GGML_QUANT_SIZES[type_of(name)][1]
    rng = np.random.default_rng(7)
    assert_same_bits(name, rng.integers(0, 256, (400, size), dtype=np.uint8))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(FORMATS), st.sampled_from(EXTREMES), st.sampled_from(EXTREMES), st.data())
def test_extreme_scales(name: str, d: int, m: int, data: st.DataObject) -> None:
    size = GGML_QUANT_SIZES[type_of(name)][1]
    block = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8).copy()
    for offset, bits in zip(SCALES[name][0], (d, m), strict=False):
        block[offset : offset + 2] = np.array([bits], np.uint16).view(np.uint8)
    assert_same_bits(name, block.reshape(1, size))


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


def test_type_names_match_the_gguf_package() -> None:
    for member in GGMLQuantizationType:
        assert engine.ggml_type_name(member.value) == member.name.lower()
    assert engine.ggml_type_name(77) == "type 77"
