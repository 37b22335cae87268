"""From the engine's tokens to what one choice shows: text, without stop strings, and logprobs.

Invariant: what was returned is final. Text that may become a stop string, and bytes that are not a
whole character yet, are held back, and a token's logprobs come out with its last character.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from strata_protocol.messages import TokenLogprob

from strata.text.detokenizer import Detokenizer
from strata.text.stop import StopMatcher
from strata.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One generated token; `logprob` is None for a prompt's first token."""

    token_id: int
    logprob: TokenLogprob | None


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of a choice, and the tokens it completes where logprobs were asked for."""

    text: str
    tokens: Sequence[ScoredToken] = ()


NOTHING = Delta("")


class ChoiceText:
    """The state of one choice. `feed` until `is_stopped` or the sequence ends, then `finish`."""

    __slots__ = ("_detokenizer", "_held", "_made", "_shown", "_stops", "_wants_logprobs", "tokens")

    def __init__(
        self, vocabulary: Vocabulary, stops: Sequence[str], *, wants_logprobs: bool
    ) -> None:
        self._detokenizer = Detokenizer(vocabulary)
        self._stops = StopMatcher(stops) if stops else None
        self._wants_logprobs = wants_logprobs
        self._held: deque[tuple[ScoredToken, int]] = deque()  # with where its text ends
        self._made = 0  # characters detokenised so far
        self._shown = 0  # characters returned so far
        self.tokens = 0  # generated, up to the one that completed a stop string

    @property
    def is_stopped(self) -> bool:
        """A stop string was found: nothing more will be shown."""
        return self._stops is not None and self._stops.matched is not None

    def feed(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> Delta:
        """What `ids` add. Tokens after a stop string are dropped."""
        feed = self._detokenizer.feed
        if self._stops is None and not self._wants_logprobs:
            self.tokens += len(ids)
            return Delta("".join([feed(token_id) for token_id in ids]))
        text = ""
        for i, token_id in enumerate(ids):
            if self.is_stopped:
                break
            self.tokens += 1
            piece = feed(token_id)
            self._made += len(piece)
            if self._wants_logprobs:
                scored = ScoredToken(token_id, logprobs[i] if i < len(logprobs) else None)
                self._held.append((scored, self._made))
            text += self._stops.feed(piece) if self._stops is not None else piece
        return self._delta(text)

    def finish(self) -> Delta:
        """What was held back when the sequence ended by itself."""
        if self.is_stopped:
            return NOTHING
        text = self._detokenizer.flush()
        self._made += len(text)
        if self._stops is not None:
            text = self._stops.feed(text) + self._stops.flush()
        delta = self._delta(text)
        rest = [scored for scored, _ in self._held]
        self._held.clear()
        return Delta(delta.text, [*delta.tokens, *rest])

    def _delta(self, text: str) -> Delta:
        self._shown += len(text)
        held = self._held
        tokens: list[ScoredToken] = []
        while held and held[0][1] <= self._shown:
            tokens.append(held.popleft()[0])
        return Delta(text, tokens)
