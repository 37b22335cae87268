"""The GGUF reader on bad files: every broken field is refused in a sentence, none is a crash."""

from __future__ import annotations

import os
import struct
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strata_engine_testing import EngineError, GgufFile

from tests.unit.gguf_bytes import (
    ARRAY,
    BOOL,
    FLOAT32,
    INT32,
    STRING,
    UINT8,
    UINT32,
    UINT64,
    GgufBytes,
    array,
    entry,
    tensor,
    text,
    u32,
    u64,
)

HUGE = 2**64 - 1


def nested(depth: int) -> bytes:
    value = array(UINT8, 1, b"x")
    for _ in range(depth - 1):
        value = array(ARRAY, 1, value)
    return value


def entries(*items: bytes) -> GgufBytes:
    return GgufBytes(entries=list(items))


def tensors(*items: bytes) -> GgufBytes:
    return GgufBytes(tensors=list(items))


BROKEN: dict[str, tuple[GgufBytes, str, str]] = {
    # name: (file, code, part of the text)
    "magic": (GgufBytes(magic=b"GGUX"), "gguf.magic", "begins with 'GGUX' instead of 'GGUF'"),
    "version 0": (GgufBytes(version=0), "gguf.version", "version 0; supported are versions 2"),
    "version 1": (GgufBytes(version=1), "gguf.version", "version 1, whose lengths have 32 bits"),
    "version 4": (GgufBytes(version=4), "gguf.version", "version 4; supported are versions 2"),
    "big endian": (GgufBytes(version=3 << 24), "gguf.version", "big-endian"),
    "tensor count over the limit": (
        GgufBytes(tensor_count=HUGE),
        "gguf.limit",
        f"number of tensors is {HUGE}; at most 1048576",
    ),
    "tensor count over the file": (
        GgufBytes(tensor_count=1 << 20),
        "gguf.truncated",
        "number of tensors is 1048576, which needs at least 33 bytes each",
    ),
    "key count over the limit": (GgufBytes(entry_count=HUGE), "gguf.limit", "metadata keys"),
    "key count over the file": (
        GgufBytes(entry_count=10_000),
        "gguf.truncated",
        "number of metadata keys is 10000",
    ),
    "key name too long": (
        entries(u64(65536) + bytes(70000)),
        "gguf.limit",
        "metadata key #0: its name has 65536 bytes; at most 65535",
    ),
    "key name beyond the file": (
        entries(u64(5000) + b"k" * 20),
        "gguf.truncated",
        "metadata key #0: its name needs bytes 32..5032 but the file has",
    ),
    "key name empty": (entries(entry("", UINT8, b"1")), "gguf.corrupt", "#0: its name ''"),
    "key name not UTF-8": (
        entries(entry(b"a\xff", UINT8, b"1")),
        "gguf.corrupt",
        r"its name 'a\xff' is empty or not printable",
    ),
    "key name with control character": (
        entries(entry(b"a\nb", UINT8, b"1")),
        "gguf.corrupt",
        r"'a\x0ab'",
    ),
    "key twice": (
        entries(entry("k", UINT8, b"1"), entry("j", UINT8, b"1"), entry("k", UINT8, b"2")),
        "gguf.corrupt",
        "metadata key k appears twice",
    ),
    "value type": (
        entries(entry("k", 13, b"")),
        "gguf.corrupt",
        "metadata key k: its value type is 13; known are 0..12",
    ),
    "value type huge": (entries(entry("k", 2**32 - 1, b"")), "gguf.corrupt", "4294967295"),
    "bool of 2": (entries(entry("k", BOOL, b"\2")), "gguf.corrupt", "a boolean is 2"),
    "bool in an array": (
        entries(entry("k", ARRAY, array(BOOL, 2, b"\1\x09"))),
        "gguf.corrupt",
        "a boolean is 9",
    ),
    "string beyond the file": (
        entries(entry("k", STRING, u64(HUGE))),
        "gguf.truncated",
        f"metadata key k: its string needs {HUGE} bytes from byte",
    ),
    "element type": (
        entries(entry("k", ARRAY, array(99, 1, b""))),
        "gguf.corrupt",
        "its element type is 99",
    ),
    "array of numbers too long": (
        entries(entry("k", ARRAY, array(UINT64, 2**61, bytes(8)))),
        "gguf.truncated",
        "its 2305843009213693952 values of type uint64",
    ),
    "array of strings too long": (
        entries(entry("k", ARRAY, array(STRING, HUGE, bytes(8)))),
        "gguf.truncated",
        "values of type string",
    ),
    "array of arrays too long": (
        entries(entry("k", ARRAY, array(ARRAY, HUGE, bytes(8)))),
        "gguf.truncated",
        "values of type array",
    ),
    "string in an array beyond the file": (
        entries(entry("k", ARRAY, array(STRING, 2, text("a") + u64(1 << 40)))),
        "gguf.truncated",
        "its string needs bytes",
    ),
    "nested array too long": (
        entries(entry("k", ARRAY, array(ARRAY, 1, array(INT32, 1 << 62, b"")))),
        "gguf.truncated",
        "values of type int32",
    ),
    "nesting": (entries(entry("k", ARRAY, nested(5))), "gguf.limit", "nested deeper than 4"),
    "split": (
        entries(entry("split.count", 2, b"\3\0")),
        "gguf.split",
        "is part 1 of 3 of a split model, of which 1 were given",
    ),
    "split of a wrong type": (
        entries(entry("split.count", STRING, text("3"))),
        "gguf.metadata",
        "split.count is not an unsigned integer",
    ),
    **{
        f"alignment {value}": (
            entries(entry("general.alignment", UINT32, u32(value))),
            "gguf.corrupt",
            f"general.alignment is {value}; it must be a power of two in 8..1048576",
        )
        for value in (0, 1, 4, 24, 33, 1 << 21, 2**32 - 1)
    },
    "alignment of a wrong type": (
        entries(entry("general.alignment", FLOAT32, bytes(4))),
        "gguf.metadata",
        "general.alignment is not an unsigned integer",
    ),
    "tensor name too long": (
        tensors(tensor(b"n" * 256)),
        "gguf.limit",
        "tensor #0: its name has 256 bytes; at most 255",
    ),
    "tensor name empty": (tensors(tensor("")), "gguf.corrupt", "tensor #0: its name ''"),
    "tensor name not UTF-8": (tensors(tensor(b"\xc3")), "gguf.corrupt", r"'\xc3'"),
    "tensor twice": (
        tensors(tensor("a"), tensor("a", offset=32)),
        "gguf.corrupt",
        "tensor a appears twice",
    ),
    "no dimensions": (tensors(tensor(shape=())), "gguf.corrupt", "tensor t: has 0 dimensions"),
    "five dimensions": (
        tensors(tensor(shape=(1, 1, 1, 1, 1))),
        "gguf.corrupt",
        "tensor t: has 5 dimensions; allowed are 1..4",
    ),
    "dimensions huge": (tensors(tensor(dimensions=2**32 - 1)), "gguf.corrupt", "4294967295 dim"),
    "dimension 0": (tensors(tensor(shape=(4, 0))), "gguf.corrupt", "tensor t: dimension 1 is 0"),
    "product overflows": (
        tensors(tensor(shape=(2**32, 2**32))),
        "gguf.corrupt",
        "tensor t: dimension 1 is 4294967296, which makes more than 2^60 elements",
    ),
    "product overflows to 0": (
        tensors(tensor(shape=(2**16, 2**16, 2**16, 2**16))),
        "gguf.corrupt",
        "dimension 3 is 65536",
    ),
    "dimension huge": (tensors(tensor(shape=(HUGE,))), "gguf.corrupt", f"dimension 0 is {HUGE}"),
    "rows not whole blocks": (
        tensors(tensor(shape=(33, 2), kind=8)),
        "gguf.corrupt",
        "tensor t: its rows have 33 elements, no multiple of 32, the block of q8_0",
    ),
    "offset not aligned": (
        tensors(tensor(offset=4)),
        "gguf.corrupt",
        "tensor t: its offset 4 is no multiple of the alignment 32",
    ),
    "offset beyond the file": (
        tensors(tensor(offset=1 << 40)),
        "gguf.truncated",
        "tensor t: needs bytes 1099511627",
    ),
    "offset wraps around": (
        tensors(tensor(offset=2**64 - 32)),
        "gguf.truncated",
        f"tensor t: needs 32 bytes at offset {2**64 - 32}",
    ),
    "unknown type beyond the file": (
        tensors(tensor(kind=99, offset=1 << 20)),
        "gguf.truncated",
        "tensor t: needs bytes",
    ),
    "tensor larger than the file": (
        tensors(tensor("blk.0.ffn_up.weight", shape=(1024, 1024))),
        "gguf.truncated",
        "tensor blk.0.ffn_up.weight: needs bytes 192..4194496 but the file has 224 bytes (trunc",
    ),
    "tensors overlap": (
        GgufBytes(tensors=[tensor("a", shape=(16,)), tensor("b", offset=32)], data=bytes(64)),
        "gguf.corrupt",
        "overlaps tensor a, which ends at byte",
    ),
    "q2_0 in groups of 128, of which one is followed by another": (
        GgufBytes(
            tensors=[
                tensor("a", shape=(128, 16), kind=42),
                tensor("b", shape=(128, 16), kind=42, offset=544),
            ],
            data=bytes(1088),
        ),
        "model.tensor_type",
        "tensor a: has room for q2_0 in groups of 128 weights (544 bytes), as an older fork",
    ),
    "q2_0 in groups of 128 at the end of the file": (
        GgufBytes(tensors=[tensor("a", shape=(128, 16), kind=42)], data=bytes(544)),
        "model.tensor_type",
        "tensor a: has room for q2_0 in groups of 128 weights",
    ),
    "q2_0 that is cut off elsewhere": (
        GgufBytes(tensors=[tensor("a", shape=(128, 16), kind=42)], data=bytes(500)),
        "gguf.truncated",
        "tensor a: needs bytes",
    ),
    "q2_0 in groups of 64 that overlaps": (
        GgufBytes(
            tensors=[
                tensor("a", shape=(64, 32), kind=42),
                tensor("b", shape=(64, 32), kind=42, offset=544),
            ],
            data=bytes(1152),
        ),
        "gguf.corrupt",
        "overlaps tensor a",
    ),
    "tensors at one place": (
        tensors(tensor("a"), tensor("b")),
        "gguf.corrupt",
        "overlaps tensor a",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_field(name: str) -> None:
    made, code, part = BROKEN[name]
    with pytest.raises(EngineError) as caught:
        GgufFile.parse(made.build(), "model.gguf")
    assert caught.value.code == code
    assert part in str(caught.value)
    assert str(caught.value).startswith("model.gguf: ")
    unsupported = code == "gguf.version"
    assert caught.value.kind == ("unsupported" if unsupported else "invalid_request")


def test_neighbours_of_the_limits_are_accepted() -> None:
    made = GgufBytes(
        entries=[
            entry("k" * 65535, UINT8, b"1"),
            entry("deep", ARRAY, nested(4)),
            entry("split.count", UINT32, u32(1)),
            entry("general.alignment", UINT32, u32(8)),
        ],
        tensors=[tensor("n" * 255, shape=(1, 1, 1, 1))],
        alignment=8,
    )
    assert GgufFile.parse(made.build()).find_array_length("deep") == 1


def small_file() -> tuple[bytes, int]:
    made = GgufBytes(
        entries=[
            entry("general.architecture", STRING, text("llama")),
            entry("a.flag", BOOL, b"\1"),
            entry("a.list", ARRAY, array(STRING, 3, text("x") + text("") + text("yz"))),
            entry("a.nested", ARRAY, nested(3)),
            entry("a.number", UINT64, u64(7)),
        ],
        tensors=[tensor("one", shape=(32, 1), kind=8), tensor("two", offset=64)],
        data=bytes(96),
    )
    return made.build(), len(made.header())


def test_truncation_at_every_byte() -> None:
    whole, _ = small_file()
    GgufFile.parse(whole)
    for length in range(len(whole)):
        with pytest.raises(EngineError) as caught:
            GgufFile.parse(whole[:length])
        assert caught.value.code in {"gguf.truncated", "gguf.magic"}, (length, caught.value)


def test_truncated_file_on_disk(tmp_path: Path) -> None:
    whole, header_bytes = small_file()
    path = tmp_path / "cut.gguf"
    for length in (header_bytes - 1, header_bytes, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(EngineError, match=r"truncated download\?") as caught:
            GgufFile(str(path))
        assert str(path) in str(caught.value)


def use(file: GgufFile) -> None:
    """Touches everything that the header promises."""
    for info in file.tensors:
        assert len(file.tensor_bytes(info["name"])) == info["bytes"]
    file.header_sha256()
    for key in ("general.architecture", "a.flag", "a.list", "a.nested", "a.number", "b"):
        for find in (
            file.find_uint,
            file.find_float,
            file.find_bool,
            file.find_string,
            file.find_uint_array,
            file.find_string_array,
            file.find_array_length,
        ):
            try:
                find(key)
            except EngineError as error:
                assert error.code == "gguf.metadata"  # noqa: PT017


def parse_and_use(data: bytes) -> None:
    try:
        file = GgufFile.parse(data)
    except EngineError as error:
        fault = error
    else:
        use(file)
        return
    assert fault.code.startswith("gguf.")
    assert not any(unicodedata.category(c) == "Cc" for c in str(fault))


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_changed_bytes(data: st.DataObject) -> None:
    whole = bytearray(small_file()[0])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    parse_and_use(bytes(whole))


@given(st.integers(0, 400), st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, HUGE, HUGE - 31]))
@settings(max_examples=400, deadline=None)
def test_extreme_number_anywhere(at: int, value: int) -> None:
    whole = bytearray(small_file()[0])
    at = min(at, len(whole) - 8)
    whole[at : at + 8] = struct.pack("<Q", value)
    parse_and_use(bytes(whole))


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_behind_the_preamble(tail: bytes) -> None:
    parse_and_use(b"GGUF" + u32(3) + u64(1) + u64(1) + tail)
    parse_and_use(tail)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"GGU", "begins with 'GGU' instead"),
        (b"PK\x03\x04rest", "a zip archive (a PyTorch checkpoint?)"),
        (u64(20) + b'{"__metadata__":{}} ', "a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "a web page, so the download went wrong"),
        (b"tjgg\1\0\0\0", "a GGJT file from before GGUF"),
        (b"\x1f\x8b\x08\0", "gzip-compressed"),
        (bytes(100), "begins with zeros"),
        (b"\x7fELF", r"begins with '\x7fELF' instead of 'GGUF'"),
        (b'\xff\n\0"more', r"begins with '\xff\x0a\x00\"' instead"),
    ],
)
def test_foreign_file(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(EngineError) as caught:
        GgufFile(str(path))
    assert caught.value.code == "gguf.magic"
    assert f"{path}: is not a GGUF file: " in str(caught.value)
    assert said.replace('\\"', '"') in str(caught.value)


def refused_path(path: str) -> str:
    with pytest.raises(EngineError) as caught:
        GgufFile(path)
    assert (caught.value.code, caught.value.kind) == ("gguf.open", "invalid_request")
    return str(caught.value)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.gguf")
    assert refused_path(missing) == f"{missing}: cannot be opened: No such file or directory"
    assert refused_path(str(tmp_path)) == f"{tmp_path}: is a directory, not a file"
    assert refused_path("") == "the file's path is empty"
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    assert refused_path(fifo) == f"{fifo}: is not a regular file"
    assert refused_path("/dev/null") == "/dev/null: is not a regular file"
    assert refused_path("a\0b") == r"a\x00b: the path contains a NUL byte"


def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(small_file()[0])
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert refused_path(str(path)) == f"{path}: cannot be opened: Permission denied"
