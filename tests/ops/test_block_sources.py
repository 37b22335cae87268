"""The decoders of block formats are one text for the host, CUDA and Metal.

As Metal: C++14 with the language's address spaces and a metal_stdlib of a few lines, built and run
on the host. As CUDA: compiled for a device where nvcc is found.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.ops.block_weights import BLOCK_FORMATS, sizes_of

engine = pytest.importorskip("strata_engine_testing", reason="the engine's module is not built")

REPOSITORY = Path(__file__).resolve().parents[2]
# Format{...} of each decoder, as blocks.h has them.
FORMATS = dict(
    re.findall(
        r"fn\(Decoder<decode_(\w+)>\{\}, Format(\{[^}]*\})\)",
        (REPOSITORY / "engine/quant/blocks.h").read_text(),
    )
)
GROUPS = 64  # of 32 weights; a whole number of blocks of every format

METAL_STDLIB = """
#pragma once
#include <stdint.h>
#include <string.h>
template <class T, class U> T as_type(U from) {
    static_assert(sizeof(T) == sizeof(U), "sizes");
    T to;
    memcpy(&to, &from, sizeof to);
    return to;
}
struct half {
    uint16_t bits;
    operator float() const {
        const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
        const float scaled = as_type<float>(magnitude) * as_type<float>(0x77800000u);
        const uint32_t wide = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u
                                                       : as_type<uint32_t>(scaled);
        return as_type<float>(wide | static_cast<uint32_t>(bits & 0x8000) << 16);
    }
};
"""


def decode_all(begin: str, end: str) -> str:
    """One call of each decoder, between `begin` and `end`, by names in order of FORMATS."""
    return "\n".join(
        f"{begin.format(name=name, format=fields)} {end}" for name, fields in FORMATS.items()
    )


def metal_program() -> str:
    body = decode_all(
        "decode_group<strata::blocks::decode_{name}>(strata::blocks::Format{format});", ""
    )
    return f"""
#include "engine/quant/blocks.h"
#include <stdio.h>
static uint8_t row[1 << 16];
template <void (*kDecode)(device const uint8_t*, uint32_t, thread strata::blocks::Group&)>
static void decode_group(strata::blocks::Format format) {{
    if (fread(row, 1, sizeof row, stdin) != sizeof row) return;
    for (uint32_t g = 0; g < {GROUPS}; ++g) {{
        strata::blocks::Group group;
        float out[32];
        kDecode(row, g, group);
        strata::blocks::group_to_f32(group, format, out);
        fwrite(out, 4, 32, stdout);
    }}
}}
int main() {{
{body}
}}
"""


def cuda_program() -> str:
    body = decode_all(
        "decode_{name}(row, g, group); group_to_f32(group, Format{format}, out + 32 * at++);", ""
    )
    return f"""
#include "engine/quant/blocks.h"
using namespace strata::blocks;
__global__ void decode_all(const uint8_t* row, uint32_t g, float* out) {{
    Group group;
    int at = 0;
{body}
}}
"""


def test_every_decoder_is_listed() -> None:
    assert set(FORMATS) == set(BLOCK_FORMATS)


def test_as_metal(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    (tmp_path / "metal_stdlib").write_text(METAL_STDLIB)
    source, program = tmp_path / "blocks.cpp", tmp_path / "blocks"
    source.write_text(metal_program())
    spaces = ["-Ddevice=", "-Dthread=", "-Dconstant=static const", "-D__METAL_VERSION__=310"]
    flags = ["-std=c++14", "-O1", "-Wall", "-Werror", "-Wno-unused-function"]
    command = [compiler, *flags, *spaces, f"-I{REPOSITORY}", f"-I{tmp_path}"]
    done = subprocess.run(
        [*command, str(source), "-o", str(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 256, (len(FORMATS), 1 << 16), dtype=np.uint8)
    run = subprocess.run([program], input=rows.tobytes(), capture_output=True, check=True)
    values = np.frombuffer(run.stdout, np.float32).reshape(len(FORMATS), -1)
    for row, got, name in zip(rows, values, FORMATS, strict=True):
        elements, size = sizes_of(name)
        want = engine.dequantize(name, row[: GROUPS * 32 // elements * size].tobytes())
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=name)
        is_number = ~np.isnan(want)
        np.testing.assert_array_equal(
            got[is_number].view(np.uint32), want[is_number].view(np.uint32), err_msg=name
        )


def test_as_cuda(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    source = tmp_path / "blocks.cu"
    source.write_text(cuda_program())
    command = [nvcc, "-std=c++20", "-ptx", f"-I{REPOSITORY}", "-o", str(tmp_path / "blocks.ptx")]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ".visible .entry" in (tmp_path / "blocks.ptx").read_text()
