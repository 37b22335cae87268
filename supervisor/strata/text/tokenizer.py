"""Text to token ids, for the two vocabularies GGUF files carry: byte-level BPE (`gpt2`) and
SentencePiece BPE (`llama`).

Invariant: control tokens come out only when the caller says `parse_special`. User-defined tokens
are ordinary vocabulary (runs of spaces, markup) and are always found, before anything is cut
into words; that is how the models were trained.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer as BpeTokenizer
from tokenizers import models, normalizers

from strata.text.errors import TextError, TokenizerError
from strata.text.gguf_metadata import MetadataValue
from strata.text.pre_tokenizers import build_pre_tokenizer, find_pre_tokenizer
from strata.text.vocabulary import TokenKind, Vocabulary, read_vocabulary, text_field

# The library would start a thread per core and warn at every fork; one text needs one thread.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

MODELS = ("gpt2", "llama")
# What is as long as the vocabulary and of no use once a tokenizer is made of it.
LONG_KEYS = frozenset(
    f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores", "merges")
)


class Tokenizer:
    """Immutable and thread-safe."""

    def __init__(
        self, vocabulary: Vocabulary, bpe: BpeTokenizer, *, space_prefixed: bool = False
    ) -> None:
        self.vocabulary = vocabulary
        self._bpe = bpe
        self._space_prefixed = space_prefixed
        control = (TokenKind.CONTROL, TokenKind.UNKNOWN)
        # Longest first, so that of two tokens that overlap the longer one is found.
        by_length = sorted(
            (
                (token, i, vocabulary.kinds[i] in control)
                for i, token in enumerate(vocabulary.tokens)
                if vocabulary.kinds[i] in (*control, TokenKind.USER_DEFINED)
            ),
            key=lambda item: (-len(item[0].encode()), item[1]),
        )
        self._special = [(token, i) for token, i, _ in by_length]
        self._control = [(token, i) for token, i, is_control in by_length if is_control]
        self._user_defined = [(token, i) for token, i, is_control in by_length if not is_control]
        self.control_texts = tuple(token for token, _ in self._control)
        self.piece_bytes_max = max(len(piece) for piece in vocabulary.pieces)

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """The ids of `text`, without the begin token. Raises TextError for lone surrogates."""
        _check_text(text)
        parts: list[int | str] = [text] if text else []
        return self._encode_parts(
            _partition(parts, self._special if parse_special else self._user_defined)
        )

    def encode_marked(
        self, text: str, mark: str, markers: frozenset[str] = frozenset()
    ) -> list[int]:
        """The ids of a text in which control tokens count, except where `mark` breaks one up
        (control_guard.py); so do the user-defined tokens among `markers`. The marks themselves are
        no part of the text."""
        if mark not in text:
            return self.encode(text, parse_special=True)
        _check_text(text)
        guarded, free = self._control, self._user_defined
        if markers:
            control = {token_id for _, token_id in self._control}
            guarded = [s for s in self._special if s[1] in control or s[0] in markers]
            free = [item for item in free if item[0] not in markers]
        parts = _partition([text], guarded)
        clean = [part if isinstance(part, int) else part.replace(mark, "") for part in parts]
        return self._encode_parts(_partition(clean, free))

    def token_count_min(self, chars: int) -> int:
        """The fewest tokens a text of `chars` characters can have."""
        return -(-chars // self.piece_bytes_max)

    def _encode_parts(self, parts: Sequence[int | str]) -> list[int]:
        out: list[int] = []
        after_special = True
        for part in parts:
            if isinstance(part, int):
                out.append(part)
                after_special = True
            elif part:
                out += self._encode_plain(part, prefixed=after_special)
                after_special = False
        return out

    def _encode_plain(self, text: str, *, prefixed: bool) -> list[int]:
        if prefixed and self._space_prefixed:
            text = " " + text
        # The batch call is the one that lets other threads run.
        ids: list[int] = self._bpe.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids


def build_tokenizer(metadata: Mapping[str, MetadataValue]) -> Tokenizer:
    """A tokenizer from `tokenizer.ggml.*`.

    Raises TokenizerError for a kind of vocabulary that is not supported or fields that do not fit
    together, naming what is known.
    """
    model = text_field(metadata, "tokenizer.ggml.model")
    match model:
        case "gpt2":
            return _byte_level(metadata)
        case "llama":
            return _sentence_piece(metadata)
        case _:
            raise TokenizerError(
                f"tokenizer.ggml.model = {model!r} is not supported; known: {', '.join(MODELS)}"
            )


def _byte_level(metadata: Mapping[str, MetadataValue]) -> Tokenizer:
    rules = find_pre_tokenizer(text_field(metadata, "tokenizer.ggml.pre", "default"))
    vocabulary = read_vocabulary(metadata, bos_added=rules.bos_added)
    raw = metadata.get("tokenizer.ggml.merges")
    if not isinstance(raw, list):
        raise TokenizerError("tokenizer.ggml.merges is missing or not a list of strings")
    merges: list[tuple[str, str]] = []
    for index, line in enumerate(raw):
        # The separator is the first space that is not the first letter.
        at = line.find(" ", 1) if isinstance(line, str) else -1
        if not isinstance(line, str) or at < 1 or at == len(line) - 1:
            raise TokenizerError(f"tokenizer.ggml.merges[{index}] is {line!r}, not two parts")
        merges.append((line[:at], line[at + 1 :]))
    del raw
    bpe = _bpe(vocabulary, merges, ignore_merges=rules.merges_ignored)
    bpe.pre_tokenizer = build_pre_tokenizer(rules)
    return Tokenizer(vocabulary, bpe)


def _sentence_piece(metadata: Mapping[str, MetadataValue]) -> Tokenizer:
    vocabulary = read_vocabulary(metadata, bos_added=True)
    size = vocabulary.size
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) < size:
        raise TokenizerError(f"tokenizer.ggml.scores is not a list of {size} numbers")
    missing = {bytes([b]) for b in range(256)} - {
        vocabulary.pieces[i] for i in range(size) if vocabulary.kinds[i] == TokenKind.BYTE
    }
    if missing:
        raise TokenizerError(f"the vocabulary lacks {len(missing)} of the 256 byte tokens")
    space_prefixed = metadata.get("tokenizer.ggml.add_space_prefix", True)
    if not isinstance(space_prefixed, bool):
        raise TokenizerError("tokenizer.ggml.add_space_prefix is not a boolean")
    bpe = _bpe(
        vocabulary, _merges_of_scores(vocabulary, scores), byte_fallback=True, ignore_merges=False
    )
    bpe.normalizer = normalizers.Replace(" ", "\u2581")
    return Tokenizer(vocabulary, bpe, space_prefixed=space_prefixed)


def _merges_of_scores(
    vocabulary: Vocabulary, scores: Sequence[int | float | str]
) -> list[tuple[str, str]]:
    """SentencePiece merges the pair whose result has the highest score; as a list of merges that
    is every split of every token, best result first."""
    known = set(vocabulary.tokens)
    ranked: list[tuple[float, int, int, str, str]] = []
    for i, token in enumerate(vocabulary.tokens):
        score = scores[i]
        if isinstance(score, str) or math.isnan(score):
            raise TokenizerError(f"tokenizer.ggml.scores[{i}] is {score!r}, not a number")
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in known and right in known:
                ranked.append((-score, i, at, left, right))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def _bpe(
    vocabulary: Vocabulary,
    merges: list[tuple[str, str]],
    *,
    ignore_merges: bool,
    byte_fallback: bool = False,
) -> BpeTokenizer:
    vocab = {token: i for i, token in enumerate(vocabulary.tokens)}
    try:
        return BpeTokenizer(
            models.BPE(
                vocab=vocab, merges=merges, ignore_merges=ignore_merges, byte_fallback=byte_fallback
            )
        )
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"tokenizer.ggml.merges: {error}") from error


def _partition(parts: list[int | str], tokens: Sequence[tuple[str, int]]) -> list[int | str]:
    """Takes each token, in order, out of the strings among `parts`."""
    for token, token_id in tokens:
        if not any(isinstance(part, str) and token in part for part in parts):
            continue
        cut: list[int | str] = []
        for part in parts:
            if isinstance(part, int) or token not in part:
                cut.append(part)
                continue
            for index, between in enumerate(part.split(token)):
                if index:
                    cut.append(token_id)
                if between:
                    cut.append(between)
        parts = cut
    return parts


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TextError(
            f"the text has a lone surrogate (U+{ord(text[error.start]):04X}) at index {error.start}"
        ) from None
