"""`ChoiceText`: the same result wherever the engine cut its tokens into events."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from strata.api.choice import ChoiceText
from strata_protocol.messages import TokenLogprob

from tests.text.small_models import small_model

MODEL = small_model(template=None)
VOCABULARY = MODEL.vocabulary


def run(ids: list[int], cuts: list[int], stops: list[str]) -> tuple[str, list[int], int, bool]:
    choice = ChoiceText(VOCABULARY, stops, wants_logprobs=True)
    edges = [0, *sorted(cuts), len(ids)]
    text, tokens = "", []
    for begin, end in itertools.pairwise(edges):
        if choice.is_stopped:
            break
        part = ids[begin:end]
        delta = choice.feed(part, [TokenLogprob(-float(i)) for i in part])
        text += delta.text
        tokens += [t.token_id for t in delta.tokens]
    last = choice.finish(is_whole=True)
    text += last.text
    tokens += [t.token_id for t in last.tokens]
    return text, tokens, choice.tokens, choice.is_stopped


@settings(deadline=None)
@given(
    ids=st.lists(st.integers(0, VOCABULARY.size - 1), max_size=30),
    stops=st.lists(st.text(alphabet="abe \n", min_size=1, max_size=3), max_size=3),
    data=st.data(),
)
def test_cuts_do_not_matter(ids: list[int], stops: list[str], data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    expected = run(ids, list(range(len(ids))), stops)
    assert run(ids, cuts, stops) == expected
    assert run(ids, [], stops) == expected
    text, tokens, count, is_stopped = expected
    raw = b"".join(VOCABULARY.pieces[i] for i in ids if i not in VOCABULARY.hidden)
    whole = raw.decode(errors="replace")
    if is_stopped:
        assert whole.startswith(text)
        assert not any(stop in text for stop in stops)
        assert tokens == ids[: len(tokens)]
        assert count <= len(ids)
    else:
        assert (text, tokens, count) == (whole, ids, len(ids))


def test_logprobs_come_with_their_text() -> None:
    choice = ChoiceText(VOCABULARY, ["STOP"], wants_logprobs=True)
    ids = [VOCABULARY.pieces.index(bytes([b])) for b in b"aSTx"]
    deltas = [choice.feed([i], [TokenLogprob(-1.0)]) for i in ids]
    assert [delta.text for delta in deltas] == ["a", "", "", "STx"]
    assert [[t.token_id for t in delta.tokens] for delta in deltas] == [[ids[0]], [], [], ids[1:]]


def test_tokens_after_a_stop_string_are_dropped() -> None:
    choice = ChoiceText(VOCABULARY, ["b"], wants_logprobs=False)
    ids = [VOCABULARY.pieces.index(bytes([b])) for b in b"abcd"]
    assert choice.feed(ids, []).text == "a"
    assert choice.is_stopped
    assert choice.tokens == 2
    assert choice.finish(is_whole=True).text == ""
