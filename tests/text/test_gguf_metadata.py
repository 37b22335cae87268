"""The reader against files of the reference writer, and against damaged ones."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strata.text.gguf_metadata import FileMetadata, MetadataError, read_metadata


def everything(_: str) -> bool:
    return True


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "valid.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -300)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -5)
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "naïve\n🙂")
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, 1.5])
    writer.add_array("bools", [True, False])
    writer.add_array("texts", ["a", "Ġb", "日本", ""])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_reads_every_type(valid: Path) -> None:
    assert read_metadata(valid, everything) == {
        "general.architecture": "llama",
        "u8": 200,
        "i8": -3,
        "u16": 65535,
        "i16": -300,
        "u32": 2**32 - 1,
        "i32": -5,
        "u64": 2**64 - 1,
        "i64": -(2**62),
        "f32": 0.5,
        "f64": 0.1,
        "yes": True,
        "text": "naïve\n🙂",
        "ints": [1, -2, 3],
        "floats": [0.5, 1.5],
        "bools": [True, False],
        "texts": ["a", "Ġb", "日本", ""],
    }


def test_skips_what_is_not_wanted(valid: Path) -> None:
    assert read_metadata(valid, lambda key: key == "texts") == {"texts": ["a", "Ġb", "日本", ""]}
    assert read_metadata(valid, lambda _: False) == {}


def test_a_file_keeps_its_short_pairs_and_reads_the_others_when_asked(valid: Path) -> None:
    later = {"texts", "f64", "no such key"}
    metadata = FileMetadata(valid, lambda key: key != "ints", later)
    whole = read_metadata(valid, lambda key: key != "ints")
    assert dict(metadata) == whole
    assert len(metadata) == len(whole)
    assert metadata["texts"] is not metadata["texts"]
    assert metadata.get("no such key") is None
    assert "ints" not in metadata
    assert not later & metadata._pairs.keys()
    valid.rename(away := valid.with_suffix(".away"))
    assert metadata["u8"] == 200
    with pytest.raises(OSError, match="No such file"):
        metadata["texts"]
    away.rename(valid)


def test_truncation_anywhere_is_an_error(valid: Path, tmp_path: Path) -> None:
    whole = valid.read_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        for wanted in (everything, lambda _: False):
            with pytest.raises(MetadataError, match=r"cut\.gguf"):
                read_metadata(path, wanted)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_never_escapes_as_another_error(
    valid: Path, tmp_path: Path, data: st.DataObject
) -> None:
    damaged = bytearray(valid.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    with contextlib.suppress(MetadataError):
        read_metadata(path, everything)


def header(pairs: int, body: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, pairs) + body


def key(name: str) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode()


HUGE = 2**63


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "too few"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(8), "big-endian"),
        (header(0, bytes(8), version=1), "version 1"),
        (header(HUGE, bytes(8)), "key-value pairs"),
        (header(1, struct.pack("<Q", HUGE)), "key 0 has"),
        (header(1, struct.pack("<Q", 0)), "key 0 has 0 bytes"),
        (header(1, struct.pack("<Q", 2) + b"\xff\xfe" + bytes(8)), "not UTF-8"),
        (header(1, key("a") + struct.pack("<I", 99)), "value type 99"),
        (header(1, key("a") + struct.pack("<IQ", 8, HUGE)), "string of"),
        (header(1, key("a") + struct.pack("<IIQ", 9, 8, 10**7)), "more than the file"),
        (header(1, key("a") + struct.pack("<IIQ", 9, 8, HUGE)), "elements"),
        (header(1, key("a") + struct.pack("<IIQ", 9, 4, 10**7)), "needs 40000000 bytes"),
        (header(1, key("a") + struct.pack("<IIQ", 9, 77, 1)), "element type 77"),
        (header(1, key("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9), "nests"),
        (header(2, (key("a") + struct.pack("<IB", 0, 1)) * 2), "occurs twice"),
        (
            header(1, key("a") + struct.pack("<IIQ", 9, 8, 1) + struct.pack("<Q", HUGE)),
            "at index 0",
        ),
    ],
)
def test_hostile_files_name_what_is_wrong(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(MetadataError, match=what):
        read_metadata(path, everything)


def test_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_metadata(tmp_path / "none.gguf", everything)


def test_nested_arrays_are_skipped(tmp_path: Path) -> None:
    inner = struct.pack("<IQ", 4, 2) + struct.pack("<II", 1, 2)
    path = tmp_path / "nested.gguf"
    path.write_bytes(
        header(2, key("a") + struct.pack("<IIQ", 9, 9, 1) + inner + key("b") + b"\0\0\0\0\7")
    )
    assert read_metadata(path, everything) == {"b": 7}
