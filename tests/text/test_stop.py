"""The stop matcher against a naive oracle, whatever the pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strata.text.stop import StopMatcher

LETTERS = st.text(alphabet="ab\n🙂", max_size=12)
STOPS = st.lists(st.text(alphabet="ab\n🙂", min_size=1, max_size=4), max_size=4)


def oracle(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Shown text and match: the first end at which any stop is complete, its earliest begin."""
    for end in range(1, len(text) + 1):
        hits = [(end - len(s), s) for s in stops if text[:end].endswith(s)]
        if hits:
            begin, stop = min(hits)
            return text[:begin], stop
    return text, None


def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        shown += matcher.feed(piece)
        seen = "".join(pieces)
        # What is shown is final, and what is held back could still become a stop string.
        assert seen.startswith(shown)
    return shown + matcher.flush(), matcher.matched


@settings(deadline=None)
@given(text=LETTERS, stops=STOPS, data=st.data())
def test_equals_the_oracle_at_every_split(text: str, stops: list[str], data: st.DataObject) -> None:
    expected = oracle(text, stops)
    for at in range(len(text) + 1):
        assert run([text[:at], text[at:]], stops) == expected
    assert run(list(text), stops) == expected
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    edges = [0, *cuts, len(text)]
    assert run([text[a:b] for a, b in itertools.pairwise(edges)], stops) == expected


@settings(deadline=None)
@given(text=LETTERS, stops=STOPS)
def test_holds_back_only_what_may_become_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for end, letter in enumerate(text, 1):
        shown += matcher.feed(letter)
        if matcher.matched is not None:
            assert matcher.feed("more") == ""
            assert matcher.flush() == ""
            return
        held = text[len(shown) : end]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
