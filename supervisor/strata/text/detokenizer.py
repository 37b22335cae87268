"""Token ids to text, as they arrive.

A token may end in the middle of a character; those bytes are held back until the rest has come, so
what `feed` returned is never changed later. Bytes that can be no UTF-8 become U+FFFD, as
`bytes.decode(errors="replace")` makes them.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from strata.text.vocabulary import Vocabulary

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The state of one sequence. `feed` pieces, then `flush` once at the end."""

    __slots__ = ("_decoder", "_hidden", "_is_inside", "_pieces", "_texts")

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        shows_hidden: bool = False,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        """With `shows_hidden`, control tokens appear by their names; so do those in `shown`."""
        self._pieces = vocabulary.pieces
        self._hidden = frozenset() if shows_hidden else vocabulary.hidden - shown
        self._texts = vocabulary.texts
        self._decoder = _UTF8("replace")
        self._is_inside = False  # a character: the decoder holds its first bytes

    def feed(self, token_id: int) -> str:
        """The text that `token_id` completes; "" for hidden tokens and unfinished characters.

        An id outside the vocabulary (a model may have more rows than tokens) adds nothing.
        """
        if token_id in self._hidden or token_id >= len(self._pieces):
            return ""
        text = self._texts.get(token_id)
        if text is not None and not self._is_inside:
            return text
        piece = self._pieces[token_id]
        was_inside = self._is_inside
        text = self._decoder.decode(piece)
        self._is_inside = bool(self._decoder.getstate()[0])
        if not was_inside and not self._is_inside:
            self._texts[token_id] = text  # what it adds wherever a character begins
        return text

    def flush(self) -> str:
        """U+FFFD when the sequence ended inside a character, else ""."""
        self._is_inside = False
        return self._decoder.decode(b"", final=True)


def detokenize(vocabulary: Vocabulary, ids: Iterable[int]) -> str:
    """The whole text of `ids`."""
    one = Detokenizer(vocabulary)
    return "".join([one.feed(i) for i in ids]) + one.flush()
