"""The vocabulary of a model file: tokens, their kinds, the bytes each stands for, and which ids
begin and end a text.

Invariant: ids are 0 .. size-1 and no text names two tokens.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from strata.text.errors import TokenizerError
from strata.text.gguf_metadata import MetadataValue
from strata.text.packed import PackedBytes, PackedTexts

log = logging.getLogger(__name__)


class TokenKind(enum.IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Texts that end a turn or a document in published models. Files often name only one of them in
# their metadata, and a model that ends with another one would run on to its limit.
_END_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "</s>",
        "<eos>",
        "<｜end▁of▁sentence｜>",
    }
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SPACE_MARK = "\u2581"  # how SentencePiece writes a space


def byte_letters() -> dict[str, int]:
    """letter -> byte of byte-level BPE: printable Latin-1 stands for itself, the rest is moved
    to U+0100 and up, in order."""
    letters: dict[str, int] = {}
    moved = 0x100
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte <= 0xFF:
            letters[chr(byte)] = byte
        else:
            letters[chr(moved)] = byte
            moved += 1
    return letters


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`model` is "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE)."""

    model: str
    tokens: Sequence[str]
    kinds: bytes  # TokenKind values, one per token
    pieces: Sequence[bytes]  # the bytes a token adds to a text; control tokens: their own name
    hidden: frozenset[int]  # ids that add nothing to a text shown to a person
    stop_ids: tuple[int, ...]
    bos_id: int | None
    eos_id: int | None
    adds_bos: bool
    # The texts of pieces that are whole characters, as far as they have been needed.
    texts: dict[int, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def size(self) -> int:
        return len(self.tokens)

    def token_text(self, token_id: int | None) -> str:
        """The name of a token as a template writes it; "" for None."""
        return "" if token_id is None else self.tokens[token_id]


def read_vocabulary(metadata: Mapping[str, MetadataValue], *, bos_added: bool) -> Vocabulary:
    """Builds the vocabulary from `tokenizer.ggml.*`. `bos_added` counts where the file is silent.

    Raises TokenizerError for a missing or inconsistent field, naming it.
    """
    model = text_field(metadata, "tokenizer.ggml.model")
    tokens = _tokens(metadata)
    kinds = _kinds(metadata, len(tokens))
    stop_ids = _stop_ids(metadata, tokens, kinds)
    bos_id = id_field(metadata, "bos_token_id", len(tokens))
    eos_id = id_field(metadata, "eos_token_id", len(tokens))
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", bos_added)
    if not isinstance(adds_bos, bool):
        raise TokenizerError(f"tokenizer.ggml.add_bos_token is {adds_bos!r}, not a boolean")
    if adds_bos and bos_id is None:
        raise TokenizerError("tokenizer.ggml.add_bos_token is true, but bos_token_id is missing")
    never_shown = (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.UNUSED)
    return Vocabulary(
        model=model,
        tokens=PackedTexts(tokens),
        kinds=bytes(kinds),
        pieces=PackedBytes(_pieces(model, tokens, kinds)),
        hidden=frozenset(i for i, kind in enumerate(kinds) if kind in never_shown),
        stop_ids=stop_ids,
        bos_id=bos_id,
        eos_id=eos_id,
        adds_bos=adds_bos,
    )


def text_field(metadata: Mapping[str, MetadataValue], key: str, default: str | None = None) -> str:
    """A string of the metadata. Raises TokenizerError when missing (without default) or no text."""
    value = metadata.get(key, default)
    if value is None:
        raise TokenizerError(f"the file has no {key}: it carries no tokenizer")
    if not isinstance(value, str):
        raise TokenizerError(f"{key} is not a string")
    return value


def id_field(metadata: Mapping[str, MetadataValue], name: str, size: int) -> int | None:
    """A token id of the metadata, None when absent. Raises TokenizerError when out of range."""
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
        raise TokenizerError(f"tokenizer.ggml.{name} is {value!r}, not an id from 0 to {size - 1}")
    return value


def _tokens(metadata: Mapping[str, MetadataValue]) -> list[str]:
    raw = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(raw, list) or not raw or not isinstance(raw[0], str):
        raise TokenizerError("tokenizer.ggml.tokens is not a list of strings")
    tokens = [str(t) if t else f"[EMPTY_{i}]" for i, t in enumerate(raw)]
    if len(set(tokens)) != len(tokens):
        first: dict[str, int] = {}
        for i, token in enumerate(tokens):
            if token in first:
                raise TokenizerError(
                    f"tokenizer.ggml.tokens has {token!r} twice, as {first[token]} and {i}"
                )
            first[token] = i
    return tokens


def _kinds(metadata: Mapping[str, MetadataValue], size: int) -> list[int]:
    raw = metadata.get("tokenizer.ggml.token_type")
    if raw is None:
        return [int(TokenKind.NORMAL)] * size
    if not isinstance(raw, list) or len(raw) < size or not isinstance(raw[0], int):
        raise TokenizerError(f"tokenizer.ggml.token_type is not a list of {size} integers")
    # What no kind stands for is as unknown as 0.
    return [int(kind) if 0 <= kind <= 255 else 0 for kind in raw[:size]]


def _stop_ids(
    metadata: Mapping[str, MetadataValue], tokens: list[str], kinds: list[int]
) -> tuple[int, ...]:
    """Ids that end a text. A well-known end text that the file lists as an ordinary token is
    made a control token here (a known slip of converters), except in a byte vocabulary where it
    could be plain markup: only `<|...|>` forms are."""
    found = {id_field(metadata, key, len(tokens)) for key in _END_KEYS}
    for i, token in enumerate(tokens):
        if token in _END_TEXTS:
            if kinds[i] not in (TokenKind.CONTROL, TokenKind.USER_DEFINED):
                if not token.startswith("<|"):
                    continue
                log.warning("token %d %r is marked as plain text; treated as control", i, token)
            kinds[i] = TokenKind.CONTROL
            found.add(i)
    names = {tokens[i] for i in found if i is not None}
    if {"<|return|>", "<|call|>"} <= names or {"<|calls|>", "<|flush|>"} <= names:
        found = {i for i in found if i is None or tokens[i] != "<|end|>"}  # ends a part, no turn
    stop_ids = tuple(sorted(i for i in found if i is not None))
    if not stop_ids:
        log.warning("the file names no end-of-text token: every answer runs to its limit")
    return stop_ids


def _pieces(model: str, tokens: list[str], kinds: list[int]) -> Iterator[bytes]:
    as_written = (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED)
    letters = byte_letters()
    for i, token in enumerate(tokens):
        kind = kinds[i]
        if kind in as_written:
            yield token.encode("utf-8", "replace")
        elif kind == TokenKind.BYTE:
            yield _byte_piece(i, token)
        elif model == "llama":
            yield token.replace(_SPACE_MARK, " ").encode("utf-8", "replace")
        else:
            try:
                yield bytes([letters[c] for c in token])
            except KeyError:  # a token written in plain text, as some padding tokens are
                yield token.encode("utf-8", "replace")


def _byte_piece(token_id: int, token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    raise TokenizerError(f"byte token {token_id} is {token!r}, not of the form <0xNN>")
