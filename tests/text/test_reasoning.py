"""Reasoning apart from content, however the answer is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strata.text.answer_parts import Content, Part, Reasoning, joined
from strata.text.reasoning import ReasoningSplitter, partial_suffix


def split(pieces: list[str], *, is_opened: bool = False) -> list[Part]:
    one = ReasoningSplitter(is_opened=is_opened)
    parts = [part for piece in pieces for part in one.feed(piece)]
    return joined([*parts, *one.finish()])


@pytest.mark.parametrize(
    ("text", "is_opened", "parts"),
    [
        ("", False, []),
        ("plain", False, [Content("plain")]),
        (" \n plain", False, [Content(" \n plain")]),
        ("<think>\na\nb\n</think>\n\nc\n", False, [Reasoning("a\nb"), Content("c\n")]),
        ("\n<think>a</think>b", False, [Reasoning("a"), Content("b")]),
        ("a\n</think>\n\nb", True, [Reasoning("a"), Content("b")]),
        ("<think>\na</think>b", True, [Reasoning("a"), Content("b")]),  # opened a second time
        ("\n\n  a  ", True, [Reasoning("  a  ")]),
        ("never closed </thi", True, [Reasoning("never closed </thi")]),
        ("<think>", False, []),
        ("<thi", False, [Content("<thi")]),
        ("<thinking>x</thinking>", False, [Content("<thinking>x</thinking>")]),
        ("</think>\n\nb", True, [Content("b")]),
        ("a</think>", True, [Reasoning("a")]),
        ("a</think>\n    code", True, [Reasoning("a"), Content("    code")]),
        ("say <think> and </think>", False, [Content("say <think> and </think>")]),
        (
            "a</think>b<think>c</think>",
            True,
            [Reasoning("a"), Content("b<think>c</think>")],
        ),
    ],
)
def test_parts(text: str, is_opened: bool, parts: list[Part]) -> None:
    assert split([text], is_opened=is_opened) == parts
    assert split(list(text), is_opened=is_opened) == parts


PIECES = st.sampled_from(
    ["<think>", "</think>", "<", "/", "think", ">", "\n", " ", "a", "<th", "ink>", "🙂", "\r\n"]
)


@given(pieces=st.lists(PIECES, max_size=14), is_opened=st.booleans(), data=st.data())
def test_cuts_do_not_matter(pieces: list[str], is_opened: bool, data: st.DataObject) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    edges = [0, *cuts, len(text)]
    cut = [text[a:b] for a, b in itertools.pairwise(edges)]
    whole = split([text], is_opened=is_opened)
    assert split(cut, is_opened=is_opened) == whole
    assert split(pieces, is_opened=is_opened) == whole


@given(pieces=st.lists(PIECES, max_size=14), is_opened=st.booleans())
def test_only_one_pair_of_tags_and_newlines_are_left_out(
    pieces: list[str], is_opened: bool
) -> None:
    text = "".join("".join(pieces).split())
    parts = split(pieces, is_opened=is_opened)
    kept = "".join("".join(p.text for p in parts if isinstance(p, Content | Reasoning)).split())
    rest = iter(text)
    assert all(char in rest for char in kept), "in order, nothing added"
    assert len(text) - len(kept) in (0, len("<think>"), len("</think>"), len("<think></think>"))


def test_text_is_given_out_as_soon_as_it_is_decided() -> None:
    one = ReasoningSplitter(is_opened=True)
    assert one.feed("\nab\n") == [Reasoning("ab")]
    assert one.feed("c <") == [Reasoning("\nc ")]
    assert one.feed("d</thi") == [Reasoning("<d")]
    assert one.is_reasoning
    assert one.feed("nk>\n") == []
    assert not one.is_reasoning
    assert one.feed("\nx") == [Content("x")]
    assert one.feed("\n") == [Content("\n")]


def test_partial_suffix() -> None:
    assert partial_suffix("a<th", "<think>") == 3
    assert partial_suffix("<think>", "<think>") == 0
    assert partial_suffix("<<", "<think>") == 1
    assert partial_suffix("", "<think>") == 0
