"""Lists of texts in two blocks are what lists are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strata.text.packed import PackedBytes, PackedTexts

TEXTS = st.text(st.characters(), max_size=8)  # lone surrogates as well


@given(st.lists(st.binary(max_size=8)))
def test_bytes_are_those_that_were_put_in(items: list[bytes]) -> None:
    packed = PackedBytes(items)
    assert list(packed) == items
    assert len(packed) == len(items)
    for index in range(-len(items), len(items)):
        assert packed[index] == items[index]
    assert packed[1:-1] == items[1:-1]
    for index in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            packed[index]


@given(st.lists(TEXTS, unique=True))
def test_texts_are_those_that_were_put_in(items: list[str]) -> None:
    packed = PackedTexts(items)
    assert list(packed) == items
    assert [packed.index(item) for item in items] == [*range(len(items))]
    assert packed[::-1] == items[::-1]
    assert "no such text" not in packed
