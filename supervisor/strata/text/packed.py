"""A list of short texts in two blocks of memory, as a vocabulary has hundreds of thousands: one
object each would take ten times the space."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload


class PackedBytes(Sequence[bytes]):
    """Immutable."""

    __slots__ = ("_ends", "_joined")

    def __init__(self, items: Iterable[bytes]) -> None:
        joined, ends = bytearray(), array("Q")
        for item in items:
            joined += item
            ends.append(len(joined))
        self._joined, self._ends = bytes(joined), ends

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[bytes]:
        joined, begin = self._joined, 0
        for end in self._ends:
            yield joined[begin:end]
            begin = end

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        end = self._ends[index]
        at = index if index >= 0 else index + len(self._ends)
        return self._joined[self._ends[at - 1] if at else 0 : end]


class PackedTexts(Sequence[str]):
    """Immutable. Lone surrogates are kept."""

    __slots__ = ("_bytes",)

    def __init__(self, items: Iterable[str]) -> None:
        self._bytes = PackedBytes(item.encode("utf-8", "surrogatepass") for item in items)

    def __len__(self) -> int:
        return len(self._bytes)

    def __iter__(self) -> Iterator[str]:
        for item in self._bytes:
            yield item.decode("utf-8", "surrogatepass")

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._bytes[index].decode("utf-8", "surrogatepass")
