"""From the engine's tokens to what one choice shows: text without stop strings, or the parts that
a chat's answer is made of, and logprobs.

Invariant: what was returned is final. Text that may become a stop string, and bytes that are not a
whole character yet, are held back, and a token's logprobs come out with its last character,
whatever part of the answer that belongs to. All of it follows from the generated ids alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from strata_protocol.messages import TokenLogprob

from strata.text.answer import AnswerParser, AnswerShape
from strata.text.answer_parts import Part, joined
from strata.text.detokenizer import Detokenizer
from strata.text.reasoning import ReasoningSplitter
from strata.text.stop import StopMatcher
from strata.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One generated token; `logprob` is None for a prompt's first token."""

    token_id: int
    logprob: TokenLogprob | None


class Delta(msgspec.Struct, frozen=True, gc=False):
    """New text of a choice, or `parts` instead where answers have a shape, and the tokens it
    completes where logprobs were asked for. A Struct, as one is made for each token."""

    text: str
    tokens: Sequence[ScoredToken] = ()
    parts: Sequence[Part] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.tokens or self.parts)


NOTHING = Delta("")


class ChoiceText:
    """The state of one choice. `feed` until `is_stopped` or the sequence ends, then `finish`."""

    __slots__ = (
        "_answer",
        "_detokenizer",
        "_held",
        "_made",
        "_meter",
        "_shown",
        "_stops",
        "_wants_logprobs",
        "can_stop",
        "reasoning_tokens",
        "tokens",
    )

    def __init__(
        self,
        vocabulary: Vocabulary,
        stops: Sequence[str],
        *,
        wants_logprobs: bool,
        shape: AnswerShape | None = None,
        is_reasoning: bool = False,
        revealed: frozenset[int] = frozenset(),
    ) -> None:
        """`shape` is what answers are made of, where they are more than text; `is_reasoning`: the
        prompt ends inside the reasoning; `revealed`: hidden tokens that tell the parts apart."""
        self._detokenizer = Detokenizer(vocabulary, shown=revealed)
        self._answer: AnswerParser | None = None
        self._meter: ReasoningSplitter | None = None  # where the reasoning's end has not come
        self.reasoning_tokens: int | None = None  # generated; None where no reasoning is told apart
        if shape is not None and not shape.is_plain:
            self._answer = AnswerParser(shape, is_opened=is_reasoning)
            if shape.thinks:
                self.reasoning_tokens = 0
                self._meter = self._answer.reasoning
                if stops and self._meter is not None:  # one of its own, as a stop holds text back
                    self._meter = ReasoningSplitter(is_opened=is_reasoning)
        self._stops = StopMatcher(stops) if stops else None
        self.can_stop = bool(stops) or self._answer is not None  # before the sequence ends
        self._wants_logprobs = wants_logprobs
        self._held: deque[tuple[ScoredToken, int]] = deque()  # with where its text ends
        self._made = 0  # characters detokenised so far
        self._shown = 0  # characters returned so far
        self.tokens = 0  # generated, up to the one that completed a stop string

    @property
    def is_stopped(self) -> bool:
        """A stop string was found, or all calls that may be: nothing more will be shown."""
        return self._has_stopped()

    @property
    def has_called(self) -> bool:
        """The answer calls tools, and each call that it began is whole."""
        return self._answer is not None and self._answer.has_called

    def feed(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> Delta:
        """What `ids` add. Tokens after a stop are dropped."""
        feed = self._detokenizer.feed
        if self._stops is None and not self._wants_logprobs and self._answer is None:
            self.tokens += len(ids)
            return Delta(feed(ids[0]) if len(ids) == 1 else "".join([feed(i) for i in ids]))
        text = ""
        parts: list[Part] = []
        for i, token_id in enumerate(ids):
            if self._has_stopped():
                break
            self.tokens += 1
            piece = feed(token_id)
            self._made += len(piece)
            if self._wants_logprobs:
                scored = ScoredToken(token_id, logprobs[i] if i < len(logprobs) else None)
                self._held.append((scored, self._made))
            shown = self._stops.feed(piece) if self._stops is not None else piece
            text += shown
            if self._answer is not None:
                parts += self._answer.feed(shown)
                if self._meter is not None:
                    self._count_reasoning(self._meter, piece)
                if self._has_stopped():
                    parts += self._answer.finish(is_whole=False)
        return self._delta(text, parts)

    def finish(self, *, is_whole: bool) -> Delta:
        """What was held back when the sequence ended by itself (`is_whole`) or at its limit."""
        if self.is_stopped:
            return NOTHING
        text = self._detokenizer.flush()
        self._made += len(text)
        if self._stops is not None:
            text = self._stops.feed(text) + self._stops.flush()
        parts: list[Part] = []
        if self._answer is not None:
            parts = self._answer.feed(text) + self._answer.finish(is_whole=is_whole)
        delta = self._delta(text, parts)
        rest = [scored for scored, _ in self._held]
        self._held.clear()
        return Delta(delta.text, [*delta.tokens, *rest], delta.parts)

    def _has_stopped(self) -> bool:
        if self._answer is not None and self._answer.is_over:
            return True
        return self._stops is not None and self._stops.matched is not None

    def _count_reasoning(self, meter: ReasoningSplitter, piece: str) -> None:
        """Up to and with the token that ends the reasoning, or shows that there is none."""
        if self._stops is not None:
            meter.feed(piece)
        if meter.has_reasoning:
            self.reasoning_tokens = self.tokens
        if meter.is_closed:
            self._meter = None

    def _delta(self, text: str, parts: Sequence[Part]) -> Delta:
        self._shown += len(text)
        held = self._held
        tokens: list[ScoredToken] = []
        while held and held[0][1] <= self._shown:
            tokens.append(held.popleft()[0])
        if self._answer is not None:
            return Delta("", tokens, joined(parts))
        return Delta(text, tokens)
