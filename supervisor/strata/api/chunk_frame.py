"""The bytes of a chunk around the one string that differs from token to token.

A stream's chunks are the same but for their text. The frame is made once, from the chunk's own
type, so that it cannot differ from chunks that are encoded whole.
"""

from __future__ import annotations

import secrets

import msgspec

_ENCODER = msgspec.json.Encoder()
# Stands for the text while the frame is made. Nobody who names a model can have guessed it.
MARK = secrets.token_hex(16)
_QUOTED = _ENCODER.encode(MARK)


class ChunkFrame:
    """Made from `chunk`, in which one string is `MARK`; `fill` gives its JSON with `text` there."""

    __slots__ = ("_head", "_tail")

    def __init__(self, chunk: msgspec.Struct) -> None:
        """Raises ValueError where the mark is not there, or more than once."""
        encoded = _ENCODER.encode(chunk)
        if encoded.count(_QUOTED) != 1:
            raise ValueError("a chunk's frame needs the mark in one place")
        self._head, _, self._tail = encoded.partition(_QUOTED)

    def fill(self, text: str) -> bytes:
        return self._head + _ENCODER.encode(text) + self._tail
