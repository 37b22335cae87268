"""Logprobs as OpenAI writes them: the chat form (a list of entries) and the older form of
completions (parallel lists).

A token that is no whole UTF-8 is written with `\\xNN` escapes; its exact bytes stand beside it
(chat) or are what the escapes say (completions, after `bytes:`).
"""

from __future__ import annotations

from collections.abc import Sequence

from strata.api.choice import ScoredToken
from strata.api.schemas import ChatLogprobs, CompletionLogprobs, TokenEntry, TopToken
from strata.text.vocabulary import Vocabulary

LOGPROB_MIN = -9999.0  # stands for minus infinity, which JSON cannot say


class LogprobWriter:
    """Writes the tokens of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces = vocabulary.pieces

    def chat(self, tokens: Sequence[ScoredToken], top: int) -> ChatLogprobs:
        """`top` alternatives per token, best first."""
        entries = []
        for token in tokens:
            piece = self._piece(token.token_id)
            scored = token.logprob
            entries.append(
                TokenEntry(
                    _escaped(piece),
                    LOGPROB_MIN if scored is None else _finite(scored.logprob),
                    list(piece),
                    [
                        TopToken(
                            _escaped(self._piece(t.token)),
                            _finite(t.logprob),
                            list(self._piece(t.token)),
                        )
                        for t in (scored.top[:top] if scored is not None else ())
                    ],
                )
            )
        return ChatLogprobs(entries)

    def completion(
        self, tokens: Sequence[ScoredToken], top: int, offsets: Sequence[int]
    ) -> CompletionLogprobs:
        """`offsets`: where each token's text begins, in characters of the whole answer."""
        names: list[str] = []
        logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for token in tokens:
            name = self._name(token.token_id)
            names.append(name)
            scored = token.logprob
            if scored is None:
                logprobs.append(None)
                tops.append(None)
                continue
            logprobs.append(_finite(scored.logprob))
            best: dict[str, float] = {}
            for t in scored.top[:top]:
                best.setdefault(self._name(t.token), _finite(t.logprob))
            best.setdefault(name, _finite(scored.logprob))
            tops.append(best)
        return CompletionLogprobs(names, logprobs, tops if top else None, list(offsets))

    def _piece(self, token_id: int) -> bytes:
        return self._pieces[token_id] if token_id < len(self._pieces) else b""

    def _name(self, token_id: int) -> str:
        piece = self._piece(token_id)
        try:
            return piece.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _escaped(piece: bytes) -> str:
    return piece.decode("utf-8", "backslashreplace")


def _finite(logprob: float) -> float:
    return max(LOGPROB_MIN, logprob)  # NaN becomes the minimum, too
