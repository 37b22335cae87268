"""The GGUF reader on good files: metadata, tensors, hash and speed."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from strata_engine_testing import EngineError, GgufFile, is_utf8, printable, sha256_hex

from tests.unit.gguf_bytes import (
    ARRAY,
    BOOL,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT8,
    UINT16,
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


def write(path: Path, tokens: int = 3) -> dict[str, np.ndarray]:
    """A file by the format's reference writer; returns its tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_array("tokenizer.ggml.tokens", [f"token{i}" for i in range(tokens)])
    writer.add_array("llama.feed_forward_length", [7, 8, 9])
    writer.add_string("general.name", "käse")
    rng = np.random.default_rng(1)
    tensors: dict[str, np.ndarray] = {
        "token_embd.weight": rng.standard_normal((5, 32)).astype(np.float32),
        "blk.0.half": rng.standard_normal((2, 3, 4)).astype(np.float16),
        "blk.0.norm": rng.standard_normal(7).astype(np.float32),
    }
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    quantised = gguf.quants.quantize(
        rng.standard_normal((2, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("blk.0.q", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    tensors["blk.0.q"] = quantised
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_reads_what_the_reference_writer_wrote(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tensors = write(path)
    file = GgufFile(str(path))
    assert file.file_bytes == path.stat().st_size
    assert file.find_string("general.architecture") == "llama"
    assert file.find_string("general.name") == "käse"
    assert file.find_uint("llama.block_count") == 2
    assert file.find_float("llama.rope.freq_base") == 10000.0
    assert file.find_bool("tokenizer.ggml.add_bos_token") is True
    assert file.find_string_array("tokenizer.ggml.tokens") == [b"token0", b"token1", b"token2"]
    assert file.find_uint_array("llama.feed_forward_length") == [7, 8, 9]
    assert file.find_array_length("tokenizer.ggml.tokens") == 3
    assert [t["name"] for t in file.tensors] == list(tensors)
    by_name = {t["name"]: t for t in file.tensors}
    assert by_name["blk.0.half"]["shape"] == [4, 3, 2]
    assert by_name["blk.0.half"]["type"] == "f16"
    assert by_name["blk.0.q"]["shape"] == [64, 2]
    assert by_name["blk.0.q"]["type"] == "q8_0"
    for name, values in tensors.items():
        assert file.tensor_bytes(name) == values.tobytes(), name
        assert by_name[name]["bytes"] == values.nbytes


def test_absent_keys_and_tensors(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    file = GgufFile(str(tmp_path / "m.gguf"))
    assert not file.has("no.such.key")
    assert file.has("general.name")
    for find in (
        file.find_uint,
        file.find_float,
        file.find_bool,
        file.find_string,
        file.find_uint_array,
        file.find_string_array,
        file.find_array_length,
        file.tensor_bytes,
    ):
        assert find("no.such.key") is None


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (UINT8, b"\xff", 255),
        (INT8, b"\x7f", 127),
        (UINT16, b"\xff\xff", 65535),
        (INT16, b"\xff\x7f", 32767),
        (UINT32, b"\xff" * 4, 2**32 - 1),
        (INT32, b"\x01\0\0\0", 1),
        (UINT64, b"\xff" * 8, 2**64 - 1),
        (INT64, b"\x02" + bytes(7), 2),
    ],
)
def test_integers_of_every_type(kind: int, raw: bytes, value: int) -> None:
    entries = [entry("one", kind, raw), entry("many", ARRAY, array(kind, 2, raw + raw))]
    file = GgufFile.parse(GgufBytes(entries=entries).build())
    assert file.find_uint("one") == value
    assert file.find_uint_array("one") == [value]
    assert file.find_uint_array("many") == [value, value]


@pytest.mark.parametrize(
    ("kind", "raw", "shown"),
    [
        (INT8, b"\xff", "-1"),
        (INT16, b"\0\x80", "-32768"),
        (INT32, b"\xfe" + b"\xff" * 3, "-2"),
        (INT64, bytes(7) + b"\x80", str(-(2**63))),
    ],
)
def test_negative_integer_is_out_of_range(kind: int, raw: bytes, shown: str) -> None:
    file = GgufFile.parse(GgufBytes(entries=[entry("k", kind, raw)]).build())
    with pytest.raises(EngineError, match=f"metadata key k is {shown}; ") as caught:
        file.find_uint("k")
    assert caught.value.code == "gguf.metadata"
    with pytest.raises(EngineError):
        file.find_uint_array("k")


def test_floats() -> None:
    entries = [
        entry("f32", FLOAT32, np.float32(0.1).tobytes()),
        entry("f64", FLOAT64, np.float64(0.1).tobytes()),
        entry("nan", FLOAT32, np.float32("nan").tobytes()),
        entry("inf", FLOAT64, np.float64("inf").tobytes()),
    ]
    file = GgufFile.parse(GgufBytes(entries=entries).build())
    assert file.find_float("f32") == float(np.float32(0.1))
    assert file.find_float("f64") == 0.1
    for key in ("nan", "inf"):
        with pytest.raises(EngineError, match=f"metadata key {key} is not a finite number"):
            file.find_float(key)


@pytest.mark.parametrize(
    ("find", "key", "wanted", "found"),
    [
        ("find_uint", "text", "an unsigned integer", "string"),
        ("find_uint", "list", "an unsigned integer", "array of 2 uint32"),
        ("find_float", "number", "a float", "uint32"),
        ("find_bool", "number", "a bool", "uint32"),
        ("find_string", "number", "a string", "uint32"),
        ("find_uint_array", "text", "an array of unsigned integers", "string"),
        ("find_uint_array", "texts", "an array of unsigned integers", "array of 1 string"),
        ("find_string_array", "list", "an array of strings", "array of 2 uint32"),
        ("find_string_array", "text", "an array of strings", "string"),
        ("find_array_length", "number", "an array", "uint32"),
    ],
)
def test_key_of_another_type(find: str, key: str, wanted: str, found: str) -> None:
    entries = [
        entry("text", STRING, text("x")),
        entry("number", UINT32, u32(1)),
        entry("list", ARRAY, array(UINT32, 2, u32(1) + u32(2))),
        entry("texts", ARRAY, array(STRING, 1, text("x"))),
    ]
    file = GgufFile.parse(GgufBytes(entries=entries).build(), "some.gguf")
    with pytest.raises(EngineError) as caught:
        getattr(file, find)(key)
    assert str(caught.value) == f"some.gguf: metadata key {key} must be {wanted}, but is {found}"
    assert caught.value.code == "gguf.metadata"


def test_string_must_be_utf8_but_tokens_are_bytes() -> None:
    entries = [
        entry("name", STRING, text(b"a\xff")),
        entry("tokens", ARRAY, array(STRING, 2, text(b"\xff\xfe") + text(b""))),
    ]
    file = GgufFile.parse(GgufBytes(entries=entries).build())
    with pytest.raises(EngineError, match=r"name is not valid UTF-8: 'a\\xff'"):
        file.find_string("name")
    assert file.find_string_array("tokens") == [b"\xff\xfe", b""]


def test_nested_and_empty_arrays_are_walked_over() -> None:
    inner = array(STRING, 1, text("x")) + array(UINT8, 3, b"abc")
    entries = [
        entry("nested", ARRAY, array(ARRAY, 2, inner)),
        entry("empty", ARRAY, array(FLOAT64, 0, b"")),
        entry("flags", ARRAY, array(BOOL, 2, b"\0\1")),
        entry("after", UINT32, u32(5)),
    ]
    file = GgufFile.parse(GgufBytes(entries=entries).build())
    assert file.find_array_length("nested") == 2
    assert file.find_array_length("empty") == 0
    assert file.find_uint("after") == 5


def test_version_2_and_alignment() -> None:
    entries = [entry("general.alignment", UINT32, u32(256))]
    made = GgufBytes(version=2, entries=entries, alignment=256)
    made.tensors = [tensor("a"), tensor("b", offset=256)]
    made.data = bytes(256) + b"\7" * 32
    file = GgufFile.parse(made.build())
    assert [t["offset"] for t in file.tensors] == [256, 512]
    assert file.tensor_bytes("b") == b"\7" * 32


def test_unknown_tensor_type_is_listed_not_sized() -> None:
    for kind in (4, 77, 200, 255, 2**32 - 1):
        file = GgufFile.parse(GgufBytes(tensors=[tensor(kind=kind)]).build())
        (info,) = file.tensors
        assert (info["type"], info["ggml_type"], info["bytes"]) == (None, kind, 0)


def test_file_without_tensors_or_metadata() -> None:
    file = GgufFile.parse(GgufBytes(entries=[], tensors=[], data=b"").build())
    assert file.tensors == []
    assert file.find_uint("k") is None


def test_header_hash_covers_the_header_alone() -> None:
    made = GgufBytes()
    first = GgufFile.parse(made.build()).header_sha256()
    assert first == hashlib.sha256(made.header()).hexdigest()
    made.data = bytes(32)
    assert GgufFile.parse(made.build()).header_sha256() == first
    made.entries.append(entry("k", UINT64, u64(1)))
    assert GgufFile.parse(made.build()).header_sha256() != first


@pytest.mark.parametrize("length", [*range(130), 1000, 4096])
def test_sha256(length: int) -> None:
    data = bytes(i * 7 % 256 for i in range(length))
    assert sha256_hex(data) == hashlib.sha256(data).hexdigest()


def test_large_vocabulary_parses_fast(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    write(path, tokens=250_000)
    best_ms = 1e9
    file = GgufFile(str(path))
    for _ in range(5):
        begin = time.perf_counter()
        file = GgufFile(str(path))
        best_ms = min(best_ms, 1000 * (time.perf_counter() - begin))
    assert file.find_array_length("tokenizer.ggml.tokens") == 250_000
    assert best_ms < 100


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"plain",
        "é€😀\u07ff\uffff\U0010ffff".encode(),
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5",
        b"\xe2\x82",
        b"\x80",
        b"a\xff",
    ],
)
def test_utf8(raw: bytes) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError:
        assert not is_utf8(raw)
        assert "\\x" in printable(raw)
    else:
        assert is_utf8(raw)
        assert printable(raw) == raw.decode()


def test_printable_escapes_and_cuts() -> None:
    assert printable(b"a\n\x1b\x7fb") == r"a\x0a\x1b\x7fb"
    assert printable("é".encode() * 10, 5) == "éé..."
    assert printable(b"\0" * 3, 8) == r"\x00\x00..."
    assert printable("\x9b\xa0".encode()) == "\\xc2\\x9b\xa0"
