"""Reads the key-value pairs of a GGUF file, and nothing else of it.

The whole block of pairs is walked, so a damaged one is found, but values are built only for the
keys that are wanted: the rest is skipped by arithmetic. Nothing is allocated on the word of the
file: every count and length is checked against the bytes that are really there first.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from array import array
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

MetadataValue = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]

T = TypeVar("T")

PAIRS_MAX = 65_536
KEY_BYTES_MAX = 65_535  # the format's own limit
STRING_BYTES_MAX = 16 * 1024 * 1024  # of one string; chat templates are the longest
ELEMENTS_MAX = 64 * 1024 * 1024  # of one array

# value type -> (struct code, bytes); 7 is bool, 8 string, 9 array
_SCALARS: dict[int, tuple[str, int]] = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    7: ("?", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}
_STRING = 8
_ARRAY = 9
_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")


class MetadataError(Exception):
    """The file is not GGUF, or is damaged; the text names the key and what is wrong."""


class FileMetadata(Mapping[str, MetadataValue]):
    """The wanted pairs of a file. Those named `later` are read each time that they are asked for,
    and not kept: long lists that others are made of."""

    def __init__(self, path: Path, wanted: Callable[[str], bool], later: Container[str]) -> None:
        """Raises as read_metadata()."""
        self._path = path
        self._later: dict[str, int] = {}  # where the pair's type and value begin
        self._pairs = _read(path, lambda reader: reader.pairs(wanted, later, self._later))

    def __getitem__(self, key: str) -> MetadataValue:
        at = self._later.get(key)
        if at is None:
            return self._pairs[key]
        value = _read(self._path, lambda reader: reader.value_at(key, at))
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        yield from self._pairs
        yield from self._later

    def __len__(self) -> int:
        return len(self._pairs) + len(self._later)


def read_metadata(path: Path, wanted: Callable[[str], bool]) -> dict[str, MetadataValue]:
    """The pairs of `path` whose key is wanted.

    Strings are UTF-8 with undecodable bytes as U+FFFD. Nested arrays are skipped, never returned.
    Raises MetadataError; OSError when the file cannot be opened.
    """
    return _read(path, lambda reader: reader.pairs(wanted))


def _read(path: Path, ask: Callable[[_Reader], T]) -> T:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 24:
            raise MetadataError(
                f"{path.name}: {size} bytes are too few for a GGUF header (truncated download?)"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return ask(_Reader(data, size))
            except MetadataError as error:
                raise MetadataError(f"{path.name}: {error}") from None


class _Reader:
    """A cursor over the mapped file; every advance is checked against its end."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self._data = data
        self._size = size
        self._at = 0

    def pairs(
        self,
        wanted: Callable[[str], bool],
        later: Container[str] = (),
        places: dict[str, int] | None = None,
    ) -> dict[str, MetadataValue]:
        """Of the wanted ones that are in `later` the place goes to `places`."""
        magic = bytes(self._data[0:4])
        if magic != b"GGUF":
            raise MetadataError(f"not a GGUF file (it begins with {magic!r})")
        self._at = 4
        version = self._u32("version")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            if swapped in (2, 3):
                raise MetadataError("big-endian GGUF is not supported")
            raise MetadataError(f"GGUF version {version} is not supported (2 and 3 are)")
        self._u64("tensor count")
        count = self._u64("pair count")
        if count > PAIRS_MAX:
            raise MetadataError(f"{count} key-value pairs, at most {PAIRS_MAX} are allowed")
        found: dict[str, MetadataValue] = {}
        seen: set[str] = set()
        for index in range(count):
            key = self._key(index)
            if key in seen:
                raise MetadataError(f"key {key!r} occurs twice")
            seen.add(key)
            at = self._at
            value_type = self._u32(key)
            if places is not None and wanted(key) and key in later:
                places[key] = at
                self._skip(key, value_type)
            elif wanted(key):
                value = self._value(key, value_type)
                if value is not None:
                    found[key] = value
            else:
                self._skip(key, value_type)
        return found

    def value_at(self, key: str, at: int) -> MetadataValue | None:
        """The value of a pair whose place is known."""
        self._at = at
        return self._value(key, self._u32(key))

    def _take(self, count: int, what: str) -> int:
        """Moves past `count` bytes and returns where they begin."""
        at = self._at
        if count > self._size - at:
            raise MetadataError(
                f"{what!r} needs {count} bytes at offset {at}, the file has {self._size - at} left"
                " (truncated download?)"
            )
        self._at = at + count
        return at

    def _u32(self, what: str) -> int:
        (value,) = _U32.unpack_from(self._data, self._take(4, what))
        return int(value)

    def _u64(self, what: str) -> int:
        (value,) = _U64.unpack_from(self._data, self._take(8, what))
        return int(value)

    def _key(self, index: int) -> str:
        what = f"key {index}"
        length = self._u64(what)
        if length == 0 or length > KEY_BYTES_MAX:
            raise MetadataError(f"{what} has {length} bytes, 1 to {KEY_BYTES_MAX} are allowed")
        at = self._take(length, what)
        try:
            return bytes(self._data[at : at + length]).decode("utf-8")
        except UnicodeDecodeError:
            raise MetadataError(f"{what} is not UTF-8") from None

    def _string(self, what: str) -> str:
        length = self._u64(what)
        if length > STRING_BYTES_MAX:
            raise MetadataError(
                f"{what!r} has a string of {length} bytes, at most {STRING_BYTES_MAX} are allowed"
            )
        at = self._take(length, what)
        return self._data[at : at + length].decode("utf-8", "replace")

    def _value(self, key: str, value_type: int) -> MetadataValue | None:
        if value_type in _SCALARS:
            code, size = _SCALARS[value_type]
            (value,) = struct.unpack_from("<" + code, self._data, self._take(size, key))
            return value  # type: ignore[no-any-return]  # struct is untyped
        if value_type == _STRING:
            return self._string(key)
        if value_type != _ARRAY:
            raise MetadataError(f"{key!r} has value type {value_type}, 0 to 12 are known")
        element_type, count = self._array_head(key)
        if element_type in _SCALARS:
            return self._numbers(key, element_type, count)
        if element_type == _STRING:
            return self._strings(key, count)
        self._skip_elements(key, element_type, count)
        return None

    def _array_head(self, key: str) -> tuple[int, int]:
        element_type = self._u32(key)
        count = self._u64(key)
        if count > ELEMENTS_MAX:
            raise MetadataError(f"{key!r} has {count} elements, at most {ELEMENTS_MAX} are allowed")
        return element_type, count

    def _numbers(
        self, key: str, element_type: int, count: int
    ) -> list[int] | list[float] | list[bool]:
        code, size = _SCALARS[element_type]
        at = self._take(count * size, key)
        raw = self._data[at : at + count * size]
        if code == "?":
            return [byte != 0 for byte in raw]
        numbers = array(code, raw)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers.tolist()

    def _strings(self, key: str, count: int) -> list[str]:
        # The hot loop of a load: 250 000 tokens and as many merges. Lengths are checked inline.
        if count * 8 > self._size - self._at:
            raise MetadataError(
                f"{key!r} has {count} strings, more than the file can hold (truncated download?)"
            )
        data, size, at = self._data, self._size, self._at
        unpack = _U64.unpack_from
        strings: list[str] = []
        append = strings.append
        for _ in range(count):
            begin = at + 8
            if begin > size:
                raise MetadataError(
                    f"{key!r} is cut off at string {len(strings)} of {count} (truncated download?)"
                )
            at = begin + unpack(data, at)[0]
            if at > size and at - begin <= STRING_BYTES_MAX:
                raise MetadataError(
                    f"{key!r} is cut off in string {len(strings)} of {count} (truncated download?)"
                )
            if at - begin > STRING_BYTES_MAX:
                raise MetadataError(
                    f"{key!r} has a string of {at - begin} bytes at index {len(strings)}"
                )
            append(data[begin:at].decode("utf-8", "replace"))
        self._at = at
        return strings

    def _skip(self, key: str, value_type: int) -> None:
        if value_type in _SCALARS:
            self._take(_SCALARS[value_type][1], key)
        elif value_type == _STRING:
            self._take(self._u64(key), key)
        elif value_type == _ARRAY:
            self._skip_elements(key, *self._array_head(key))
        else:
            raise MetadataError(f"{key!r} has value type {value_type}, 0 to 12 are known")

    def _skip_elements(self, key: str, element_type: int, count: int, depth: int = 1) -> None:
        if element_type in _SCALARS:
            self._take(count * _SCALARS[element_type][1], key)
        elif element_type == _STRING:
            self._skip_strings(key, count)
        elif element_type == _ARRAY:
            if depth >= 4:
                raise MetadataError(f"{key!r} nests arrays deeper than 4")
            for _ in range(count):
                self._skip_elements(key, *self._array_head(key), depth + 1)
        else:
            raise MetadataError(f"{key!r} has element type {element_type}, 0 to 12 are known")

    def _skip_strings(self, key: str, count: int) -> None:
        # As hot as `_strings`: every start walks those of others and of the first look.
        data, last, at = self._data, self._size - 8, self._at
        unpack = _U64.unpack_from
        for _ in range(count):
            if at > last:
                break
            at += 8 + unpack(data, at)[0]
        else:
            if at <= self._size:
                self._at = at
                return
        for _ in range(count):  # again, step by step, to say where it is cut off
            self._take(self._u64(key), key)
